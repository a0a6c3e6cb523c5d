package demo

// restaurant names one restaurant of one company.
type restaurant struct {
	company, id string
}

// The restaurants of the play. The days of the first two rotate; the company of
// the third is not switched on, and must see nothing of it all.
var (
	bistro  = restaurant{company: "andes", id: "bistro"}
	cantina = restaurant{company: "andes", id: "cantina"}
	plaza   = restaurant{company: "legado", id: "plaza"}
)

func (r restaurant) String() string { return r.company + "/" + r.id }

// role is the CouchDB role of the restaurant's devices.
func (r restaurant) role() string { return "restaurant:" + r.company + "/" + r.id }

// prefix is how the names of the restaurant's databases begin.
func (r restaurant) prefix(env string) string { return env + "_" + r.company + "_" + r.id + "_" }

// coreDB is the physical name of its catalogue, dayDB that of one of its days.
func (r restaurant) coreDB(env string) string     { return r.prefix(env) + "core" }
func (r restaurant) dayDB(env, day string) string { return r.prefix(env) + "daily_" + day }

// legacyDB is the one database that all restaurants of an environment share
// before their days rotate.
func legacyDB(env string) string { return "tables-" + env }
