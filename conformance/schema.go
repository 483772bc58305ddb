package conformance

import (
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// RenderSchema returns the JSON schema of a report, report.schema.json. It is made
// from the types, so it cannot differ from what WriteJSON writes.
func RenderSchema() string {
	root := schemaOf(reflect.TypeFor[Report]())
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["$id"] = reportSchemaName
	root["title"] = "walrig conformance report"
	text, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // maps of strings always marshal
	}
	return string(text) + "\n"
}

var enums = map[reflect.Type][]string{
	reflect.TypeFor[Verdict](): {string(Pass), string(Fail), string(Waived), string(NotClaimed), string(NotRun)},
	reflect.TypeFor[State]():   {string(Reached), string(NotReached), string(LevelNotClaimed), string(LevelIncomplete)},
	reflect.TypeFor[Result]():  {string(ResultPass), string(ResultIncomplete), string(ResultFail)},
}

func schemaOf(t reflect.Type) map[string]any {
	if values, ok := enums[t]; ok {
		return map[string]any{"type": "string", "enum": values}
	}
	if t == reflect.TypeFor[time.Time]() {
		return map[string]any{"type": "string", "format": "date-time"}
	}
	switch t.Kind() {
	case reflect.Struct:
		properties, required := map[string]any{}, []string{}
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if !f.IsExported() || name == "" {
				continue
			}
			properties[name] = schemaOf(f.Type)
			required = append(required, name)
		}
		// Fields are added in later versions; a reader must let them pass.
		return map[string]any{"type": "object", "properties": properties, "required": required}
	case reflect.Pointer:
		return map[string]any{"anyOf": []any{schemaOf(t.Elem()), map[string]any{"type": "null"}}}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.String:
		return map[string]any{"type": "string"}
	}
	return map[string]any{"type": "integer"}
}
