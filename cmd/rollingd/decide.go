package main

import (
	"net/http"

	"github.com/spf13/cobra"
)

func (c *cli) holdCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "hold DAY_DB",
		Short: "Put a legal hold on a day database, or lift it",
		Long: `Put a legal hold on a day database: it is archived and evaluated as ever, and neither sealed nor
dropped until the hold is lifted with --clear.

Needs the role operator; to lift a hold, destroyer.`,
		Example: `  rollingd hold prod_acme_centro_daily_20261101 --reason "audit 2026-31, ask Ines"
  rollingd hold prod_acme_centro_daily_20261101 --clear`,
		Args: args("DAY_DB"),
	}
	c.decision(cmd, "lift the hold", func(dayDB string) ([]string, error) {
		return []string{"day-dbs", dayDB, "hold"}, nil
	})
	return cmd
}

func (c *cli) waiveCommand() *cobra.Command {
	var device string
	cmd := &cobra.Command{
		Use:   "waive DAY_DB --device ID",
		Short: "Do not wait for a device that holds documents of a day",
		Long: `Have a day database not wait for a device that says it still holds documents of that day, such as
a till that is broken for good. Without it the day waits until the device has delivered, or has been
silent for ROLLINGD_DEVICE_SILENCE. "rollingd explain" names the devices.

A device that comes back later loses nothing: it carries its documents into the current day.

Needs the role destroyer; to wait again, with --clear, operator.`,
		Example: `  rollingd waive prod_acme_centro_daily_20261101 --device till-3 --reason "drowned, INC-1234"
  rollingd waive prod_acme_centro_daily_20261101 --device till-3 --clear`,
		Args: args("DAY_DB"),
	}
	cmd.Flags().StringVar(&device, "device", "", "the device, as explain names it (required)")
	c.decision(cmd, "wait for the device again", func(dayDB string) ([]string, error) {
		if device == "" {
			return nil, usagef("name the device with --device")
		}
		return []string{"day-dbs", dayDB, "devices", device, "waiver"}, nil
	})
	return cmd
}

// decision has a command put something that a person has decided about a day,
// with a reason, and take it back with --clear. The path is that of the decision
// below /admin.
func (c *cli) decision(cmd *cobra.Command, undo string, path func(dayDB string) ([]string, error)) {
	var (
		reason string
		clear  bool
	)
	reached := reach(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "why, up to 500 characters (required without --clear)")
	cmd.Flags().BoolVar(&clear, "clear", false, undo)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !clear && reason == "" {
			return usagef("say why with --reason, or %s with --clear", undo)
		}
		segments, err := path(args[0])
		if err != nil {
			return err
		}
		api, err := c.connect(reached)
		if err != nil {
			return err
		}
		method := http.MethodPut
		if clear {
			method = http.MethodDelete
		}
		body := map[string]string{}
		if reason != "" {
			body["reason"] = reason
		}
		answer, err := api.do(cmd.Context(), method, body, segments...)
		if err != nil {
			return err
		}
		return c.printExplanation(answer, reached.json)
	}
}
