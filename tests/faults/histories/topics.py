"""The topics of the histories. Each has a namespace of its own name, which keeps its policies over all incarnations."""

from __future__ import annotations

from tests.faults.engine.history import Traits

DELETE_DELAY_MS = 1_000
_COMPACT, _BOTH = ["compact"], ["compact", "delete"]

BROKER_POLICIES: dict[str, object] = {
    "segment.bytes": 16_384,
    "segment.ms": 5_000,
    "file.delete.delay.ms": DELETE_DELAY_MS,
    "compaction.threshold.messages": 80,
}
"""Policies of all topics. Their segments are small, so that a round rolls, seals, compacts and trims many."""

TOPICS: dict[str, Traits] = {
    "kept": Traits(
        {"compaction.threshold.messages": 150},
        ("exclusive", "failover", "shared", "key-shared", "batch-index", "receipts", "shared-receipts"),
        readers=("compacted", "raw"),
    ),
    "asked": Traits({"compaction.threshold.messages": 0, "delete.retention.ms": 5_000}, ("receipts",)),
    "deduplicated": Traits(
        {"deduplication.enabled": True}, ("exclusive", "shared", "receipts"), readers=("compacted", "raw")
    ),
    "compacted": Traits(
        {"cleanup.policy": _COMPACT, "delete.retention.ms": 2_000},
        ("exclusive", "receipts", "compacted"),
        readers=("compacted", "raw"),
    ),
    "by-hand": Traits({"cleanup.policy": _COMPACT, "compaction.threshold.messages": 0}),
    "deduplicated-compacted": Traits({"cleanup.policy": _COMPACT, "deduplication.enabled": True}),
    "event-time": Traits({"compaction.event-time-order": True}),
    "partitioned": Traits({}, ("shared", "failover"), partitions=2, readers=()),
    "both": Traits({"cleanup.policy": _BOTH, "compaction.threshold.messages": 100}),
    "expiring": Traits({"cleanup.policy": _BOTH, "retention.ms": 15_000, "retention.bytes": 200_000}),
    "deleted": Traits({"cleanup.policy": ["delete"], "retention.bytes": 20_000}),
    "changing": Traits({}, changing=True),
}
