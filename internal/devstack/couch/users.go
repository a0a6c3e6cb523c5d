package couch

import (
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"sync"

	"github.com/rollingd/rollingd/internal/devstack/couch/jsontext"
	"github.com/rollingd/rollingd/internal/devstack/couch/store"
)

const (
	usersDB    = "_users"
	userPrefix = "org.couchdb.user:"
)

// passwordIterations is low: the passwords of this store protect nothing.
const passwordIterations = 10

// userDoc is what authentication needs of a user's document.
type userDoc struct {
	Roles      []string `json:"roles"`
	DerivedKey string   `json:"derived_key"`
	Salt       string   `json:"salt"`
}

func (s *Server) loadUser(name string) (userDoc, error) {
	var u userDoc
	err := s.dir.View(usersDB, func(tx *store.Tx) error {
		r, err := tx.Record(userPrefix + name)
		if err != nil {
			return err
		}
		if !r.Live() {
			return errDeleted
		}
		d, err := tx.Load(r, r.Tree.Winner())
		if err != nil {
			return err
		}
		return json.Unmarshal(asObject(d.Body), &u)
	})
	return u, err
}

// storedUser checks a password against the user's document.
func (s *Server) storedUser(name, password string) (user, bool) {
	doc, err := s.loadUser(name)
	if err != nil || doc.DerivedKey == "" {
		return user{}, false
	}
	key := s.passwords.derive(password, doc.Salt)
	ok := subtle.ConstantTimeCompare([]byte(key), []byte(doc.DerivedKey)) == 1
	return user{name: name, roles: doc.Roles}, ok
}

// withHashedPassword replaces the member "password" of a user document by what
// is needed to check it.
func (s *Server) withHashedPassword(body []byte) []byte {
	var out []byte
	var password string
	for m := range jsontext.Members(asObject(body)) {
		if jsontext.Unquote(m.Key) == "password" && jsontext.IsString(m.Value) {
			password = jsontext.Unquote(m.Value)
			continue
		}
		out = appendMember(out, m)
	}
	if password == "" {
		return body
	}
	salt := randomHex(16)
	hashed := []byte(`{"password_scheme":"pbkdf2","derived_key":"` + s.passwords.derive(password, salt) + `","salt":"` + salt + `"}`)
	for m := range jsontext.Members(hashed) {
		out = appendMember(out, m)
	}
	return out
}

// passwordCache remembers derived keys, since basic authentication asks for
// the same one with every request.
type passwordCache struct {
	mu   sync.Mutex
	keys map[[2]string]string
}

func newPasswordCache() *passwordCache { return &passwordCache{keys: map[[2]string]string{}} }

func (c *passwordCache) derive(password, salt string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key, ok := c.keys[[2]string{password, salt}]; ok {
		return key
	}
	raw, err := pbkdf2.Key(sha256.New, password, []byte(salt), passwordIterations, 32)
	if err != nil {
		return "" // Never equal to a stored key.
	}
	if len(c.keys) > 10_000 {
		clear(c.keys)
	}
	key := hex.EncodeToString(raw)
	c.keys[[2]string{password, salt}] = key
	return key
}
