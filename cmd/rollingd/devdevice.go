package main

import (
	"context"
	"fmt"
	"net/http"
)

// The till for which dev prints a token.
const (
	devCompany    = "demo"
	devRestaurant = "centro"
	devDevice     = "till-1"
	devTokenTTL   = 24 * 60 * 60
)

// tillToken returns a token for a till of the demo tenant; "" if the device plane
// is off, for want of the secret of a given CouchDB.
func (s *stand) tillToken(ctx context.Context, url, token string) (string, error) {
	if s.proxySecret == "" {
		return "", nil
	}
	admin := &client{base: url + "/admin", shown: url + "/admin", token: token}
	answer, err := admin.do(ctx, http.MethodPost, map[string]any{
		"companyId":    devCompany,
		"restaurantId": devRestaurant,
		"deviceId":     devDevice,
		"ttlSeconds":   devTokenTTL,
	}, "device-tokens")
	if err != nil {
		return "", fmt.Errorf("get a token for a till: %w", err)
	}
	var issued struct{ Token string }
	if err := decode(answer, &issued); err != nil {
		return "", err
	}
	return issued.Token, nil
}

// printTill prints how a till of the demo tenant reaches its databases.
func (c *cli) printTill(url, till string) {
	if till == "" {
		fmt.Fprintf(c.errOut, "No device is served: %s is not set for the given CouchDB.\n\n", proxySecretVariable)
		return
	}
	fmt.Fprintf(c.errOut, "As a till of %s/%s, for a day; make sdk builds what the last line runs:\n\n"+
		"  export TILL=%s\n"+
		"  curl -H \"Authorization: Bearer $TILL\" %s/db/core/day_manifest\n"+
		"  node sdk/examples/till.mjs %s\n\n",
		devCompany, devRestaurant, till, url, url)
}
