"""Policies of a run (plan.py), derived at its claim from the topic's stored policies (storage/options/policies.py).

Under `compact,delete` the retention time and the topic's start offset also apply to compacted rows (C2), so they are
policies of the run. Under any other cleanup policy they are not. This module must not know how policies are set, and
how runs apply them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from compactor.run.plan import RunPolicies
from storage.errors import InvalidInput
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.options.policies import NO_RUN, POLICIES, TopicPolicies, policy
from storage.options.resolution import PolicyOrigin

POLICY_OF: Mapping[str, str] = MappingProxyType(
    {
        "retain_null_key": "compaction.retain-null-key",
        "tombstone_retention_ms": "delete.retention.ms",
        "tombstones_wait_for_cursors": "compaction.tombstones-wait-for-cursors",
        "key_ttl_ms": "compaction.key-ttl.ms",
        "min_lag_ms": "min.compaction.lag.ms",
        "event_time_order": "compaction.event-time-order",
        "event_time_max_lateness_ms": "compaction.event-time-max-lateness.ms",
        "incomplete_chunk_max_age_ms": "compaction.chunk-expiry.ms",
        "table_snapshot_age_ms": "table.snapshot.age.ms",
        "table_snapshots_max": "table.snapshots.max",
    }
)
"""The name of the topic's policy, by the name of the run's policy (a field of RunPolicies)."""


def run_policies(policies: TopicPolicies, start_offset: int = 0) -> RunPolicies:
    """Return the policies of a run, from the topic's policies and its start offset."""
    values: dict[str, Any] = {name: getattr(policies, policy(stored).attribute) for name, stored in POLICY_OF.items()}
    if policies.cleanup_policy >= {"compact", "delete"}:
        values |= {"retention_ms": policies.retention_ms_effective, "start_offset": start_offset}
    if policies.table_enabled:
        values["table_format_version"] = policies.table_format_version
    return RunPolicies(**values)


def run_policies_from_stored(
    metadata: MetadataStore, topic: TopicRecord, replaced_later: Collection[str] = ()
) -> RunPolicies:
    """Return the policies of a run of the topic that begins now, from the stored policies.

    `replaced_later`: fields of RunPolicies that the caller replaces afterwards; their stored values may be unreadable.

    Raises InvalidInput for an unreadable stored value without which a run may choose the wrong messages.
    """
    resolved = metadata.policies.resolve_policies(topic)
    replaced = {POLICY_OF[name] for name in replaced_later}
    for name, unreadable in resolved.unreadable.items():
        if POLICIES[name].fallback is NO_RUN and name not in replaced:
            raise InvalidInput(
                f"{topic.name} cannot be compacted: the policy {name} of its {unreadable.origin} cannot be read "
                f"({unreadable.stored.reason}), and without it a run may choose the wrong messages",
                "set that policy again, or remove it",
            )
    return run_policies(resolved.policies, topic.start_offset)


def names_of_differing_overrides(
    metadata: MetadataStore, topic: TopicRecord, overrides: Mapping[str, object]
) -> list[str]:
    """Return the names in `overrides` (fields of RunPolicies) whose value differs from a policy that the topic, its
    namespace or the broker sets."""
    resolved = metadata.policies.resolve_policies(topic)
    stored = asdict(run_policies(resolved.policies))
    return [
        name
        for name, value in overrides.items()
        if stored[name] != value and resolved.origins[POLICY_OF[name]] is not PolicyOrigin.DEFAULT
    ]
