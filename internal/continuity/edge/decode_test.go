package edge

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/rollingd/rollingd/contracts"
)

// FuzzDecodeCommand: what is taken can be kept as it is, and is the same again.
func FuzzDecodeCommand(f *testing.F) {
	for _, body := range []string{
		`{"idempotencyKey":"k","commandType":"order.create","aggregateType":"order","aggregateId":"o","payload":{"a":[1e3,"\u00e9",null]},"occurredAt":"2026-11-30T12:00:00Z","expectedVersion":3}`,
		`{"idempotencyKey":"k","commandType":"t","aggregateType":"a","aggregateId":"o","payload":"\\u0000"}`,
		`{"idempotencyKey":"\ud800"}`,
		`{"payload":[[[[1e309]]]]}`,
		"{\"payload\":\"\xff\"}",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		cmd, err := decodeCommand(body)
		if err != nil {
			return
		}
		for _, name := range []string{cmd.IdempotencyKey, cmd.CommandType, cmd.AggregateType, cmd.AggregateID} {
			if name == "" || len(name) > maxName || !utf8.ValidString(name) {
				t.Errorf("name %q", name)
			}
		}
		if !json.Valid(cmd.Payload) || len(cmd.Payload) > contracts.MaxCommandPayloadBytes {
			t.Errorf("payload %q", cmd.Payload)
		}
		again, err := json.Marshal(cmd)
		if err != nil {
			t.Fatal(err)
		}
		var back struct {
			IdempotencyKey string `json:"idempotencyKey"`
			AggregateID    string `json:"aggregateId"`
		}
		if err := json.Unmarshal(again, &back); err != nil || back.IdempotencyKey != cmd.IdempotencyKey || back.AggregateID != cmd.AggregateID {
			t.Errorf("%s: %v", again, err)
		}
	})
}
