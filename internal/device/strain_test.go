package device

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// memory is what the process holds for what it does.
func memory() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// wait polls for what nothing announces.
func wait(t *testing.T, what string, met func() bool) {
	t.Helper()
	limit := time.After(3 * time.Minute)
	for !met() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-limit:
			t.Fatalf("%s: not within three minutes", what)
		}
	}
}

// dial opens a connection to the proxy and sends the head of a request.
func (s *shop) dial(head, token string) net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "%s\r\nHost: shop\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n\r\n", head, token)
	return conn
}

// TestSlowClientsCostLittle has a thousand devices that ask for a large attachment
// and do not read it. It runs alone: it measures the process.
func TestSlowClientsCostLittle(t *testing.T) {
	const (
		devices = 1000
		// each covers the buffers of two connections, one copy buffer and the stacks.
		each = 160 << 10
	)
	var sending atomic.Int64
	fake := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 16<<10)
		sending.Add(1)
		for {
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	}))
	fake.Config.ConnContext = smallBuffers
	fake.Start()
	t.Cleanup(fake.Close)
	s := newShop(t, shopOptions{couchURL: fake.URL, smallBuffers: true})
	tokens := make([]string, devices)
	for i := range tokens {
		var err error
		tokens[i], _, err = s.tokens.Issue(Identity{Restaurant: north, DeviceID: fmt.Sprintf("till-%d", i)}, s.view.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
	}
	before := memory()
	for _, token := range tokens {
		conn := s.dial("GET /db/core/doc/large HTTP/1.1", token)
		_ = conn.(*net.TCPConn).SetReadBuffer(16 << 10)
	}
	wait(t, "all are being answered", func() bool { return sending.Load() >= devices })
	if grown := memory() - before; grown > devices*each {
		t.Errorf("%d slow clients cost %d MB", devices, grown>>20)
	}
	if got := s.do("GET", "/db/daily_"+gone, tokens[0], ""); got.status != 403 {
		t.Errorf("another request meanwhile: %d %s", got.status, got.body)
	}
}

// random is a stream of a length whose content no compression makes smaller.
type random struct {
	source *rand.ChaCha8
	left   int64
	sum    hash.Hash
}

func newRandom(length int64) *random {
	return &random{source: rand.NewChaCha8([32]byte{1}), left: length, sum: sha256.New()}
}

func (r *random) Read(b []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), r.left)]
	n, _ := r.source.Read(b)
	r.sum.Write(b[:n])
	r.left -= int64(n)
	return n, nil
}

// TestLargeAttachmentsPassThrough up and down, and none of it stays.
func TestLargeAttachmentsPassThrough(t *testing.T) {
	const length = 100 << 20
	var (
		most   int64
		stored []byte
	)
	sample := func() { most = max(most, memory()) }
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			source := newRandom(length)
			for source.left > 0 {
				io.CopyN(w, source, 10<<20)
				sample()
			}
			return
		}
		sum := sha256.New()
		for {
			if n, err := io.CopyN(sum, r.Body, 10<<20); n == 0 || err != nil && err != io.EOF {
				break
			}
			sample()
		}
		stored = sum.Sum(nil)
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(fake.Close)
	s := newShop(t, shopOptions{couchURL: fake.URL})
	token := s.token(north, "till-1")
	before := memory()
	content := newRandom(length)
	req, err := http.NewRequestWithContext(t.Context(), "PUT", s.url+"/db/core/doc/film.mp4", content)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil || res.StatusCode != 201 {
		t.Fatal(res, err)
	}
	res.Body.Close()
	if string(stored) != string(content.sum.Sum(nil)) {
		t.Error("what has arrived is not what was sent")
	}
	req, err = http.NewRequestWithContext(t.Context(), "GET", s.url+"/db/core/doc/film.mp4", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err = http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, res.Body); err != nil || string(sum.Sum(nil)) != string(content.sum.Sum(nil)) {
		t.Errorf("what comes back is not what was sent: %v", err)
	}
	res.Body.Close()
	if grown := most - before; grown > 16<<20 {
		t.Errorf("an attachment of 100 MB costs %d MB", grown>>20)
	}
}

// TestClientThatHangsUpInABulkWrite stores nothing of it, and blocks nobody.
func TestClientThatHangsUpInABulkWrite(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{})
	token := s.token(north, "till-1")
	for _, head := range []string{"Content-Length: 1000", "Transfer-Encoding: chunked"} {
		conn := s.dial("POST /db/core/_bulk_docs HTTP/1.1\r\n"+head, token)
		half := `{"docs":[{"_id":"half"},`
		if strings.HasPrefix(head, "Transfer") {
			half = fmt.Sprintf("%x\r\n%s\r\n", len(half), half)
		}
		fmt.Fprint(conn, half)
		wait(t, "the write is under way", func() bool { return len(s.proxy.live.all()) == 1 })
		conn.Close()
		wait(t, "the write has ended", func() bool { return len(s.proxy.live.all()) == 0 })
	}
	if got := s.do("POST", "/db/core/_bulk_docs", token, `{"docs":[{"_id":"whole"}]}`); got.status != 201 {
		t.Errorf("the next write: %d %s", got.status, got.body)
	}
	info, err := s.couch.Info(t.Context(), s.db(north, "core"))
	if err != nil || info.DocCount != 1 {
		t.Errorf("%+v, %v; only the whole write is to be there", info, err)
	}
}

// TestWritesEndAtTheirLimit, whatever trickles in.
func TestWritesEndAtTheirLimit(t *testing.T) {
	t.Parallel()
	s := newShop(t, shopOptions{limit: time.Second})
	start := time.Now()
	conn := s.dial("PUT /db/core/slow/att HTTP/1.1\r\nContent-Length: 1000000", s.token(north, "till-1"))
	stop := make(chan struct{})
	var trickling sync.WaitGroup
	trickling.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				if _, err := conn.Write([]byte("x")); err != nil {
					return
				}
			}
		}
	})
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%+v, %v; want 408", res, err)
	}
	close(stop)
	trickling.Wait()
	// At this pace the whole would take half a day.
	if elapsed := time.Since(start); elapsed < time.Second || elapsed > time.Minute {
		t.Errorf("it was ended after %s", elapsed)
	}
	if _, err := s.couch.Doc(t.Context(), s.db(north, "core"), "slow", ""); err == nil {
		t.Error("what had come of it was stored")
	}
	wait(t, "nothing is under way", func() bool { return len(s.proxy.live.all()) == 0 })
}

// TestCouchDBRestarts under the proxy: what cannot be served meanwhile is told to
// try again. It is seen through a server in front of it, which goes and comes back.
func TestCouchDBRestarts(t *testing.T) {
	t.Parallel()
	var (
		address string
		front   *http.Server
		start   func()
	)
	s := newShop(t, shopOptions{front: func(couchURL string) string {
		u, err := url.Parse(couchURL)
		if err != nil {
			t.Fatal(err)
		}
		u.User = nil
		address = "127.0.0.1:0"
		start = func() {
			listener, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			address = listener.Addr().String()
			through := httputil.NewSingleHostReverseProxy(u)
			through.FlushInterval = -1
			through.ErrorLog = log.New(io.Discard, "", 0)
			front = &http.Server{Handler: through}
			go front.Serve(listener)
		}
		start()
		t.Cleanup(func() { front.Close() })
		return "http://" + address
	}})
	token := s.token(north, "till-1")
	if got := s.do("PUT", "/db/core/a", token, `{}`); got.status != 201 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	feed := s.dial("GET /db/core/_changes?feed=continuous&heartbeat=1000 HTTP/1.1", token)
	if _, err := feed.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	front.Close()
	wait(t, "the feed is cut off", func() bool { return len(s.proxy.live.all()) == 0 })
	for method, body := range map[string]string{"GET": "", "PUT": "{}"} {
		if got := s.do(method, "/db/core/b", token, body); got.status != 503 || got.code(t) != refusedUnavailable {
			t.Errorf("%s while it is down: %d %s", method, got.status, got.body)
		}
	}
	start()
	if got := s.do("PUT", "/db/core/b", token, `{}`); got.status != 201 {
		t.Errorf("when it is back: %d %s", got.status, got.body)
	}
}
