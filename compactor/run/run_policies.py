"""The policies of a run (plan.py), frozen at its claim, from the topic's stored ones (storage/options/policies.py).

A run's policies are those of the moment of its claim. Two things are not policies of themselves: under
`compact,delete` the retention time and the topic's start offset hold for compacted rows, too (C2), so they belong
to the run; under any other cleanup policy they are not. Pure. Must not know: who sets policies, what runs do with them.
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
    }
)
"""The topic's policy that each policy of a run is, by its name."""


def run_policies(policies: TopicPolicies, start_offset: int = 0) -> RunPolicies:
    """The policies of a run of a topic that has these, and begins at this offset."""
    values: dict[str, Any] = {name: getattr(policies, policy(stored).attribute) for name, stored in POLICY_OF.items()}
    if policies.cleanup_policy >= {"compact", "delete"}:
        values |= {"retention_ms": policies.retention_ms_effective, "start_offset": start_offset}
    return RunPolicies(**values)


def stored_policies(metadata: MetadataStore, topic: TopicRecord, given: Collection[str] = ()) -> RunPolicies:
    """The policies of a run of the topic that begins now. `given`: those of a run that come from elsewhere.

    Raises InvalidInput for a stored value that cannot be read, and without which a run may choose the wrong messages.
    """
    resolved = metadata.policies.resolved(topic)
    elsewhere = {POLICY_OF[name] for name in given}
    for name, one in resolved.unreadable.items():
        if POLICIES[name].unreadable is NO_RUN and name not in elsewhere:
            raise InvalidInput(
                f"{topic.name} cannot be compacted: the policy {name} of its {one.origin} cannot be read "
                f"({one.stored.reason}), and without it a run may choose the wrong messages",
                "set that policy again, or remove it",
            )
    return run_policies(resolved.policies, topic.start_offset)


def overridden(metadata: MetadataStore, topic: TopicRecord, given: Mapping[str, object]) -> list[str]:
    """Those of the given policies of a run that have another value in a policy of the topic or around it."""
    resolved = metadata.policies.resolved(topic)
    stored = asdict(run_policies(resolved.policies))
    return [
        name
        for name, value in given.items()
        if stored[name] != value and resolved.origins[POLICY_OF[name]] is not PolicyOrigin.DEFAULT
    ]
