package devstack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"
)

// couchDBGrace is how long an orderly stop may take before the server is killed. CouchDB's files bear either.
const couchDBGrace = 10 * time.Second

// CouchDBOptions of a private node.
type CouchDBOptions struct {
	// Dir holds the node's configuration, data and log. It is made if it does not exist; one that a former run left is
	// used again, data and all. Empty means a temporary folder, removed by Stop.
	Dir string
	// AdminUser and AdminPassword are the one server administrator. Letters, digits and "-._~" only: the two are
	// written to an ini file and a URL, which have no quoting in common.
	AdminUser, AdminPassword string
	// ProxySecret turns proxy authentication on with this secret; "" leaves it off. Same characters.
	ProxySecret string
	// Logger gets the start and the stop. The node's own log goes to couchdb.log in Dir.
	Logger *slog.Logger
}

var plainText = regexp.MustCompile(`^[A-Za-z0-9\-._~]+$`)

func (o CouchDBOptions) validate() error {
	var errs []error
	for _, option := range []struct{ name, value string }{
		{"AdminUser", o.AdminUser},
		{"AdminPassword", o.AdminPassword},
	} {
		if !plainText.MatchString(option.value) {
			errs = append(errs, fmt.Errorf(`%s: want letters, digits and "-._~"`, option.name))
		}
	}
	if o.ProxySecret != "" && !plainText.MatchString(o.ProxySecret) {
		errs = append(errs, errors.New(`ProxySecret: want letters, digits and "-._~"`))
	}
	return errors.Join(errs...)
}

// CouchDB is a running private node.
type CouchDB struct {
	process *process
	url     string
	// temporary is the folder to remove on Stop, or nil.
	temporary *temporary
	logger    *slog.Logger
}

// InstalledCouchDB returns the program of an installed Apache CouchDB: the one in the folder of its packages, else the
// one in PATH.
func InstalledCouchDB() (path string, ok bool) {
	candidates := []string{"/opt/couchdb/bin/couchdb"}
	if inPath, err := exec.LookPath("couchdb"); err == nil {
		candidates = append(candidates, inPath)
	}
	for _, candidate := range candidates {
		program, err := filepath.EvalSymlinks(candidate)
		if err != nil {
			continue
		}
		// The program is of no use without the defaults, which packages put beside it.
		if _, err := os.Stat(defaultIni(program)); err == nil {
			return program, true
		}
	}
	return "", false
}

// defaultIni is the file with CouchDB's own defaults.
func defaultIni(program string) string {
	return filepath.Join(filepath.Dir(filepath.Dir(program)), "etc", "default.ini")
}

// StartCouchDB starts a private single node of the installed CouchDB on a free port of loopback and returns when it
// answers and its system databases exist. ctx bounds the start only.
func StartCouchDB(ctx context.Context, opts CouchDBOptions) (_ *CouchDB, err error) {
	began := time.Now()
	if err := opts.validate(); err != nil {
		return nil, fmt.Errorf("start couchdb: %w", err)
	}
	program, ok := InstalledCouchDB()
	if !ok {
		return nil, errors.New("start couchdb: none is installed in /opt/couchdb or in PATH")
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	couch := &CouchDB{logger: opts.Logger}
	if opts.Dir == "" {
		if couch.temporary, err = newTemporary("rollingd-couchdb-"); err != nil {
			return nil, err
		}
		opts.Dir = couch.temporary.dir
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, couch.temporary.remove())
		}
	}()
	n := node{program: program, opts: opts}
	if n.dir, err = filepath.Abs(opts.Dir); err != nil {
		return nil, err
	}
	if err := n.prepare(); err != nil {
		return nil, fmt.Errorf("prepare couchdb in %s: %w", n.dir, err)
	}
	if couch.process, couch.url, err = n.start(ctx); err != nil {
		return nil, fmt.Errorf("start couchdb in %s: %w", n.dir, err)
	}
	opts.Logger.Info("private couchdb started", "dir", n.dir, "elapsed", time.Since(began))
	return couch, nil
}

// URL is the node's address with the administrator's credentials.
func (c *CouchDB) URL() string {
	return c.url
}

// Stop ends the node and returns when it has ended. Stopping twice is no error.
func (c *CouchDB) Stop() error {
	began := time.Now()
	err := c.process.stop(syscall.SIGTERM, couchDBGrace)
	c.logger.Info("private couchdb stopped", "elapsed", time.Since(began))
	return errors.Join(err, c.temporary.remove())
}

// node is the folder of a private node.
type node struct {
	program string
	dir     string
	opts    CouchDBOptions
	// uuid is the node's identity, which clients put into the names of their checkpoints.
	uuid string
}

func (n *node) file(name string) string { return filepath.Join(n.dir, name) }

// prepare makes the folder, and the identity that stays the same over restarts.
func (n *node) prepare() error {
	if err := os.MkdirAll(n.file("data"), 0o700); err != nil {
		return err
	}
	uuid, err := os.ReadFile(n.file("uuid"))
	if errors.Is(err, os.ErrNotExist) {
		uuid = []byte(randomHex())
		err = os.WriteFile(n.file("uuid"), uuid, 0o600)
	}
	n.uuid = string(uuid)
	return err
}

// start runs the node, on another port if somebody was faster to take the first one.
func (n *node) start(ctx context.Context) (*process, string, error) {
	for attempt := 1; ; attempt++ {
		port, err := freePort()
		if err != nil {
			return nil, "", err
		}
		p, err := n.run(port)
		if err != nil {
			return nil, "", err
		}
		address := url.URL{
			Scheme: "http",
			User:   url.UserPassword(n.opts.AdminUser, n.opts.AdminPassword),
			Host:   net.JoinHostPort(loopback, strconv.Itoa(port)),
		}
		err = n.awaitAnswer(ctx, p, address)
		if err == nil {
			return p, address.String(), nil
		}
		err = errors.Join(err, p.stop(syscall.SIGTERM, couchDBGrace))
		if attempt == portAttempts || !portTaken(port) {
			return nil, "", err
		}
	}
}

func (n *node) run(port int) (*process, error) {
	for name, content := range map[string]string{
		"local.ini": n.localIni(port),
		"vm.args":   n.vmArgs(),
	} {
		if err := os.WriteFile(n.file(name), []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	output, err := os.OpenFile(n.file("output.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	// Every open database takes file descriptors, of which a shell's usual limit allows too few.
	const script = `ulimit -n 20000 2>/dev/null || ulimit -n "$(ulimit -H -n)"; exec "$@"`
	cmd := exec.Command("/bin/sh", "-c", script, "sh", n.program, "-couch_ini", defaultIni(n.program), n.file("local.ini"))
	cmd.Dir = n.dir
	cmd.Env = append(serverEnv(), "HOME="+n.dir, "COUCHDB_ARGS_FILE="+n.file("vm.args"))
	cmd.Stdout = output
	cmd.Stderr = output
	// Killed outright when this process dies: an orderly stop can hang, and the files only ever grow at their ends.
	return startProcess(cmd, syscall.SIGKILL)
}

// awaitAnswer polls until the node is up. Its uuid is looked at before the password is sent anywhere, since a stranger
// may have taken the port in between.
func (n *node) awaitAnswer(ctx context.Context, p *process, address url.URL) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for {
		err := n.answers(ctx, address)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("the node ended (%v) and logged:\n%s\n%s", p.err, tail(n.file("couchdb.log")), tail(n.file("output.log")))
		case <-ctx.Done():
			return fmt.Errorf("no answer: %w, last %w", ctx.Err(), err)
		case <-poll.C:
		}
	}
}

func (n *node) answers(ctx context.Context, address url.URL) error {
	var welcome struct{ UUID string }
	if err := getJSON(ctx, url.URL{Scheme: address.Scheme, Host: address.Host, Path: "/"}, &welcome); err != nil {
		return err
	}
	if welcome.UUID != n.uuid {
		return fmt.Errorf("node %s answers on the port", welcome.UUID)
	}
	// The node calls itself up a moment before it has made its system databases.
	for _, path := range []string{"/_up", "/_users", "/_replicator"} {
		address.Path = path
		if err := getJSON(ctx, address, &struct{}{}); err != nil {
			return err
		}
	}
	return nil
}

func getJSON(ctx context.Context, address url.URL, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address.String(), nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", address.Path, res.Status)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, into)
}
