// Package migrations holds the SQL files that make up the two schemas, embedded in the binary.
package migrations

import (
	"embed"
	"io/fs"

	"github.com/rollingd/rollingd/internal/pg"
)

//go:embed */*.sql
var files embed.FS

// Primary is the schema of the primary's own Postgres.
func Primary() pg.Migrations {
	return pg.Migrations{FS: folder("primary"), Table: "rollingd_migrations", First: 1}
}

// Hosted is the part of the continuity plane that lives in the hosted Postgres. Its numbers go on where the migrations
// end that this Postgres had before rollingd.
func Hosted() pg.Migrations {
	return pg.Migrations{FS: folder("hosted"), Table: "rollingd_hosted_migrations", First: 46}
}

func folder(name string) fs.FS {
	sub, err := fs.Sub(files, name)
	if err != nil {
		panic(err) // Only a name that is no valid path fails, and the two names are constants.
	}
	return sub
}
