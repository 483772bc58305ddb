package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/walrig/walrig/sdk/message"
	pluginv1 "github.com/walrig/walrig/sdk/proto/plugin/v1"
	"github.com/walrig/walrig/sdk/walimpls"
)

// StartToProto returns s for the wire. An unknown policy becomes UNSPECIFIED.
func StartToProto(s walimpls.Start) *pluginv1.Start {
	p := &pluginv1.Start{Id: idToProto(s.ID)}
	switch s.Policy {
	case walimpls.PolicyAll:
		p.Policy = pluginv1.Start_POLICY_ALL
	case walimpls.PolicyLatest:
		p.Policy = pluginv1.Start_POLICY_LATEST
	case walimpls.PolicyFrom:
		p.Policy = pluginv1.Start_POLICY_FROM
	case walimpls.PolicyAfter:
		p.Policy = pluginv1.Start_POLICY_AFTER
	}
	return p
}

// StartFromProto is the inverse of StartToProto. A missing start and an unknown
// policy become the zero Start, which ReadOptions.Normalize refuses.
func StartFromProto(p *pluginv1.Start) walimpls.Start {
	id := message.ID(p.GetId())
	switch p.GetPolicy() {
	case pluginv1.Start_POLICY_ALL:
		return walimpls.FromAll()
	case pluginv1.Start_POLICY_LATEST:
		return walimpls.FromLatest()
	case pluginv1.Start_POLICY_FROM:
		return walimpls.StartFrom(id)
	case pluginv1.Start_POLICY_AFTER:
		return walimpls.StartAfter(id)
	}
	return walimpls.Start{}
}

// BoundsToProto returns b for the wire.
func BoundsToProto(b walimpls.Bounds) *pluginv1.BoundsResponse {
	return &pluginv1.BoundsResponse{
		Empty:        b.Empty,
		Earliest:     idToProto(b.Earliest),
		Latest:       idToProto(b.Latest),
		LatestRecord: idToProto(b.LatestRecord),
	}
}

// BoundsFromProto is the inverse of BoundsToProto.
func BoundsFromProto(p *pluginv1.BoundsResponse) walimpls.Bounds {
	return walimpls.Bounds{
		Empty:        p.GetEmpty(),
		Earliest:     message.ID(p.GetEarliest()),
		Latest:       message.ID(p.GetLatest()),
		LatestRecord: message.ID(p.GetLatestRecord()),
	}
}

// DescriptionToProto returns d for the wire.
func DescriptionToProto(d walimpls.Description) (*pluginv1.DescribeResponse, error) {
	p := &pluginv1.DescribeResponse{
		Backend:  d.Backend,
		Version:  d.Version,
		IdLayout: string(d.IDLayout),
		Capabilities: &pluginv1.Capabilities{
			Fencing:        string(d.Capabilities.Fencing),
			Durability:     string(d.Capabilities.Durability),
			Truncation:     string(d.Capabilities.Truncation),
			Drop:           d.Capabilities.Drop,
			ReadOnly:       d.Capabilities.ReadOnly,
			ExclusiveStore: d.Capabilities.ExclusiveStore,
		},
		Limits: &pluginv1.Limits{
			MaxMessageBytes: int64(d.Limits.MaxMessageBytes),
			MaxBatchRecords: int64(d.Limits.MaxBatchRecords),
			MaxBatchBytes:   int64(d.Limits.MaxBatchBytes),
		},
	}
	for _, f := range d.Config {
		pf := &pluginv1.ConfigField{
			Name: f.Name, Type: string(f.Type), Doc: f.Doc, Required: f.Required, Secret: f.Secret, OneOf: f.OneOf,
		}
		if f.Default != nil {
			b, err := json.Marshal(plain(f.Default))
			if err != nil {
				return nil, fmt.Errorf("config field %q: its default cannot be written as JSON: %w", f.Name, err)
			}
			pf.DefaultJson = string(b)
		}
		p.Config = append(p.Config, pf)
	}
	return p, nil
}

// DescriptionFromProto is the inverse of DescriptionToProto. Defaults come back
// as JSON has them (a duration as its text), which ConfigField takes as well. It
// does not validate: call Description.Validate.
func DescriptionFromProto(p *pluginv1.DescribeResponse) (walimpls.Description, error) {
	caps, limits := p.GetCapabilities(), p.GetLimits()
	d := walimpls.Description{
		Backend:  p.GetBackend(),
		Version:  p.GetVersion(),
		IDLayout: message.Layout(p.GetIdLayout()),
		Capabilities: walimpls.Capabilities{
			Fencing:        walimpls.Fencing(caps.GetFencing()),
			Durability:     walimpls.Durability(caps.GetDurability()),
			Truncation:     walimpls.Truncation(caps.GetTruncation()),
			Drop:           caps.GetDrop(),
			ReadOnly:       caps.GetReadOnly(),
			ExclusiveStore: caps.GetExclusiveStore(),
		},
		Limits: walimpls.Limits{
			MaxMessageBytes: clampInt(limits.GetMaxMessageBytes()),
			MaxBatchRecords: clampInt(limits.GetMaxBatchRecords()),
			MaxBatchBytes:   clampInt(limits.GetMaxBatchBytes()),
		},
	}
	for _, pf := range p.GetConfig() {
		f := walimpls.ConfigField{
			Name: pf.GetName(), Type: walimpls.ConfigType(pf.GetType()), Doc: pf.GetDoc(),
			Required: pf.GetRequired(), Secret: pf.GetSecret(), OneOf: pf.GetOneOf(),
		}
		if pf.GetDefaultJson() != "" {
			v, err := decodeJSON([]byte(pf.GetDefaultJson()))
			if err != nil {
				return d, fmt.Errorf("config field %q: its default is not JSON: %w", f.Name, err)
			}
			f.Default = v
		}
		d.Config = append(d.Config, f)
	}
	return d, nil
}

// ConfigToJSON returns cfg as the JSON object of ConfigureRequest.
func ConfigToJSON(cfg walimpls.Config) ([]byte, error) {
	object := make(map[string]any, len(cfg))
	for k, v := range cfg {
		object[k] = plain(v)
	}
	return json.Marshal(object)
}

// ConfigFromJSON is the inverse of ConfigToJSON; no bytes at all mean no keys.
// Integers stay exact.
func ConfigFromJSON(b []byte) (walimpls.Config, error) {
	if len(b) == 0 {
		return walimpls.Config{}, nil
	}
	v, err := decodeJSON(b)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the configuration is %T, want a JSON object", v)
	}
	return walimpls.Config(object), nil
}

// plain writes a duration as text: as a number JSON would not say what it is.
func plain(v any) any {
	if d, ok := v.(time.Duration); ok {
		return d.String()
	}
	return v
}

// decodeJSON decodes one JSON value; a whole number becomes int64 where it fits.
func decodeJSON(b []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return numbers(v), nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, err := v.Float64()
		if err != nil {
			return v.String()
		}
		return f
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	}
	return v
}

// clampInt keeps a 64-bit limit within int, whose size the machine decides.
func clampInt(n int64) int { return int(min(max(n, math.MinInt), math.MaxInt)) }
