package walmanager

import "github.com/walrig/walrig/host/wal"

// ChannelState describes one channel for status.
type ChannelState struct {
	Channel string
	// Term is the highest term that was asked for.
	Term int64
	// State is what the term is.
	State ChannelStatus
	// Err is why the term is unavailable; nil if it was removed, or is not unavailable.
	Err error
	// WAL is the open WAL, nil if there is none. Closing it does nothing.
	WAL wal.WAL
}

// ChannelStatus is the text that scripts see.
type ChannelStatus string

// The states of a channel.
const (
	Opening     ChannelStatus = "opening"
	Available   ChannelStatus = "available"
	Unavailable ChannelStatus = "unavailable"
)
