package couch

import (
	"encoding/json"
	"net/http"
	"slices"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// defaultSecurity is what a database has before anybody puts a security
// object: only server administrators may use it.
const defaultSecurity = `{"members":{"roles":["_admin"]},"admins":{"roles":["_admin"]}}`

// securityObject is the part of a security object that is enforced.
type securityObject struct {
	Admins  memberList `json:"admins"`
	Members memberList `json:"members"`
}

type memberList struct {
	Names []string `json:"names"`
	Roles []string `json:"roles"`
}

func (l memberList) isEmpty() bool { return len(l.Names) == 0 && len(l.Roles) == 0 }

func (l memberList) has(u user) bool {
	if u.name != "" && slices.Contains(l.Names, u.name) {
		return true
	}
	return slices.ContainsFunc(u.roles, func(role string) bool { return slices.Contains(l.Roles, role) })
}

func (o securityObject) isAdmin(u user) bool { return u.isServerAdmin() || o.Admins.has(u) }

// isMember also admits everybody where the member list is empty or absent. It
// is CouchDB's sharpest edge: emptying the list opens a database to the world.
func (o securityObject) isMember(u user) bool {
	return o.isAdmin(u) || o.Members.isEmpty() || o.Members.has(u)
}

func rawSecurity(tx *store.Tx) []byte {
	if raw := tx.Security(); raw != nil {
		return raw
	}
	return []byte(defaultSecurity)
}

func securityOf(tx *store.Tx) (securityObject, error) {
	var o securityObject
	err := json.Unmarshal(rawSecurity(tx), &o)
	return o, err
}

// authorise admits members of the database. It answers 404 for a database
// that does not exist, whoever asks.
func (q *request) authorise() error {
	var object securityObject
	err := q.dir.View(q.db, func(tx *store.Tx) (err error) {
		object, err = securityOf(tx)
		return err
	})
	switch {
	case err != nil:
		return err
	case object.isMember(q.user):
		return nil
	case q.user.name == "":
		return unauthorized("You are not authorized to access this db.")
	}
	return forbidden("You are not allowed to access this db.")
}

// mustAdminister refuses whoever is not an administrator of the database.
func (q *request) mustAdminister(tx *store.Tx) error {
	security, err := securityOf(tx)
	switch {
	case err != nil:
		return err
	case security.isAdmin(q.user):
		return nil
	case q.user.name == "":
		return unauthorized("You are not a db or server admin.")
	}
	return forbidden("You are not a db or server admin.")
}

// security shows or replaces the security object. Where the caller is no
// administrator of the database, or the object has a wrong shape, CouchDB's
// shards refuse one by one and the answer is the 500 of a lost vote.
func (q *request) security() error {
	if q.r.Method != http.MethodPut {
		var raw []byte
		err := q.dir.View(q.db, func(tx *store.Tx) error {
			raw = slices.Clone(rawSecurity(tx))
			return nil
		})
		if err != nil {
			return err
		}
		return q.json(http.StatusOK, raw)
	}
	object, err := q.readJSON()
	if err != nil {
		return err
	}
	if !hasSecurityShape(object) {
		return errNoMajority
	}
	err = q.dir.Update(q.db, func(tx *store.Tx) error {
		current, err := securityOf(tx)
		if err != nil {
			return err
		}
		if !current.isAdmin(q.user) {
			return errNoMajority
		}
		return tx.SetSecurity(object)
	})
	if err != nil {
		return err
	}
	return q.ok(http.StatusOK)
}

func hasSecurityShape(object []byte) bool {
	if !jsontext.IsObject(object) {
		return false
	}
	for _, list := range []string{"admins", "members"} {
		members := jsontext.Get(object, list)
		if members == nil {
			continue
		}
		if !jsontext.IsObject(members) {
			return false
		}
		for _, kind := range []string{"names", "roles"} {
			if value := jsontext.Get(members, kind); value != nil && !isStringArray(value) {
				return false
			}
		}
	}
	return true
}

func isStringArray(value []byte) bool {
	if !jsontext.IsArray(value) {
		return false
	}
	for element := range jsontext.Elements(value) {
		if !jsontext.IsString(element) {
			return false
		}
	}
	return true
}
