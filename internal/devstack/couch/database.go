package couch

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

// longestName is the longest database name: with CouchDB's suffixes its file
// name fills what a file system allows.
const longestName = 238

func (q *request) createDB() error {
	switch {
	case !databaseName.MatchString(q.db) && !isSystemDB(q.db):
		return &httpError{http.StatusBadRequest, "illegal_database_name", "Name: '" + q.db +
			"'. Only lowercase characters (a-z), digits (0-9), and any of the characters _, $, (, ), +, -, and / are allowed. Must begin with a letter."}
	case len(q.db) > longestName:
		return &httpError{http.StatusBadRequest, "database_name_too_long", "At least one path segment of `" + q.db + "` is too long."}
	}
	shards, err := q.intParameter("q", 2)
	if err != nil || shards < 1 {
		return badRequest("Bad `q` parameter")
	}
	if err := q.dir.Create(q.db, shards); err != nil {
		return err
	}
	q.w.Header().Set("Location", "http://"+q.r.Host+"/"+q.path[0])
	return q.ok(http.StatusCreated)
}

// deleteDB has no precondition whatever: CouchDB ignores If-Match here.
func (q *request) deleteDB() error {
	keep := q.config.get("couchdb", "enable_database_recovery") == "true"
	if err := q.dir.Delete(q.db, keep); err != nil {
		return err
	}
	return q.ok(http.StatusOK)
}

// databaseInfo is what GET /db and _dbs_info answer, in CouchDB's order.
type databaseInfo struct {
	// Created is in whole seconds: two incarnations can share it.
	Created   string `json:"instance_start_time"`
	Name      string `json:"db_name"`
	PurgeSeq  string `json:"purge_seq"`
	UpdateSeq string `json:"update_seq"`
	Sizes     struct {
		File     int64 `json:"file"`
		External int64 `json:"external"`
		Active   int64 `json:"active"`
	} `json:"sizes"`
	Props   struct{} `json:"props"`
	Deleted int      `json:"doc_del_count"`
	Live    int      `json:"doc_count"`
	Format  int      `json:"disk_format_version"`
	Compact bool     `json:"compact_running"`
	Cluster struct {
		Q int `json:"q"`
		N int `json:"n"`
		W int `json:"w"`
		R int `json:"r"`
	} `json:"cluster"`
}

func readInfo(tx *store.Tx, name string) databaseInfo {
	meta := tx.Meta()
	info := databaseInfo{
		Name:      name,
		PurgeSeq:  string(appendSeq(nil, meta.Incarnation, meta.PurgeSeq, seqInInfo)),
		UpdateSeq: string(appendSeq(nil, meta.Incarnation, meta.UpdateSeq, seqInInfo)),
		Deleted:   meta.Deleted,
		Live:      meta.Live,
		Format:    8,
		Created:   strconv.FormatInt(meta.Created, 10),
	}
	info.Sizes.File, info.Sizes.External, info.Sizes.Active = tx.Size(), tx.Size(), tx.Size()
	info.Cluster.Q, info.Cluster.N, info.Cluster.W, info.Cluster.R = meta.Shards, 1, 1, 1
	return info
}

func (q *request) dbInfo() error {
	var info databaseInfo
	err := q.dir.View(q.db, func(tx *store.Tx) error {
		info = readInfo(tx, q.db)
		return nil
	})
	if err != nil {
		return err
	}
	return q.marshal(http.StatusOK, info)
}

func (q *request) revsLimit() error {
	if q.r.Method != http.MethodPut {
		var limit int
		err := q.dir.View(q.db, func(tx *store.Tx) error {
			limit = tx.Meta().RevsLimit
			return nil
		})
		if err != nil {
			return err
		}
		return q.json(http.StatusOK, strconv.AppendInt(nil, int64(limit), 10))
	}
	body, err := q.readJSON()
	if err != nil {
		return err
	}
	limit, err := strconv.Atoi(string(body))
	if err != nil || limit < 1 {
		return badRequest("`revs_limit` must be positive integer")
	}
	err = q.dir.Update(q.db, func(tx *store.Tx) error {
		security, err := securityOf(tx)
		if err != nil {
			return err
		}
		if !security.isAdmin(q.user) {
			return errNoMajority
		}
		tx.SetRevsLimit(limit)
		return nil
	})
	if err != nil {
		return err
	}
	return q.ok(http.StatusOK)
}

// purge forgets revisions. Nothing of it shows in the changes feed; only
// purge_seq and the counts tell.
func (q *request) purge() error {
	asked, err := q.readJSONObject()
	if err != nil {
		return err
	}
	if !q.user.isServerAdmin() {
		return errNotServerAdmin
	}
	out := []byte(`{"purge_seq":null,"purged":{`)
	err = q.dir.Update(q.db, func(tx *store.Tx) error {
		first := true
		for m := range jsontext.Members(asked) {
			revs, err := parseRevArray(string(m.Value))
			if err != nil {
				return err
			}
			purged, err := tx.Purge(jsontext.Unquote(m.Key), revs)
			if err != nil {
				return err
			}
			if !first {
				out = append(out, ',')
			}
			first = false
			out = append(append(out, m.Key...), ':')
			out = appendRevs(out, purged)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusCreated, append(out, "}}"...))
}

func (q *request) ensureFullCommit() error {
	var info databaseInfo
	err := q.dir.View(q.db, func(tx *store.Tx) error {
		info = readInfo(tx, q.db)
		return nil
	})
	if err != nil {
		return err
	}
	return q.json(http.StatusCreated, []byte(`{"ok":true,"instance_start_time":"`+info.Created+`"}`))
}

func (q *request) compact() error {
	if err := q.dir.View(q.db, q.mustAdminister); err != nil {
		return err
	}
	if err := q.dir.Update(q.db, (*store.Tx).Compact); err != nil {
		return err
	}
	return q.ok(http.StatusAccepted)
}

func (q *request) viewCleanup() error {
	if err := q.dir.View(q.db, q.mustAdminister); err != nil {
		return err
	}
	return q.ok(http.StatusAccepted)
}

// dbsInfo answers for the databases of a range of names, or of a list.
func (q *request) dbsInfo() error {
	if !q.user.isServerAdmin() {
		return errNotServerAdmin
	}
	if q.r.Method != http.MethodPost {
		names, err := q.rangeOfNames()
		if err != nil {
			return err
		}
		return q.sendInfos(names)
	}
	obj, err := q.readJSONObject()
	if err != nil {
		return err
	}
	var body struct{ Keys []string }
	if err := json.Unmarshal(obj, &body); err != nil || body.Keys == nil {
		return badRequest("`keys` member must exist.")
	}
	if limit := q.config.number("chttpd", "max_db_number_for_dbs_info_req", 100); len(body.Keys) > limit {
		return &httpError{http.StatusBadRequest, "too_many_keys", "`keys` member must have less than or equal to " + strconv.Itoa(limit) + " keys."}
	}
	return q.sendInfos(body.Keys)
}

func (q *request) sendInfos(names []string) error {
	type row struct {
		Key   string        `json:"key"`
		Info  *databaseInfo `json:"info,omitempty"`
		Error string        `json:"error,omitempty"`
	}
	rows := []row{}
	for _, name := range names {
		r := row{Key: name}
		err := q.dir.View(name, func(tx *store.Tx) error {
			info := readInfo(tx, name)
			r.Info = &info
			return nil
		})
		if err != nil {
			r.Error = "not_found"
		}
		rows = append(rows, r)
	}
	return q.marshal(http.StatusOK, rows)
}

func (q *request) intParameter(name string, absent int) (int, error) {
	text := q.query.Get(name)
	if text == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		return 0, queryError("Invalid value for integer: \"" + text + "\"")
	}
	return n, nil
}
