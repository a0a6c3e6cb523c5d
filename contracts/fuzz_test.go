package contracts_test

import (
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/rollingd/rollingd/contracts"
)

var (
	wholeName   = regexp.MustCompile(`\A[a-z][a-z0-9-]{0,31}_[a-z0-9-]{1,64}_[a-z0-9-]{1,64}_(?:core|daily_([0-9]{8}))\z`)
	wholeSuffix = regexp.MustCompile(`\A(?:core|legacy|daily_([0-9]{8}))\z`)
)

// realDay is ValidDay by the standard library's calendar.
func realDay(day string) bool {
	at, err := time.Parse("20060102", day)
	return err == nil && at.Year() >= 1
}

func FuzzValidDay(f *testing.F) {
	for _, day := range []string{"20261130", "20260230", "20250229", "20240229", "00000101", "20261130\n", "٢٠٢٦"} {
		f.Add(day)
	}
	f.Fuzz(func(t *testing.T, day string) {
		if got, want := contracts.ValidDay(day), realDay(day); got != want {
			t.Errorf("ValidDay(%q) = %v, the calendar says %v", day, got, want)
		}
	})
}

func FuzzParseDBName(f *testing.F) {
	for _, name := range []string{
		"prod_acme_r1_core", "prod_acme_r1_daily_20261130", "core_daily_core_core", "tables-prod",
		"prod_acme_r1_daily_20260230", "prod_acme_r1_legacy", "prod_a_b_r1_core", "prod_acme_r1_core\n", "____",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		match := wholeName.FindStringSubmatch(name)
		want := match != nil && (match[1] == "" || realDay(match[1]))

		parsed, err := contracts.ParseDBName(name)
		if (err == nil) != want {
			t.Fatalf("ParseDBName(%q): error %v, want accepted %v", name, err, want)
		}
		if err != nil {
			if !errors.Is(err, contracts.ErrInvalidName) || parsed != (contracts.DBName{}) {
				t.Fatalf("ParseDBName(%q) = %+v, %v: want nothing and ErrInvalidName", name, parsed, err)
			}
			return
		}
		if again := compose(t, parsed); again != name {
			t.Errorf("ParseDBName(%q) composes to %q", name, again)
		}
	})
}

func FuzzParseSuffix(f *testing.F) {
	for _, suffix := range []string{"core", "legacy", "daily_20261130", "daily_20260230", "daily_", "CORE", "core\n", ""} {
		f.Add(suffix)
	}
	f.Fuzz(func(t *testing.T, suffix string) {
		match := wholeSuffix.FindStringSubmatch(suffix)
		want := match != nil && (match[1] == "" || realDay(match[1]))

		kind, day, err := contracts.ParseSuffix(suffix)
		if (err == nil) != want {
			t.Fatalf("ParseSuffix(%q): error %v, want accepted %v", suffix, err, want)
		}
		if err != nil {
			if !errors.Is(err, contracts.ErrInvalidName) || kind != "" || day != "" {
				t.Fatalf("ParseSuffix(%q) = %q, %q, %v: want nothing and ErrInvalidName", suffix, kind, day, err)
			}
			return
		}
		again := string(kind)
		if kind == contracts.KindDaily {
			if again, err = contracts.DailySuffix(day); err != nil {
				t.Fatalf("DailySuffix(%q): %v", day, err)
			}
		}
		if again != suffix {
			t.Errorf("ParseSuffix(%q) composes to %q", suffix, again)
		}
	})
}

func compose(t *testing.T, name contracts.DBName) string {
	t.Helper()
	var composed string
	var err error
	switch name.Kind {
	case contracts.KindCore:
		composed, err = contracts.CoreName(name.Env, name.CompanyID, name.RestaurantID)
	case contracts.KindDaily:
		composed, err = contracts.DailyName(name.Env, name.CompanyID, name.RestaurantID, name.BusinessDay)
	default:
		t.Fatalf("kind %q", name.Kind)
	}
	if err != nil {
		t.Fatalf("compose %+v: %v", name, err)
	}
	return composed
}
