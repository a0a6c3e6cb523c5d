package app_test

import (
	"testing"

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
		a := started(t, opts)
		replicas = append(replicas, a)
	}
	nodetest.Run(t, "../../test/socket", []string{
		"ADMIN_TOKEN=" + token,
		"SOCKET_A=http://" + replicas[0].Addr(),
		"SOCKET_B=http://" + replicas[1].Addr(),
	}, "admin.test.js")
}
