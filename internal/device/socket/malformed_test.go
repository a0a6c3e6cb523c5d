package socket_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rollingd/rollingd/internal/daydb"
	"github.com/rollingd/rollingd/internal/device/socket"
)

// TestMalformedPackets has devices send what no client sends, before and after
// they have joined. The server neither ends nor minds the other devices.
func TestMalformedPackets(t *testing.T) {
	tokens := newGate()
	server, url := serve(t, tokens, read(func([]daydb.Restaurant) (map[daydb.Restaurant]socket.State, error) { return nil, nil }), time.Second)
	packets := []string{
		"", "\x00", "0", "1", "2", "2probe", "3", "5", "6", "9", "b", "bAAAA", "b!!!!",
		"4", "4\x00", "40", "40{", "40null", "40[]", `40{"token":7}`, `40/admin,{"token":"x"}`, "40/", "41", "41/admin,",
		"42", "42[", "42[]", "42{}", "42null", "42[null]", "42[7]", `42["disconnect"]`, `42["connect"]`, `42["error"]`, `42["newListener"]`,
		`42["sdk:auth"]`, `42["sdk:auth",null]`, `42["sdk:auth",[[[]]]]`, `42["sdk:auth",{"token":{"token":"x"}}]`,
		`421["sdk:auth"]`, `42-1["sdk:auth"]`, `4299999999999999999999["sdk:auth"]`, `42/admin,["sdk:auth"]`,
		`42["` + strings.Repeat("[", 5000) + `"]`, "42" + strings.Repeat("[", 5000),
		"43", "431[]", "430", "44", `44{"message":"x"}`,
		"45", "45-", "450-[]", "451-[]", `451-["a",{"_placeholder":true,"num":5}]`, `451-["a",{"_placeholder":true,"num":-1}]`, "4599999999-[]",
		"46", "461-1[]", "47", "4é", strings.Repeat("4", 20<<10),
	}
	for _, joined := range []bool{false, true} {
		for _, packet := range packets {
			token := "made-up"
			if joined {
				token = tokens.issue("acme", "till", time.Hour)
			}
			w := dial(t, url, token)
			if joined {
				w.ready()
			}
			// The server may end the connection before it is written out.
			_ = w.send(packet)
			_ = w.send(`421["sdk:auth",{"token":"made-up"}]`)
			w.conn.Close()
		}
	}
	w := dial(t, url, tokens.issue("acme", "till", time.Hour))
	w.ready()
	server.Changed("", "")
	w.write(`427["sdk:auth",{"token":"made-up"}]`)
	if text := w.until("437"); text != `437[{"code":"invalid","ok":false}]` {
		t.Errorf("answered %s", text)
	}
}
