"""Verify, metadata stage: compare the rows of the database with each other and with the manifest.

No other stage compares them. Pure: rows and manifest in, differences out. Of the indexes only the directories, which
the manifest holds, are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from compactor.verify.findings import Difference, DifferenceKind, Findings
from storage.ledger.key_index import IndexDirectory
from storage.ledger.manifest import Manifest
from storage.metadata.records import (
    COMPACTED_LEDGER_PROPERTY,
    CompactedLedgerRecord,
    RunRecord,
    RunState,
    TopicSnapshot,
)


def check_metadata(
    snapshot: TopicSnapshot, manifest: Manifest | None, runs: Sequence[RunRecord], findings: Findings
) -> None:
    """Add the differences among the rows of the database and the manifest; None: it is absent or unreadable."""
    _check_ledger_sequence(snapshot, findings)
    if snapshot.compacted is not None:
        _check_compacted_ledger(snapshot, snapshot.compacted, findings)
        if manifest is not None:
            _check_manifest(snapshot, snapshot.compacted, manifest, runs, findings)


def _check_ledger_sequence(snapshot: TopicSnapshot, findings: Findings) -> None:
    """Check that ledgers and rolled segments ascend and end at the topic's next offset."""
    for before, after in pairwise(snapshot.ledgers):
        if before.last_offset >= after.first_offset or before.ledger_id >= after.ledger_id:
            what = f"it does not follow ledger {before.ledger_id}"
            findings.add_inconsistency(f"row of ledger {after.ledger_id}", what)
    rolled = [segment.content.last_offset for segment in snapshot.segments if segment.content is not None]
    ends = {ledger.last_offset for ledger in snapshot.ledgers}.union(rolled)
    if ends and max(ends) + 1 != snapshot.topic.next_offset:
        what = f"its ledgers and rolled segments end at {max(ends)}"
        findings.add_inconsistency("row of the topic", f"next_offset is {snapshot.topic.next_offset}, {what}")


def _check_compacted_ledger(snapshot: TopicSnapshot, compacted: CompactedLedgerRecord, findings: Findings) -> None:
    """Compare the row of the compacted ledger with topic, cursor and ledgers."""
    topic, cursor = snapshot.topic, snapshot.cursor
    where, horizon = f"row of compacted ledger {compacted.ledger_id}", compacted.horizon
    findings.compare(where, {"generation": compacted.generation}, {"generation": topic.generation})
    findings.compare(
        "cursor __compaction",
        {
            "mark_delete": cursor and cursor.mark_delete,
            COMPACTED_LEDGER_PROPERTY: cursor.properties.get(COMPACTED_LEDGER_PROPERTY) if cursor else None,
        },
        {"mark_delete": horizon, COMPACTED_LEDGER_PROPERTY: str(compacted.ledger_id)},
    )
    for ledger in snapshot.ledgers:
        if ledger.first_offset <= horizon.offset < ledger.last_offset:
            findings.add_inconsistency(where, f"the horizon {horizon.offset} is inside ledger {ledger.ledger_id}")
        if ledger.last_offset == horizon.offset:
            findings.compare(where, {"horizon": horizon.message_id}, {"horizon": ledger.last_message_id})
    required = max(horizon.offset + 1, topic.start_offset)
    after = (extent.first_offset for extent in snapshot.extents if extent.first_offset > horizon.offset)
    following = min(after, default=topic.next_offset)
    if following > required:
        what = f"offsets {required} to {following - 1}, after the horizon, are in no ledger and no segment"
        findings.add(Difference(DifferenceKind.MISSING, "rows of ledgers", what))


def _check_manifest(
    snapshot: TopicSnapshot,
    compacted: CompactedLedgerRecord,
    manifest: Manifest,
    runs: Sequence[RunRecord],
    findings: Findings,
) -> None:
    """Compare the manifest with its row, topic and run, and the indexes of each level with each other."""
    topic, name = snapshot.topic, compacted.manifest.name
    common = ("ledger_id", "generation", "horizon", "messages", "logical_bytes", "stored_bytes")
    recorded, written = ({field: getattr(record, field) for field in common} for record in (compacted, manifest))
    recorded["table_metadata"] = compacted.table_metadata
    written["table_metadata"] = manifest.table.metadata if manifest.table else None
    findings.compare(f"row of compacted ledger {compacted.ledger_id}", recorded, written)
    recorded = {"topic": manifest.topic, "topic_uid": manifest.topic_uid}
    findings.compare(name, recorded, {"topic": str(topic.name), "topic_uid": topic.uid})
    if manifest.dropped_to > manifest.horizon.offset:
        findings.add_inconsistency(name, f"dropped_to {manifest.dropped_to} is above the horizon")
    run = next((run for run in runs if run.run_id == manifest.run_id), None)
    if run is None:
        findings.add_inconsistency(name, f"run {manifest.run_id}, which published it, is not in the database")
    else:
        recorded = {"frozen_at": manifest.frozen_at, "policies": dict(manifest.policies)}
        findings.compare(name, recorded, {"frozen_at": run.started_at, "policies": dict(run.policies)})
        result = {"result": (run.state, run.compacted_ledger_id, run.horizon)}
        expected = {"result": (RunState.SUCCESS, manifest.ledger_id, manifest.horizon)}
        findings.compare(f"row of run {run.run_id}", result, expected)
    for number, level in enumerate(manifest.index):
        with findings.record_damage(name):
            ranges = [IndexDirectory.decode(location.directory, location.name).hash_range for location in level]
            ends = [(each.prefix << (32 - each.bits), (each.prefix + 1) << (32 - each.bits)) for each in ranges]
            if any(before[1] > after[0] for before, after in pairwise(ends)):
                findings.add_inconsistency(name, f"the indexes of level {number} overlap or do not ascend")
