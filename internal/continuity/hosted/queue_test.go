package hosted_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rollingd/rollingd/contracts"
	"github.com/rollingd/rollingd/internal/continuity"
	"github.com/rollingd/rollingd/internal/continuity/hosted"
)

func TestCommandGoesThroughTheQueue(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		at := time.Date(2026, 11, 30, 12, 0, 0, 123456000, time.UTC)
		version := int64(7)
		sent := order("k1", "o1")
		sent.Payload = json.RawMessage(`{"total": 1e400, "id": 9007199254740993, "name": "ñ\"'\\ <&>\u2028 😀", "none": null}`)
		sent.OccurredAt, sent.ExpectedVersion = &at, &version
		receipt := w.enqueue(sent)
		if receipt.CommandID != sent.CommandID || receipt.Deduplicated || receipt.Status != contracts.CommandPending || receipt.Epoch != 2 {
			t.Errorf("the receipt is %+v", receipt)
		}
		got := w.claimOne()
		if !sameJSON(t, got.Payload, sent.Payload) || !strings.Contains(string(got.Payload), "9007199254740993") {
			t.Errorf("the payload is %s, was %s", got.Payload, sent.Payload)
		}
		if !got.OccurredAt.Equal(at) || *got.ExpectedVersion != version {
			t.Errorf("the claim is %+v", got)
		}
		if got.CommandID != sent.CommandID || got.IdempotencyKey != "k1" || got.CommandType != "order.create" ||
			got.AggregateType != "order" || got.AggregateID != "o1" || got.Sequence != receipt.Sequence ||
			got.Epoch != 2 || got.Attempts != 0 || got.MaxAttempts != contracts.MaxAttempts || got.Token == 0 {
			t.Errorf("the claim is %+v", got)
		}
		if err := w.queue.Ack(t.Context(), got.CommandID, got.Token); err != nil {
			t.Fatal(err)
		}
		if c := w.find("k1"); c.Status != contracts.CommandAcked || c.SettledAt == nil || c.ClaimedUntil != nil {
			t.Errorf("after the ack it is %+v", c)
		}
		if more := w.claim(100); len(more) != 0 {
			t.Errorf("an acked command is claimed: %+v", more)
		}
	})
}

// sameJSON compares with numbers as they are written.
func sameJSON(t *testing.T, a, b json.RawMessage) bool {
	t.Helper()
	text := func(raw json.RawMessage) string {
		decoder := json.NewDecoder(strings.NewReader(string(raw)))
		decoder.UseNumber()
		var value map[string]any
		if err := decoder.Decode(&value); err != nil {
			t.Fatal(err)
		}
		delete(value, "total") // jsonb writes every digit of 1e400.
		again, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		return string(again)
	}
	return text(a) == text(b)
}

func TestSameKeyIsOneCommand(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		first := order("k1", "o1")
		receipt := w.enqueue(first)
		again := first
		again.CommandID = uuid.New()
		again.Payload = json.RawMessage(` {"key" : "k1"}`) // The same value, written otherwise.
		second := w.enqueue(again)
		if !second.Deduplicated || second.CommandID != first.CommandID || second.Sequence != receipt.Sequence {
			t.Errorf("the second receipt is %+v, the first %+v", second, receipt)
		}
		if n := scan[int](w, `select count(*) from continuity_commands`); n != 1 {
			t.Errorf("%d rows", n)
		}
	})
}

func TestSameKeyWithAnotherMeaningIsRefused(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		w.enqueue(order("k1", "o1"))
		for name, change := range map[string]func(*continuity.Command){
			"payload":        func(c *continuity.Command) { c.Payload = json.RawMessage(`{"key": "other"}`) },
			"type":           func(c *continuity.Command) { c.CommandType = "order.cancel" },
			"aggregate type": func(c *continuity.Command) { c.AggregateType = "payment" },
			"aggregate":      func(c *continuity.Command) { c.AggregateID = "o2" },
		} {
			c := order("k1", "o1")
			change(&c)
			if _, err := w.queue.Enqueue(t.Context(), c, 0); err == nil {
				t.Errorf("another %s is taken", name)
			} else {
				w.wantErr(err, continuity.ErrKeyReused)
			}
		}
		other := order("k2", "o1")
		other.CommandID = w.find("k1").CommandID
		_, err := w.queue.Enqueue(t.Context(), other, 0)
		w.wantErr(err, continuity.ErrInvalid) // As on the primary.
		if n := scan[int](w, `select count(*) from continuity_commands`); n != 1 {
			t.Errorf("%d rows", n)
		}
	})
}

func TestWhatCannotBeACommandIsRefused(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		late := time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC)
		for name, change := range map[string]func(*continuity.Command){
			"no id":            func(c *continuity.Command) { c.CommandID = uuid.Nil },
			"no key":           func(c *continuity.Command) { c.IdempotencyKey = "" },
			"blank key":        func(c *continuity.Command) { c.IdempotencyKey = " \t" },
			"long key":         func(c *continuity.Command) { c.IdempotencyKey = strings.Repeat("k", 257) },
			"NUL in the key":   func(c *continuity.Command) { c.IdempotencyKey = "a\x00b" },
			"key not UTF-8":    func(c *continuity.Command) { c.IdempotencyKey = "a\xff" },
			"no type":          func(c *continuity.Command) { c.CommandType = "" },
			"no aggregate":     func(c *continuity.Command) { c.AggregateID = "" },
			"no aggregate typ": func(c *continuity.Command) { c.AggregateType = "" },
			"no payload":       func(c *continuity.Command) { c.Payload = nil },
			"empty payload":    func(c *continuity.Command) { c.Payload = json.RawMessage{} },
			"null payload":     func(c *continuity.Command) { c.Payload = json.RawMessage(`null`) },
			"no JSON":          func(c *continuity.Command) { c.Payload = json.RawMessage(`{"a":`) },
			"two values":       func(c *continuity.Command) { c.Payload = json.RawMessage(`{} {}`) },
			"NUL in payload":   func(c *continuity.Command) { c.Payload = json.RawMessage(`"\u0000"`) },
			"half a surrogate": func(c *continuity.Command) { c.Payload = json.RawMessage(`"\ud800"`) },
			"payload not UTF8": func(c *continuity.Command) { c.Payload = json.RawMessage("\"\xff\"") },
			"number too large": func(c *continuity.Command) { c.Payload = json.RawMessage(`1e999999`) },
			"nested deep": func(c *continuity.Command) {
				c.Payload = json.RawMessage(strings.Repeat("[", 20000) + strings.Repeat("]", 20000))
			},
			"year 12026": func(c *continuity.Command) { c.OccurredAt = &late },
		} {
			c := order("k1", "o1")
			change(&c)
			_, err := w.queue.Enqueue(t.Context(), c, 0)
			if err == nil {
				t.Errorf("%s: taken", name)
				continue
			}
			w.wantErr(err, continuity.ErrInvalid)
			if strings.Contains(err.Error(), "u0000") || strings.Contains(err.Error(), "[[") {
				t.Errorf("%s: the error repeats the payload: %v", name, err)
			}
		}
		// The session is as good as before.
		w.enqueue(order("k1", "o1"))
	})
}

// TestPayloadLimits measures the text that Postgres keeps, since that is the same by every way in.
func TestPayloadLimits(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openQueue()
		sized := func(n int) json.RawMessage {
			// é has two bytes: bytes count, not characters.
			text := `{"p": "` + strings.Repeat("é", 100)
			return json.RawMessage(text + strings.Repeat("x", n-len(text)-2) + `"}`)
		}
		command := func(n int) error {
			c := order(uuid.NewString(), "o1")
			c.Payload = sized(n)
			_, err := w.queue.Enqueue(t.Context(), c, 0)
			return err
		}
		event := func(n int) error {
			_, err := w.outbox.Publish(t.Context(), hosted.Event{
				EventID: uuid.New(), EventType: "order.changed", AggregateType: "order", AggregateID: "o1", Payload: sized(n),
			})
			return err
		}
		snapshot := func(n int) error {
			_, err := w.snapshots.Put(t.Context(), "menu", sized(n), 1)
			return err
		}
		for name, limit := range map[string]struct {
			bytes int
			put   func(int) error
		}{
			"command":  {contracts.MaxCommandPayloadBytes, command},
			"event":    {contracts.MaxOutboxPayloadBytes, event},
			"snapshot": {contracts.MaxSnapshotPayloadBytes, snapshot},
		} {
			if err := limit.put(limit.bytes); err != nil {
				t.Errorf("a %s of %d bytes: %v", name, limit.bytes, err)
			}
			err := limit.put(limit.bytes + 1)
			if err == nil {
				t.Errorf("a %s of %d bytes is taken", name, limit.bytes+1)
				continue
			}
			w.wantErr(err, continuity.ErrPayloadTooLarge)
		}
		if n := scan[int](w, `select max(octet_length(payload::text)) from continuity_commands`); n != contracts.MaxCommandPayloadBytes {
			t.Errorf("the longest payload has %d bytes", n)
		}
	})
}

// TestLargestClaim is as many commands as can be claimed, each as large as it may be.
func TestLargestClaim(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		w.exec(`
			insert into continuity_commands (command_id, idempotency_key, command_type, aggregate_type, aggregate_id,
			  payload, payload_hash, epoch)
			select gen_random_uuid(), 'k' || i, 'order.create', 'order', 'o' || i,
			  to_jsonb(repeat('"', 32767)), '', 2
			from generate_series(1, 101) i`)
		claims := w.claim(100)
		if len(claims) != 100 || len(claims[99].Payload) != contracts.MaxCommandPayloadBytes {
			t.Errorf("%d commands are claimed", len(claims))
		}
	})
}

func TestFindAndList(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		_, err := w.queue.Find(t.Context(), "none")
		w.wantErr(err, continuity.ErrUnknownCommand)
		for _, key := range []string{"k1", "k2", "k3"} {
			w.enqueue(order(key, key))
		}
		w.ack(w.claim(1)[0])
		keys := func(status contracts.CommandStatus, after continuity.Sequence, limit int) []string {
			list := []string{}
			for _, c := range must[[]hosted.QueuedCommand](w)(w.queue.List(t.Context(), status, after, limit)) {
				list = append(list, c.IdempotencyKey)
			}
			return list
		}
		second := w.find("k2").Sequence
		for _, c := range []struct{ got, want []string }{
			{keys("", 0, 10), []string{"k1", "k2", "k3"}},
			{keys("", 0, 2), []string{"k1", "k2"}},
			{keys("", second, 10), []string{"k3"}},
			{keys(contracts.CommandPending, 0, 10), []string{"k2", "k3"}},
			{keys(contracts.CommandAcked, 0, 10), []string{"k1"}},
			{keys(contracts.CommandDead, 0, 10), []string{}},
		} {
			if !slices.Equal(c.got, c.want) {
				t.Errorf("the list is %v, want %v", c.got, c.want)
			}
		}
		_, err = w.queue.List(t.Context(), "", 0, 1001)
		w.wantErr(err, continuity.ErrInvalid)
	})
}

func TestPurgeKeepsWhatARestoreNeeds(t *testing.T) {
	eachTransport(t, func(w *world) {
		w.openDrain()
		const retention = 14 * 24 * time.Hour
		for _, key := range []string{"old", "recent", "dead", "open"} {
			w.enqueue(order(key, key))
		}
		claims := w.claim(3)
		w.ack(claims[0])
		w.ack(claims[1])
		must[hosted.QueuedCommand](w)(w.queue.Fail(t.Context(), claims[2].CommandID, claims[2].Token, "never", true))
		w.exec(`update continuity_commands set settled_at = now() - interval '15 days' where idempotency_key in ('old', 'dead')`)
		purge := func() int { return must[int](w)(w.queue.Purge(t.Context(), retention)) }
		if n := purge(); n != 0 {
			t.Errorf("%d commands of the current epoch are purged", n)
		}
		w.exec(`update continuity_fence set epoch = 3`)
		if n := purge(); n != 1 {
			t.Errorf("%d commands are purged, want the old one", n)
		}
		_, err := w.queue.Find(t.Context(), "old")
		w.wantErr(err, continuity.ErrUnknownCommand)
		for _, key := range []string{"recent", "dead", "open"} {
			w.find(key)
		}
		_, err = w.queue.Purge(t.Context(), retention-time.Second)
		w.wantErr(err, continuity.ErrInvalid)
	})
}

func TestStats(t *testing.T) {
	eachTransport(t, func(w *world) {
		if s := must[hosted.QueueStats](w)(w.queue.Stats(t.Context())); s.Commands[contracts.CommandPending] != 0 || s.NewestSnapshotAge != nil || s.OldestPending != 0 {
			t.Errorf("of an empty queue: %+v", s)
		}
		w.openDrain()
		for _, key := range []string{"k1", "k2", "k3", "k4", "k5"} {
			w.enqueue(order(key, key))
		}
		w.enqueue(order("behind", "k3"))
		unknown := order("unknown", "k6")
		unknown.CommandType = "order.teleport"
		last := w.enqueue(unknown)
		claims := w.claim(5)
		w.ack(claims[0])
		w.expire(claims[1])
		must[hosted.QueuedCommand](w)(w.queue.Fail(t.Context(), claims[2].CommandID, claims[2].Token, "never", true))
		if err := w.queue.Snooze(t.Context(), claims[3].CommandID, claims[3].Token, time.Minute); err != nil {
			t.Fatal(err)
		}
		w.exec(`update continuity_commands set enqueued_at = now() - interval '90 seconds' where idempotency_key = 'k4'`)
		must[bool](w)(w.snapshots.Put(t.Context(), "menu", json.RawMessage(`{}`), 1))
		s := must[hosted.QueueStats](w)(w.queue.Stats(t.Context()))
		want := map[contracts.CommandStatus]int64{"acked": 1, "claimed": 2, "dead": 1, "pending": 3}
		for status, n := range want {
			if s.Commands[status] != n {
				t.Errorf("%d are %s, want %d", s.Commands[status], status, n)
			}
		}
		if s.LastSequence != last.Sequence || s.Waiting != 1 || s.ExpiredLeases != 1 || s.UnacknowledgedDead != 1 ||
			s.BlockedAggregates != 1 || !slices.Equal(s.UnknownTypes, []string{"order.teleport"}) || s.NewestSnapshotAge == nil ||
			s.OldestPending.Duration().Round(30*time.Second) != 90*time.Second {
			t.Errorf("the numbers are %+v", s)
		}
	})
}
