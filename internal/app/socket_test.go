package app_test

import (
	"context"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/app"
	"github.com/rollingd/rollingd/internal/devstack/couchtest"
	"github.com/rollingd/rollingd/test/nodetest"
)

// TestSocketAcrossReplicas has two servers on the same stores.
func TestSocketAcrossReplicas(t *testing.T) {
	opts := options(t)
	opts.DeviceJWTSecret, opts.CouchProxySecret = "0123456789abcdef0123456789abcdef", couchtest.ProxySecret
	var replicas []*app.App
	for range 2 {
		a, err := app.New(opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if err := a.Stop(ctx); err != nil {
				t.Error("stop: ", err)
			}
		})
		replicas = append(replicas, a)
	}
	nodetest.Run(t, "../../test/socket", []string{
		"ADMIN_TOKEN=" + token,
		"SOCKET_A=http://" + replicas[0].Addr(),
		"SOCKET_B=http://" + replicas[1].Addr(),
	}, "admin.test.js")
}
