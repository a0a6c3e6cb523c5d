package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/rollingd/rollingd/internal/devstack/couch"
)

// stack is what the game days share: the program, two clusters of Postgres and a
// CouchDB.
type stack struct {
	// dir is removed at the end.
	dir     string
	program string
	primary *cluster
	hosted  *cluster
	couch   *couch.Server
}

// newStack builds the program and starts the stores.
func newStack(ctx context.Context) (_ *stack, err error) {
	s := &stack{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop(false))
		}
	}()
	if s.dir, err = os.MkdirTemp("", "rollingd-gamedays-"); err != nil {
		return nil, err
	}
	// Postgres may run as another user, who has to pass through.
	if err := os.Chmod(s.dir, 0o711); err != nil {
		return nil, err
	}
	s.program = filepath.Join(s.dir, "rollingd")
	build := exec.CommandContext(ctx, "go", "build", "-o", s.program, "github.com/rollingd/rollingd/cmd/rollingd")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build rollingd: %w\n%s", err, out)
	}
	s.primary = &cluster{dir: filepath.Join(s.dir, "primary")}
	s.hosted = &cluster{dir: filepath.Join(s.dir, "hosted"), service: rand.Text()}
	for _, c := range []*cluster{s.primary, s.hosted} {
		if err := c.start(ctx); err != nil {
			return nil, err
		}
	}
	s.couch, err = couch.Start(couch.Options{
		Dir:           filepath.Join(s.dir, "couch"),
		AdminUser:     "admin",
		AdminPassword: rand.Text(),
		NoSync:        true, // Nobody kills it.
	})
	return s, err
}

// stop ends the stores and removes everything, but for the logs if they are to
// be kept.
func (s *stack) stop(keepLogs bool) error {
	var errs []error
	if s.couch != nil {
		errs = append(errs, s.couch.Close())
	}
	for _, c := range []*cluster{s.primary, s.hosted} {
		if c != nil {
			errs = append(errs, c.stop())
		}
	}
	remove := []string{s.dir}
	if keepLogs {
		remove = []string{s.program, s.primary.dir, s.hosted.dir, filepath.Join(s.dir, "couch")}
	}
	for _, path := range remove {
		errs = append(errs, os.RemoveAll(path))
	}
	return errors.Join(errs...)
}
