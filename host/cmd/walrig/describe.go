package main

import (
	"fmt"
	"strings"

	"github.com/walrig/walrig/sdk/walimpls"
)

// description is the JSON form of a backend's description.
type description struct {
	Backend      string           `json:"backend"`
	Version      string           `json:"version"`
	IDLayout     string           `json:"id_layout"`
	Capabilities capabilitiesJSON `json:"capabilities"`
	Limits       limitsJSON       `json:"limits"`
	Config       []fieldJSON      `json:"config"`
}

type capabilitiesJSON struct {
	Fencing        string `json:"fencing"`
	Durability     string `json:"durability"`
	Truncation     string `json:"truncation"`
	Drop           bool   `json:"drop"`
	ReadOnly       bool   `json:"read_only"`
	ExclusiveStore bool   `json:"exclusive_store"`
}

type limitsJSON struct {
	MaxMessageBytes int64 `json:"max_message_bytes"`
	MaxBatchRecords int64 `json:"max_batch_records"`
	MaxBatchBytes   int64 `json:"max_batch_bytes"`
}

type fieldJSON struct {
	Name     string   `json:"name"`
	Type     string   `json:"type"`
	Default  any      `json:"default"`
	Doc      string   `json:"doc"`
	Required bool     `json:"required"`
	Secret   bool     `json:"secret"`
	OneOf    []string `json:"one_of"`
}

func toDescription(d walimpls.Description) description {
	c := d.Capabilities
	return description{
		Backend: d.Backend, Version: d.Version, IDLayout: string(d.IDLayout),
		Capabilities: capabilitiesJSON{string(c.Fencing), string(c.Durability), string(c.Truncation), c.Drop, c.ReadOnly, c.ExclusiveStore},
		Limits:       limitsJSON{int64(d.Limits.MaxMessageBytes), int64(d.Limits.MaxBatchRecords), int64(d.Limits.MaxBatchBytes)},
		Config: convert(d.Config, func(f walimpls.ConfigField) fieldJSON {
			return fieldJSON{f.Name, string(f.Type), f.Default, f.Doc, f.Required, f.Secret, f.OneOf}
		}),
	}
}

// printDescription shows a plugin and what its backend is. With a verb the text
// form is the one line that says that it was verified.
func (a *app) printDescription(verb string, plugin pluginJSON, desc description) error {
	o := a.out()
	if a.output == outputJSON {
		return o.json(struct {
			pluginJSON
			Description description `json:"description"`
		}{plugin, desc})
	}
	if verb != "" {
		return o.printf("%s %s: backend %s %s, protocol %s, sha256 %s\n", verb, plugin.Name, desc.Backend, desc.Version, shown(plugin.Protocol), shown(plugin.SHA256))
	}
	c, l := desc.Capabilities, desc.Limits
	if err := o.table([]string{"plugin", plugin.Name}, [][]string{
		{"backend", desc.Backend}, {"version", desc.Version}, {"path", shown(plugin.Path)}, {"sha256", shown(plugin.SHA256)},
		{"id layout", desc.IDLayout}, {"fencing", c.Fencing}, {"durability", c.Durability}, {"truncation", c.Truncation},
		{"drop", yesNo(c.Drop)}, {"read-only opens", yesNo(c.ReadOnly)}, {"one process only", yesNo(c.ExclusiveStore)},
		{"largest record", bytesText(l.MaxMessageBytes)},
		{"largest batch", fmt.Sprintf("%s, %s", countText(l.MaxBatchRecords, "record"), bytesText(l.MaxBatchBytes))},
	}); err != nil {
		return err
	}
	if len(desc.Config) == 0 {
		return nil
	}
	rows := convert(desc.Config, func(f fieldJSON) []string {
		def := ""
		switch {
		case f.Required:
			def = "required"
		case f.Default != nil:
			def = fmt.Sprint(f.Default)
		}
		typ := f.Type
		if len(f.OneOf) > 0 {
			typ = strings.Join(f.OneOf, "|")
		}
		if f.Secret {
			typ += ", secret"
		}
		return []string{f.Name, typ, def, f.Doc}
	})
	if err := o.printf("\n"); err != nil {
		return err
	}
	return o.table([]string{"KEY", "TYPE", "DEFAULT", "MEANING"}, rows)
}

func shown[T any](v *T) string {
	if v == nil {
		return ""
	}
	return fmt.Sprint(*v)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
