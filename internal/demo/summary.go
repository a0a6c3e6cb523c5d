package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// Summary is how a play has ended.
type Summary struct {
	Env     string  `json:"env"`
	Days    int     `json:"days"`
	TTLDays int     `json:"ttlDays"`
	Zone    string  `json:"zone"`
	Seconds float64 `json:"seconds"`

	// Documents is how many documents tills have written, Revisions how many
	// writes of them were acknowledged, Bytes the size of what was read back.
	Documents int64 `json:"documents"`
	Revisions int64 `json:"revisions"`
	Bytes     int64 `json:"bytes"`
	// Archived is how many documents the archiver has copied to Postgres, each
	// time that one had changed.
	Archived int64 `json:"archived"`
	// States counts the day databases by state, Moves the moves by the state that
	// they led to.
	States map[string]int `json:"states"`
	Moves  map[string]int `json:"moves"`

	Databases    []Row        `json:"databases"`
	Verification Verification `json:"verification"`
	// Restored is the dropped day that was rebuilt from Postgres and compared.
	Restored Restored `json:"restored"`
	// Faults is what should not have happened; a play that went well has none.
	Faults []string `json:"faults"`
}

// Restored is a copy of a dropped day in CouchDB.
type Restored struct {
	From      string `json:"from"`
	DBName    string `json:"dbName"`
	Documents int64  `json:"documents"`
}

// Good reports whether nothing was lost and nothing went wrong.
func (s Summary) Good() bool { return len(s.Faults) == 0 }

// summarize looks at how everything has ended.
func (p *play) summarize(ctx context.Context) (Summary, error) {
	days, err := p.admin.dayDBs(ctx)
	if err != nil {
		return Summary{}, err
	}
	s := Summary{
		Env:       p.opts.Env,
		Days:      p.opts.Days,
		TTLDays:   p.opts.TTLDays,
		Zone:      p.zone,
		Documents: p.truth.documents(),
		Revisions: p.truth.revisions,
		Bytes:     p.truth.bytes,
		Archived:  p.archived,
		States:    make(map[string]int),
		Moves:     maps.Clone(p.moves),
	}
	for _, d := range days {
		s.States[d.State]++
		s.Databases = append(s.Databases, rowOf(d))
	}
	slices.SortFunc(s.Databases, func(a, b Row) int {
		return slices.Compare([]string{a.Restaurant, a.Day}, []string{b.Restaurant, b.Day})
	})
	if err := p.checkFates(ctx, days); err != nil {
		return Summary{}, err
	}
	if err := p.checkUntouched(ctx); err != nil {
		return Summary{}, err
	}
	if s.Verification, err = verify(ctx, p.truth, p.couch, p.pool); err != nil {
		return Summary{}, err
	}
	if s.Restored, err = p.restore(ctx); err != nil {
		return Summary{}, err
	}
	for _, l := range s.Verification.Lost {
		p.faults = append(p.faults, "LOST "+l.String())
	}
	for _, l := range s.Verification.Altered {
		p.faults = append(p.faults, "altered "+l.String())
	}
	s.Faults = p.faults
	return s, nil
}

func (p *play) fault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf(format, args...))
}

// checkFates compares how far each day database has come with the script, and
// with whether CouchDB has it.
func (p *play) checkFates(ctx context.Context, days []dayDB) error {
	states := make(map[string]string)
	for _, d := range days {
		states[d.DBName] = d.State
		there, err := p.couch.exists(ctx, d.DBName)
		if err != nil {
			return err
		}
		if there == (d.State == "DROPPED") {
			p.fault("%s is %s, and CouchDB has it: %t", d.DBName, d.State, there)
		}
	}
	for _, s := range []*shop{p.bistro, p.cantina} {
		for i, day := range p.days {
			db := s.dayDB(p.opts.Env, day)
			if want := s.state(i, len(p.days)-1, p.opts.TTLDays); states[db] != want {
				p.fault("%s is %q at the end, and should be %s", db, states[db], want)
			}
		}
	}
	if want := 2 * (len(p.days) + 1); len(days) != want { // With tomorrow's.
		p.fault("the ledger has %d day databases, and should have %d", len(days), want)
	}
	return nil
}

// checkUntouched looks for traces at the company that is not switched on.
func (p *play) checkUntouched(ctx context.Context) error {
	var rows int64
	err := p.pool.QueryRow(ctx, `select count(*) from day_databases where company_id = $1`, plaza.company).Scan(&rows)
	if err != nil {
		return err
	}
	if rows != 0 {
		p.fault("%s is switched off, and has %d rows in the ledger", plaza.company, rows)
	}
	prefix := p.opts.Env + "_" + plaza.company + "_"
	names, err := p.couch.names(ctx, prefix)
	if err != nil {
		return err
	}
	if len(names) > 0 {
		p.fault("%s is switched off, and has databases: %v", plaza.company, names)
	}
	return nil
}

// restore has a dropped day rebuilt, and compares the copy with what the tills
// were told of the day.
func (p *play) restore(ctx context.Context) (Restored, error) {
	r := Restored{From: p.bistro.dayDB(p.opts.Env, p.days[restoredDay])}
	var err error
	if r.DBName, err = p.admin.restore(ctx, r.From, "the end of the play"); err != nil {
		p.fault("restore %s: %v", r.From, err)
		return r, nil
	}
	expected := newTruth()
	for id := range p.truth.docs[r.From] {
		maps.Copy(expected.leaves(r.DBName, id), p.truth.docs[r.From][id])
	}
	v, err := verify(ctx, expected, p.couch, p.pool)
	for _, l := range v.Lost {
		p.faults = append(p.faults, "not restored "+l.String())
	}
	r.Documents = v.InCouchDB
	return r, err
}
