package devstack

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strings"
)

// localIni is the node's configuration over CouchDB's defaults. It is written anew at every start, since the port
// changes and CouchDB replaces the administrator's password by its hash.
func (n *node) localIni(port int) string {
	var ini strings.Builder
	section := func(name string, lines ...string) {
		fmt.Fprintf(&ini, "[%s]\n%s\n\n", name, strings.Join(lines, "\n"))
	}
	section("couchdb",
		"uuid = "+n.uuid,
		"single_node = true",
		"database_dir = "+n.file("data"),
		"view_index_dir = "+n.file("data"),
		"max_dbs_open = 5000",
		// A deletion is then a rename, which an operator can undo; production is asked to run like this.
		"enable_database_recovery = true",
	)
	section("cluster", "n = 1")
	section("smoosh", "state_dir = "+n.file("data"))
	section("log",
		"writer = file",
		"file = "+n.file("couchdb.log"),
		"level = warning",
	)
	handlers := "{chttpd_auth, cookie_authentication_handler}, {chttpd_auth, default_authentication_handler}"
	auth := []string{
		// Hashing a password a few hundred thousand times protects a stolen file, and costs every first request of a
		// test a fifth of a second.
		"iterations = 10",
		"min_iterations = 1",
	}
	if n.opts.ProxySecret != "" {
		handlers += ", {chttpd_auth, proxy_authentication_handler}"
		auth = append(auth, "proxy_use_secret = true", "secret = "+n.opts.ProxySecret)
	}
	section("chttpd",
		"bind_address = "+loopback,
		fmt.Sprintf("port = %d", port),
		"authentication_handlers = "+handlers,
	)
	section("chttpd_auth", auth...)
	section("admins", n.opts.AdminUser+" = "+n.opts.AdminPassword)
	return ini.String()
}

// vmArgs configures the Erlang virtual machine. The node's name is part of the stored maps of databases and must stay
// the same. Without distribution there is no name to register, so that neither Erlang's name server is started, which
// would outlive the node, nor another node of that name on this machine in the way. The busy waits of idle schedulers
// are turned off, because a private node shares the machine with everything else.
func (n *node) vmArgs() string {
	return strings.Join([]string{
		"-name couchdb@" + loopback,
		"-setcookie " + randomHex(),
		"-start_epmd false",
		"-dist_listen false",
		"-kernel error_logger silent",
		"-kernel prevent_overlapping_partitions false",
		"-sasl sasl_error_logger false",
		"-os_mon start_cpu_sup false",
		"-os_mon start_memsup false",
		"-os_mon disk_almost_full_threshold 1.0",
		"-ssl session_lifetime 300",
		"+SDio 16",
		"+sbwt none",
		"+sbwtdcpu none",
		"+sbwtdio none",
		"+Bd -noinput",
	}, "\n") + "\n"
}

// randomHex is 128 random bits.
func randomHex() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
