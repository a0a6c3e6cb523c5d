package socket_test

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"
)

// wire is a device that speaks the protocol by hand: it takes next to no memory,
// and can fall silent.
type wire struct {
	t    testing.TB
	conn net.Conn
}

// dial connects by websocket and sends the token.
func dial(t testing.TB, base, token string) *wire {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /socket.io/?EIO=4&transport=websocket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\n"+
		"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", u.Host)
	// The head ends with an empty line; a larger buffer would swallow frames.
	head := bufio.NewReaderSize(oneByte{conn}, 16)
	for {
		line, err := head.ReadString('\n')
		if err != nil {
			t.Fatal("upgrade: ", err)
		}
		if strings.TrimSpace(line) == "" {
			break
		}
	}
	w := &wire{t: t, conn: conn}
	if open := w.read(); !strings.HasPrefix(open, "0{") {
		t.Fatalf("opened with %q", open)
	}
	auth, err := json.Marshal(map[string]string{"token": token})
	if err != nil {
		t.Fatal(err)
	}
	w.write("40" + string(auth))
	return w
}

// oneByte reads byte by byte.
type oneByte struct{ io.Reader }

func (r oneByte) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(1, len(b))]) }

// read returns the next text, or io.EOF's text when the connection has ended.
func (w *wire) read() string {
	w.t.Helper()
	for {
		var head [4]byte
		if _, err := io.ReadFull(w.conn, head[:2]); err != nil {
			return err.Error()
		}
		length := int(head[1])
		if length == 126 {
			if _, err := io.ReadFull(w.conn, head[2:]); err != nil {
				return err.Error()
			}
			length = int(binary.BigEndian.Uint16(head[2:]))
		}
		text := make([]byte, length)
		if _, err := io.ReadFull(w.conn, text); err != nil {
			return err.Error()
		}
		if opcode := head[0] & 0xf; opcode == 1 {
			return string(text)
		}
	}
}

// until drops what comes before a text with this beginning.
func (w *wire) until(beginning string) string {
	w.t.Helper()
	for {
		text := w.read()
		if strings.HasPrefix(text, beginning) {
			return text
		}
		if text == "" || text[0] < '0' || text[0] > '9' {
			w.t.Fatalf("%s before %q", text, beginning) // Texts of the protocol begin with a digit.
		}
	}
}

// ready waits for sdk:init:ready.
func (w *wire) ready() string { return w.until(`42["sdk:init:ready"`) }

// write sends a text that has to arrive.
func (w *wire) write(text string) {
	w.t.Helper()
	if err := w.send(text); err != nil {
		w.t.Error("write: ", err)
	}
}

// send sends a text, masked by zeros.
func (w *wire) send(text string) error {
	var frame bytes.Buffer
	frame.WriteByte(0x81)
	if len(text) < 126 {
		frame.WriteByte(0x80 | byte(len(text)))
	} else {
		frame.WriteByte(0x80 | 126)
		_ = binary.Write(&frame, binary.BigEndian, uint16(len(text)))
	}
	frame.Write(make([]byte, 4))
	frame.WriteString(text)
	_, err := w.conn.Write(frame.Bytes())
	return err
}
