package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

func (c *cli) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Examine the server and what it depends on",
		Long: `Examine the server and what it depends on: Postgres, CouchDB and its settings, databases that should
not be there, time zones, the crons and their last whole runs. Each line is ok, warn or fail, with
what to do. It exits with 1 if a line is fail.

Needs the role viewer.`,
		Example: `  rollingd doctor`,
		Args:    noArgs,
	}
	reached := reach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		answer, err := api.get(cmd.Context(), nil, "doctor")
		var refused *refusedError
		if err != nil && !errors.As(err, &refused) && !reached.json {
			// That the server cannot be reached is a finding like others.
			fmt.Fprintf(c.out, "fail  api: %s\n", oneLine(err))
			return errQuiet
		}
		if err != nil {
			return err
		}
		return c.printDoctor(answer, reached.json)
	}
	return cmd
}

func (c *cli) printDoctor(answer []byte, asJSON bool) error {
	var report struct {
		Status string `json:"status"`
		Checks []struct {
			Name   string `json:"name"`
			Status string `json:"status"`
			Detail string `json:"detail"`
			Advice string `json:"advice"`
		} `json:"checks"`
	}
	if err := decode(answer, &report); err != nil {
		return err
	}
	var err error
	if asJSON {
		err = c.printJSON(answer)
	} else {
		var b strings.Builder
		for _, check := range report.Checks {
			fmt.Fprintf(&b, "%-4s  %s: %s\n", check.Status, check.Name, check.Detail)
			if check.Advice != "" {
				fmt.Fprintf(&b, "      -> %s\n", check.Advice)
			}
		}
		_, err = fmt.Fprint(c.out, b.String())
	}
	if err == nil && report.Status == "fail" {
		err = errQuiet
	}
	return err
}
