// Package backup takes dumps of the primary's database and of the queue in the hosted one, and proves once a month that
// a dump can be restored.
//
// A backup is two files: name.dump, in pg_dump's custom format, and name.json, its manifest. The manifest is written
// last, when the dump is whole, listed and on disk: a dump without one is what a crash has left, and the next run
// removes it.
package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/rollingd/rollingd/internal/run"
)

// The names of the jobs, and when they run, in UTC.
const (
	PrimaryName        = "backup-primary"
	PrimarySchedule    = "30 6 * * *"
	ContinuityName     = "backup-continuity"
	ContinuitySchedule = "45 6 * * *"
	RestoreTestName    = "restore-test"
	// RestoreTestSchedule is the second of the month, after the backup of that day.
	RestoreTestSchedule = "30 7 2 * *"
)

// DefaultKeep is how long backups are kept unless Options say otherwise.
const DefaultKeep = 14 * 24 * time.Hour

var (
	// ErrNoBackup is returned by the test of a restore when there is no backup of the primary.
	ErrNoBackup = errors.New("there is no backup")
	// ErrDamaged is returned for a dump that is not the one which its manifest describes, or that pg_restore cannot read.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrIncomplete is returned when a restored database has other rows than the manifest says.
	ErrIncomplete = errors.New("the restored database is not the one that was backed up")
	// ErrNoPrograms is returned when no pg_dump is found that is as new as the server.
	ErrNoPrograms = errors.New("no usable pg_dump")
)

// Options of the backups; Dir and PrimaryURL are required.
type Options struct {
	// Dir holds the backups, those of both databases. It is made if it does not exist, closed to other users, and belongs
	// on another disk than the database's.
	Dir string
	// PrimaryURL is the address of the primary's database. Its role may create databases, for the test of a restore.
	PrimaryURL string
	// HostedURL is the address of the hosted database, direct or through a pooler in session mode; empty if there is none.
	HostedURL string
	// Programs is the folder of pg_dump and pg_restore. Empty means those in PATH, or else the newest in the folders where
	// packages put them; in either case they have to be as new as the server.
	Programs string
	// Keep is after how long a backup is removed; DefaultKeep unless it is set. The newest is never removed.
	Keep   time.Duration
	Logger *slog.Logger
}

func (o Options) validate() error {
	var problems []error
	if o.Dir == "" {
		problems = append(problems, errors.New("backups need a folder"))
	}
	if !isURL(o.PrimaryURL) {
		problems = append(problems, errors.New("the primary's address is no postgres:// URL"))
	}
	if o.HostedURL != "" && !isURL(o.HostedURL) {
		problems = append(problems, errors.New("the hosted database's address is no postgres:// URL"))
	}
	if o.Keep < 0 {
		problems = append(problems, fmt.Errorf("backups cannot be kept for %s", o.Keep))
	}
	return errors.Join(problems...)
}

func isURL(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql")
}

// Backups are the jobs. Each is run by one process at a time.
type Backups struct {
	Options
}

// New returns the jobs, or all that is wrong with the options.
func New(opts Options) (*Backups, error) {
	if opts.Keep == 0 {
		opts.Keep = DefaultKeep
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &Backups{Options: opts}, nil
}

// source is a database that is backed up.
type source struct {
	// kind begins the names of its backups.
	kind string
	url  string
	// only are the tables and sequences that are dumped; all for none.
	only []string
}

// The kinds of backups: of the primary's database, and of the hosted one.
const (
	PrimaryKind    = "primary"
	ContinuityKind = "continuity"
)

// Primary backs up the whole database of the primary, and removes backups of it that are older than Keep.
func (b *Backups) Primary(ctx context.Context, r run.Run) error {
	return b.backUp(ctx, r, source{kind: PrimaryKind, url: b.PrimaryURL})
}

// Continuity backs up what the hosted database holds of the continuity plane: commands, snapshots, events and nodes, and
// the fence with its log. Functions and privileges are those of the migrations, and are not in it.
func (b *Backups) Continuity(ctx context.Context, r run.Run) error {
	if b.HostedURL == "" {
		return errors.New("no hosted database is configured")
	}
	return b.backUp(ctx, r, source{kind: ContinuityKind, url: b.HostedURL, only: []string{
		"continuity_command_types",
		"continuity_commands",
		"continuity_snapshots",
		"continuity_outbox",
		"continuity_replication_state",
		"continuity_fence",
		"continuity_epochs",
		// A token that was drawn before must not be drawn again.
		"continuity_claim_tokens",
	}})
}
