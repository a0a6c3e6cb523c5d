package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func (c *cli) flagsCommand() *cobra.Command {
	var rolling, drop string
	cmd := &cobra.Command{
		Use:   "flags COMPANY",
		Short: "Show or change the flags of a company",
		Long: `Show or change the flags of a company; what is not named stays as it is.

--rolling-db turns on rotation, the warming of core, and, once every restaurant is ready, the
routing of its devices. Turning it off un-routes them at once and stops every destructive step, and
turns --rolling-db-drop off with it.
--rolling-db-drop permits the drop of days that are archived, proven and old enough.

Needs the role viewer to look, operator to change, and destroyer to turn --rolling-db-drop on.`,
		Example: `  rollingd flags acme
  rollingd flags acme --rolling-db=on
  rollingd flags acme --rolling-db=off`,
		Args: args("COMPANY"),
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&rolling, "rolling-db", "", "on or off")
	cmd.Flags().StringVar(&drop, "rolling-db-drop", "", "on or off")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body := map[string]bool{}
		for _, f := range []struct{ flag, field, value string }{
			{"rolling-db", "rollingDb", rolling},
			{"rolling-db-drop", "rollingDbDrop", drop},
		} {
			if !cmd.Flags().Changed(f.flag) {
				continue
			}
			if f.value != "on" && f.value != "off" {
				return usagef("--%s wants on or off", f.flag)
			}
			body[f.field] = f.value == "on"
		}
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		var answer []byte
		if len(body) == 0 {
			answer, err = api.get(cmd.Context(), nil, "flags", args[0])
		} else {
			answer, err = api.do(cmd.Context(), http.MethodPut, body, "flags", args[0])
		}
		if err != nil {
			return err
		}
		if reached.json {
			return c.printJSON(answer)
		}
		var f struct {
			RollingDb     bool `json:"rollingDb"`
			RollingDbDrop bool `json:"rollingDbDrop"`
			DeviceRouted  bool `json:"deviceRouted"`
		}
		if err := decode(answer, &f); err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.out, "rolling-db       %s\nrolling-db-drop  %s\ndevices routed   %s\n",
			onOff(f.RollingDb), onOff(f.RollingDbDrop), yesNo(f.DeviceRouted))
		return err
	}
	return cmd
}

func (c *cli) restaurantsCommand() *cobra.Command {
	var company string
	cmd := &cobra.Command{
		Use:   "restaurants",
		Short: "List the restaurants; register and change them",
		Long: `List the restaurants that are registered.

Needs the role viewer.`,
		Example: `  rollingd restaurants --company acme
  rollingd restaurants put acme centro
  rollingd restaurants put acme rapanui --timezone Pacific/Easter`,
		Args: noArgs,
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&company, "company", "", "only of this company")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		answer, err := api.get(cmd.Context(), map[string]string{"companyId": company}, "restaurants")
		if err != nil {
			return err
		}
		if reached.json {
			return c.printJSON(answer)
		}
		var list struct {
			Restaurants []restaurant `json:"restaurants"`
		}
		if err := decode(answer, &list); err != nil {
			return err
		}
		return c.printRestaurants(list.Restaurants)
	}
	cmd.AddCommand(c.putRestaurantCommand())
	return cmd
}

type restaurant struct {
	CompanyID    string `json:"companyId"`
	RestaurantID string `json:"restaurantId"`
	Timezone     string `json:"timezone"`
	LegacyDB     string `json:"legacyDb"`
	Active       bool   `json:"active"`
}

func (c *cli) putRestaurantCommand() *cobra.Command {
	var timezone, legacyDB, active string
	cmd := &cobra.Command{
		Use:   "put COMPANY RESTAURANT",
		Short: "Register a restaurant, or change it",
		Long: `Register a restaurant, or change what is named of one that is registered. Ids are 1 to 64 of the
characters a-z, 0-9 and -.

Where rollingDb is on already, a restaurant that is new, or has another zone now, waits for the
next rotation, at 05:00 in its zone. To have its databases at once, trigger that for it:
rollingd run rolling-db-rotate --company COMPANY --restaurant RESTAURANT

Needs the role operator.`,
		Example: `  rollingd restaurants put acme centro
  rollingd restaurants put acme rapanui --timezone Pacific/Easter --legacy-db tables-prod
  rollingd restaurants put acme centro --active=no`,
		Args: args("COMPANY", "RESTAURANT"),
	}
	reached := reach(cmd)
	cmd.Flags().StringVar(&timezone, "timezone", "", "zone of the tz database; a new restaurant is in America/Santiago")
	cmd.Flags().StringVar(&legacyDB, "legacy-db", "", "its database from before; a new restaurant has tables-<env>")
	cmd.Flags().StringVar(&active, "active", "", "yes or no")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body := map[string]any{}
		if cmd.Flags().Changed("timezone") {
			body["timezone"] = timezone
		}
		if cmd.Flags().Changed("legacy-db") {
			body["legacyDb"] = legacyDB
		}
		if cmd.Flags().Changed("active") {
			if active != "yes" && active != "no" {
				return usagef("--active wants yes or no")
			}
			body["active"] = active == "yes"
		}
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		answer, err := api.do(cmd.Context(), http.MethodPut, body, "restaurants", args[0], args[1])
		if err != nil {
			return err
		}
		if reached.json {
			return c.printJSON(answer)
		}
		var saved restaurant
		if err := decode(answer, &saved); err != nil {
			return err
		}
		return c.printRestaurants([]restaurant{saved})
	}
	return cmd
}

func (c *cli) printRestaurants(all []restaurant) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(c.out, "no restaurant is registered; rollingd restaurants put COMPANY RESTAURANT registers one")
		return err
	}
	table := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "RESTAURANT\tZONE\tLEGACY DATABASE\tACTIVE")
	for _, r := range all {
		fmt.Fprintf(table, "%s/%s\t%s\t%s\t%s\n", r.CompanyID, r.RestaurantID, r.Timezone, r.LegacyDB, yesNo(r.Active))
	}
	return table.Flush()
}

func onOff(b bool) string {
	if b {
		return "on"
	}
	return "off"
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
