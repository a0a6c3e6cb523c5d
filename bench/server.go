package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
)

// server is a whole rollingd in a process of its own, with one restaurant whose
// devices are routed, as its devices and operators reach it.
type server struct {
	world *world
	cmd   *exec.Cmd
	url   string
	admin string
	http  *http.Client
}

// shop is the restaurant of a server.
var shop = daydb.Restaurant{CompanyID: "acme", RestaurantID: "centro"}

const (
	program      = "github.com/rollingd/rollingd/cmd/rollingd"
	serverWithin = time.Minute
	// deviceRate is beyond what is measured: a limit would be measured else.
	deviceRate = 10_000
)

// startServer builds the program, starts it on the stores, and has it make the
// restaurant's databases.
func (b *bench) startServer(ctx context.Context, w *world) (_ *server, err error) {
	dir, err := os.MkdirTemp("", "rollingd-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "rollingd")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, program).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build rollingd: %w\n%s", err, out)
	}
	s := &server{world: w, admin: rand.Text(), http: &http.Client{Transport: newTransport(), Timeout: time.Minute}}
	s.cmd = exec.CommandContext(ctx, binary, "serve")
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.Env = append(os.Environ(),
		"ROLLINGD_ENV="+w.env,
		"ROLLINGD_DATABASE_URL="+w.dsn,
		"ROLLINGD_COUCHDB_URL="+w.stores.couchURL,
		"ROLLINGD_COUCHDB_PROXY_SECRET="+w.stores.proxySecret,
		"ROLLINGD_DEVICE_JWT_SECRET="+rand.Text()+rand.Text(),
		"ROLLINGD_ADMIN_TOKENS=bench=destroyer:"+s.admin,
		"ROLLINGD_LISTEN_ADDR=127.0.0.1:0",
		fmt.Sprintf("ROLLINGD_DEVICE_RATE=%d", deviceRate),
	)
	said, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.url, err = addressIn(said); err != nil {
		return nil, err
	}
	for _, step := range []struct{ method, path, body string }{
		{http.MethodPut, "restaurants/acme/centro", fmt.Sprintf(`{"timezone":"America/Santiago","legacyDb":"%s-legacy"}`, w.env)},
		{http.MethodPut, "flags/acme", `{"rollingDb":true,"rollingDbDrop":false}`},
		{http.MethodPost, "crons/rolling-db-rotate/run", `{"wait":true}`},
	} {
		if err := s.call(ctx, step.method, step.path, step.body, nil); err != nil {
			return nil, err
		}
	}
	return s, nil
}

var startedAt = regexp.MustCompile(`msg=started.* addr=(\S+)`)

// addressIn reads what the server says until it has started, and then to its end.
func addressIn(said io.Reader) (string, error) {
	lines := bufio.NewScanner(said)
	var log strings.Builder
	for lines.Scan() {
		if found := startedAt.FindStringSubmatch(lines.Text()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, said) }()
			return "http://" + found[1], nil
		}
		fmt.Fprintln(&log, lines.Text())
	}
	return "", fmt.Errorf("the server did not start:\n%s", log.String())
}

func (s *server) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // It has ended already if this fails.
	timer := time.AfterFunc(serverWithin, func() { _ = s.cmd.Process.Kill() })
	defer timer.Stop()
	return s.cmd.Wait()
}

// call asks the admin API.
func (s *server) call(ctx context.Context, method, path, body string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, s.url+"/admin/"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+s.admin)
	req.Header.Set("Content-Type", "application/json")
	answer, err := answerOf(s.http, req)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

// token returns one of a device of the restaurant.
func (s *server) token(ctx context.Context, device string) (string, error) {
	var issued struct{ Token string }
	body := fmt.Sprintf(`{"companyId":%q,"restaurantId":%q,"deviceId":%q,"ttlSeconds":86400}`, shop.CompanyID, shop.RestaurantID, device)
	err := s.call(ctx, http.MethodPost, "device-tokens", body, &issued)
	return issued.Token, err
}
