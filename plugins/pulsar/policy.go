package pulsar

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/walrig/walrig/sdk/walimpls"
)

// policy is one namespace policy that the logs rely on.
type policy struct {
	// field is where the namespace's description shows it.
	field string
	// path and query are where it is set.
	path, query string
	want        any
	// sub is the part of the field that counts, "" for all of it.
	sub string
}

// policies are what keeps Pulsar from removing what was not truncated, from
// storing anything twice, and from making topics that nobody asked for.
var policies = []policy{
	// With the cursor alone holding the data, a truncated ledger really goes.
	{field: "retention_policies", path: "retention", want: map[string]any{"retentionTimeInMinutes": 0.0, "retentionSizeInMB": 0.0}},
	// These would move or delete the cursor, and the data with it.
	{field: "message_ttl_in_seconds", path: "messageTTL", want: 0.0},
	{field: "subscription_expiration_time_minutes", path: "subscriptionExpirationTime", want: 0.0},
	{field: "backlog_quota_map", sub: "destination_storage", path: "backlogQuota", query: "backlogQuotaType=destination_storage",
		want: map[string]any{"limitSize": -1.0, "limitTime": -1.0, "policy": "producer_request_hold"}},
	{field: "backlog_quota_map", sub: "message_age", path: "backlogQuota", query: "backlogQuotaType=message_age",
		want: map[string]any{"limitSize": -1.0, "limitTime": -1.0, "policy": "producer_request_hold"}},
	{field: "inactive_topic_policies", path: "inactiveTopicPolicies",
		want: map[string]any{"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 86400.0, "deleteWhileInactive": false}},
	{field: "deduplicationEnabled", path: "deduplication", want: true},
	// Deduplication has a cursor of its own that holds data until its snapshot.
	{field: "deduplicationSnapshotIntervalSeconds", path: "deduplicationSnapshotInterval", want: 10.0},
	// A reader of a log that was dropped must not bring it back.
	{field: "autoTopicCreationOverride", path: "autoTopicCreation", want: map[string]any{"allowAutoTopicCreation": false}},
}

// holds reports whether the value in the namespace's description is the wanted one.
func (p *policy) holds(have any) bool {
	if p.sub != "" {
		all, _ := have.(map[string]any)
		have = all[p.sub]
	}
	want, isObject := p.want.(map[string]any)
	if !isObject {
		return have == p.want
	}
	object, ok := have.(map[string]any)
	if !ok {
		return false
	}
	for k, v := range want {
		if object[k] != v {
			return false
		}
	}
	return true
}

// ensureNamespace makes the namespace and sets the policies that differ. It
// writes nothing if everything is as it should be.
func (a *admin) ensureNamespace(ctx context.Context) error {
	r, err := a.call(ctx, http.MethodGet, a.namespacePath(), "", nil)
	if errors.Is(err, errMissing) {
		made, createErr := a.call(ctx, http.MethodPut, a.namespacePath(), "", map[string]any{})
		if !made.ok(createErr, http.StatusConflict) {
			if errors.Is(createErr, errMissing) {
				e := walimpls.Errorf(walimpls.CodeNotFound, "", "namespace %s/%s: %w", a.settings.tenant, a.settings.namespace, createErr)
				e.Hint = "create the tenant, or name another with the key tenant"
				return e
			}
			return createErr
		}
		r, err = a.call(ctx, http.MethodGet, a.namespacePath(), "", nil)
	}
	if err != nil {
		return err
	}
	var have map[string]any
	if err := json.Unmarshal(r.body, &have); err != nil {
		return unavailable("", "the namespace's policies", err)
	}
	for i := range policies {
		p := &policies[i]
		if p.holds(have[p.field]) {
			continue
		}
		if _, err := a.call(ctx, http.MethodPost, a.namespacePath(p.path), p.query, p.want); err != nil {
			return err
		}
	}
	return nil
}
