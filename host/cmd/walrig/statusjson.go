package main

import (
	"strconv"

	walv1 "github.com/walrig/walrig/sdk/proto/wal/v1"
	"github.com/walrig/walrig/sdk/wire"
)

// statusJSON is `walrig status -o json`. Fields are only ever added; null is
// what nothing fills yet, or what there is not.
type statusJSON struct {
	Version  string        `json:"version"`
	PID      int64         `json:"pid"`
	Addr     string        `json:"addr"`
	DataDir  string        `json:"data_dir"`
	Ready    bool          `json:"ready"`
	Mode     string        `json:"mode"`
	Plugins  []pluginJSON  `json:"plugins"`
	Channels []channelJSON `json:"channels"`
}

// pluginJSON is a plugin in status, `plugin list` and the others. Counts of 64
// bits are decimal strings.
type pluginJSON struct {
	Name     string  `json:"name"`
	Backend  string  `json:"backend"`
	Version  *string `json:"version"`
	PID      *int64  `json:"pid"`
	State    string  `json:"state"`
	Restarts string  `json:"restarts"`
	LastExit *string `json:"last_exit"`
	SHA256   *string `json:"sha256"`
	Protocol *int64  `json:"protocol"`
	Path     *string `json:"path"`
	Fencing  *string `json:"fencing"`
}

// channelJSON is a channel in status and in the channel commands.
type channelJSON struct {
	Name            string        `json:"name"`
	Plugin          string        `json:"plugin"`
	Term            *int64        `json:"term"`
	State           string        `json:"state"`
	Error           *errorJSON    `json:"error"`
	EarliestID      *string       `json:"earliest_id"`
	LatestID        *string       `json:"latest_id"`
	LastTimeTick    *string       `json:"last_time_tick"`
	LastConfirmedID *string       `json:"last_confirmed_id"`
	WAB             *wabJSON      `json:"wab"`
	Scanners        []scannerJSON `json:"scanners"`
	Violations      *string       `json:"violations"`
	TruncatedBefore *string       `json:"truncated_before"`
	FlushLagMS      *int64        `json:"flush_lag_ms"`
	Backend         *string       `json:"backend"`
	StoreID         *string       `json:"store_id"`
	Incarnation     *int64        `json:"incarnation"`
	OpenTxns        *string       `json:"open_txns"`
	UnresolvedBytes *string       `json:"unresolved_bytes"`
	Flush           *flushJSON    `json:"flush"`
}

type wabJSON struct {
	Records string `json:"records"`
	Bytes   string `json:"bytes"`
}

type scannerJSON struct {
	Name  string  `json:"name"`
	Mode  *string `json:"mode"`
	LagMS *int64  `json:"lag_ms"`
	// BufferedBytes is what the scanner holds until a time tick or a commit.
	BufferedBytes *string `json:"buffered_bytes"`
}

func toStatusJSON(st *walv1.StatusResponse) statusJSON {
	return statusJSON{
		Version: st.GetVersion(), PID: st.GetPid(), Addr: st.GetAddr(), DataDir: st.GetDataDir(), Ready: st.GetReady(), Mode: st.GetMode(),
		Plugins: convert(st.GetPlugins(), toPluginJSON), Channels: convert(st.GetChannels(), toChannelJSON),
	}
}

// convert maps a list; the result is never null in JSON.
func convert[A, B any](in []A, f func(A) B) []B {
	list := make([]B, len(in))
	for i, v := range in {
		list[i] = f(v)
	}
	return list
}

func toPluginJSON(p *walv1.PluginStatus) pluginJSON {
	return pluginJSON{
		Name: p.GetName(), Backend: p.GetBackend(), Version: optional(p.GetVersion()), PID: positive(p.GetPid()), State: p.GetState(),
		Restarts: strconv.FormatInt(p.GetRestarts(), 10), LastExit: optional(p.GetLastExit()), SHA256: optional(p.GetSha256()),
		Protocol: positive(p.GetProtocol()), Path: optional(p.GetPath()), Fencing: optional(p.GetFencing()),
	}
}

func toChannelJSON(c *walv1.ChannelStatus) channelJSON {
	j := channelJSON{
		Name: c.GetName(), Plugin: c.GetPlugin(), Term: positive(c.GetTerm()), State: c.GetState(),
		EarliestID: optional(c.GetEarliestId()), LatestID: optional(c.GetLatestId()),
		Backend: optional(c.GetBackend()), StoreID: optional(c.GetStoreId()), Incarnation: positive(c.GetIncarnation()),
		Scanners: convert(c.GetScanners(), func(s *walv1.ScannerStatus) scannerJSON {
			lag := s.GetLagMs()
			return scannerJSON{Name: s.GetName(), Mode: optional(s.GetMode()), LagMS: &lag, BufferedBytes: decimal(s.GetBufferedBytes())}
		}),
		LastConfirmedID: optional(c.GetLastConfirmedId()), TruncatedBefore: optional(c.GetTruncatedBefore()),
	}
	if w := c.GetWab(); w != nil { // the channel is open
		j.LastTimeTick = optional(strconv.FormatUint(c.GetLastTimeTick(), 10))
		j.WAB = &wabJSON{Records: strconv.FormatInt(w.GetRecords(), 10), Bytes: strconv.FormatInt(w.GetBytes(), 10)}
		j.Violations, j.OpenTxns, j.UnresolvedBytes = decimal(c.GetViolations()), decimal(c.GetOpenTxns()), decimal(c.GetUnresolvedBytes())
	}
	if c.GetFlush() != nil {
		flush := toFlushJSON(c.GetFlush())
		j.Flush, j.FlushLagMS = &flush, &flush.LagMS
	}
	if c.GetError() != nil {
		e := toErrorJSON(wire.ErrorFromProto(c.GetError()))
		j.Error = &e
	}
	return j
}

// decimal is a count of 64 bits.
func decimal(n int64) *string {
	s := strconv.FormatInt(n, 10)
	return &s
}

// positive returns nil, null in JSON, for a number that is not there.
func positive(n int64) *int64 {
	if n <= 0 {
		return nil
	}
	return &n
}
