package daydb

import (
	"fmt"

	"github.com/rollingd/rollingd/contracts"
)

// Name is what the physical name of a day database says.
type Name struct {
	Restaurant
	BusinessDay Day
}

// ErrInvalidName is returned for a name that is no day database's of this
// environment. Nothing that drops ever touches such a database.
var ErrInvalidName = contracts.ErrInvalidName

// ComposeName returns the physical name of a restaurant's day database.
func ComposeName(env string, r Restaurant, day Day) (string, error) {
	return contracts.DailyName(env, r.CompanyID, r.RestaurantID, day.String())
}

// ParseName reads the physical name of a day database of an environment, or
// fails with ErrInvalidName.
func ParseName(env, name string) (Name, error) {
	parsed, err := contracts.ParseDBName(name)
	if err != nil {
		return Name{}, err
	}
	if parsed.Env != env || parsed.Kind != contracts.KindDaily {
		return Name{}, fmt.Errorf("%w: %q is no day database of environment %s", ErrInvalidName, name, env)
	}
	day, err := ParseDay(parsed.BusinessDay)
	if err != nil {
		return Name{}, err
	}
	return Name{
		Restaurant:  Restaurant{CompanyID: parsed.CompanyID, RestaurantID: parsed.RestaurantID},
		BusinessDay: day,
	}, nil
}
