package devstack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is whom a server runs as; nil is the account of this process. Postgres refuses to run as root.
type account struct {
	name     string
	uid, gid uint32
}

// unprivileged is nil unless this process is root; then it is "postgres", or "nobody" where that does not exist.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: uid %q: %w", name, u.Uid, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("user %s: gid %q: %w", name, u.Gid, err)
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("postgres refuses to run as root, and there is neither a user postgres nor nobody to run it as")
}

// run makes cmd run as the account.
func (a *account) run(cmd *exec.Cmd) {
	if a == nil {
		return
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
}

// own gives the file or folder to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// checkReach returns an error that names the first folder on the way to dir that the account cannot pass through, such
// as root's home.
func (a *account) checkReach(dir string) error {
	if a == nil {
		return nil
	}
	if parent := filepath.Dir(dir); parent != dir {
		if err := a.checkReach(parent); err != nil {
			return err
		}
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	var search fs.FileMode = 0o001
	switch {
	case owner.Uid == a.uid:
		search = 0o100
	case owner.Gid == a.gid:
		search = 0o010
	}
	if info.Mode().Perm()&search == 0 {
		return fmt.Errorf("user %s, whom postgres runs as because this process is root, cannot pass through %s: choose another data folder, for example under %s",
			a.name, dir, os.TempDir())
	}
	return nil
}
