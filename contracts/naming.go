package contracts

import (
	"errors"
	"fmt"
	"strings"
)

// ErrInvalidName is the cause of every refusal to compose or to parse a name:
// an id, an environment or a day out of form, or a name of another shape. A
// name that does not parse is never touched by anything that drops.
var ErrInvalidName = errors.New("invalid database name")

// Kind tells the databases of a restaurant apart.
type Kind string

const (
	// KindCore is the persistent catalogue database.
	KindCore Kind = "core"
	// KindDaily is the database of one business day.
	KindDaily Kind = "daily"
	// KindLegacy is the single database from before rolling databases. It is
	// only ever the meaning of a logical suffix: ParseDBName never returns it.
	KindLegacy Kind = "legacy"
)

// Logical suffixes that a device sends in place of a physical name.
const (
	CoreSuffix   = "core"
	LegacySuffix = "legacy"

	dailyPrefix = "daily_"
)

const (
	maxIDLen  = 64
	maxEnvLen = 32
)

// DBName is the content of a physical database name. BusinessDay is YYYYMMDD,
// and empty unless Kind is KindDaily.
type DBName struct {
	Env          string
	CompanyID    string
	RestaurantID string
	Kind         Kind
	BusinessDay  string
}

// ValidID reports whether id can name a company or a restaurant:
// [a-z0-9-]{1,64}. The underscore is the separator of database names, so an id
// that held one could make two restaurants share a database.
func ValidID(id string) bool {
	return len(id) >= 1 && len(id) <= maxIDLen && onlyNameBytes(id)
}

// ValidEnv reports whether env can be the prefix of an environment:
// [a-z][a-z0-9-]{0,31}. CouchDB wants a database name to begin with a letter.
func ValidEnv(env string) bool {
	return len(env) >= 1 && len(env) <= maxEnvLen &&
		env[0] >= 'a' && env[0] <= 'z' && onlyNameBytes(env)
}

func onlyNameBytes(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// CoreName composes ${env}_${companyID}_${restaurantID}_core.
func CoreName(env, companyID, restaurantID string) (string, error) {
	tenant, err := tenantPrefix(env, companyID, restaurantID)
	if err != nil {
		return "", err
	}
	return tenant + CoreSuffix, nil
}

// DailyName composes ${env}_${companyID}_${restaurantID}_daily_${day}, day
// being YYYYMMDD.
func DailyName(env, companyID, restaurantID, day string) (string, error) {
	tenant, err := tenantPrefix(env, companyID, restaurantID)
	if err != nil {
		return "", err
	}
	suffix, err := DailySuffix(day)
	if err != nil {
		return "", err
	}
	return tenant + suffix, nil
}

func tenantPrefix(env, companyID, restaurantID string) (string, error) {
	if !ValidEnv(env) {
		return "", fmt.Errorf("%w: environment %q", ErrInvalidName, env)
	}
	if !ValidID(companyID) {
		return "", fmt.Errorf("%w: company id %q", ErrInvalidName, companyID)
	}
	if !ValidID(restaurantID) {
		return "", fmt.Errorf("%w: restaurant id %q", ErrInvalidName, restaurantID)
	}
	return env + "_" + companyID + "_" + restaurantID + "_", nil
}

// LegacyName returns the name of an environment's single database, tables-${env}.
// It has no underscore, so ParseDBName refuses it.
func LegacyName(env string) string {
	return "tables-" + env
}

// ParseDBName is the inverse of CoreName and DailyName: it accepts exactly the
// names that they compose.
func ParseDBName(name string) (DBName, error) {
	parts := strings.SplitN(name, "_", 4)
	if len(parts) != 4 {
		return DBName{}, fmt.Errorf("%w: %q", ErrInvalidName, name)
	}
	kind, day, err := ParseSuffix(parts[3])
	if err != nil || kind == KindLegacy {
		return DBName{}, fmt.Errorf("%w: %q", ErrInvalidName, name)
	}
	if _, err := tenantPrefix(parts[0], parts[1], parts[2]); err != nil {
		return DBName{}, err
	}
	return DBName{
		Env:          parts[0],
		CompanyID:    parts[1],
		RestaurantID: parts[2],
		Kind:         kind,
		BusinessDay:  day,
	}, nil
}

// DailySuffix composes the logical suffix daily_${day}, day being YYYYMMDD.
func DailySuffix(day string) (string, error) {
	if !ValidDay(day) {
		return "", fmt.Errorf("%w: business day %q", ErrInvalidName, day)
	}
	return dailyPrefix + day, nil
}

// ParseSuffix reads a logical suffix: core, legacy or daily_YYYYMMDD. The day
// is empty unless the kind is KindDaily.
func ParseSuffix(suffix string) (kind Kind, day string, err error) {
	switch suffix {
	case CoreSuffix:
		return KindCore, "", nil
	case LegacySuffix:
		return KindLegacy, "", nil
	}
	day, ok := strings.CutPrefix(suffix, dailyPrefix)
	if !ok || !ValidDay(day) {
		return "", "", fmt.Errorf("%w: suffix %q", ErrInvalidName, suffix)
	}
	return KindDaily, day, nil
}
