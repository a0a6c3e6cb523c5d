package store

// state is what the counters need to know of a record before it changes.
type state struct{ exists, live bool }

func (r *Record) state() state {
	if len(r.Tree) == 0 {
		return state{}
	}
	return state{exists: true, live: r.Live()}
}

func live(s state) int {
	if s.exists && s.live {
		return 1
	}
	return 0
}

func dead(s state) int {
	if s.exists && !s.live {
		return 1
	}
	return 0
}

func (tx *Tx) count(seq uint64, delta int) {
	if tx.counts == nil {
		tx.counts = map[uint64]int{}
	}
	tx.counts[seq/countBlock] += delta
}

// Pending counts the documents that changed after since.
func (tx *Tx) Pending(since uint64) int {
	if since == 0 {
		return tx.meta.Live + tx.meta.Deleted
	}
	n := 0
	nextBlock := since/countBlock + 1
	blockEnd := string(seqKey(nextBlock * countBlock))
	seqs := tx.seqs.Cursor()
	for key, _ := seqs.Seek(seqKey(since + 1)); key != nil && string(key) < blockEnd; key, _ = seqs.Next() {
		n++
	}
	counts := tx.btx.Bucket(countsBucket).Cursor()
	for key, value := counts.Seek(seqKey(nextBlock)); key != nil; key, value = counts.Next() {
		n += int(decodeCount(value))
	}
	return n
}
