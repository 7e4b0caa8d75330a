"""Input of a run: its end position, its dirty ledgers, its scans, and the decision whether a run is needed.

Pure functions of a topic's snapshot and the current manifest. This module opens nothing.
Rules: semantics.md P2 (end position), P3 (input), P11 (nothing new), T1 and T2 (what is due), S3 (minimum lag).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import takewhile

from compactor.run.plan import (
    RemovalScanResult,
    RemovalScanTask,
    RunPlan,
    RunPolicies,
    Sizing,
    Source,
    merged_level_count,
    range_bits,
)
from storage.ledger.chunk_table import RECORD, ChunkTable
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import FENCE_RECORDS, RECORD_BYTES, IndexDirectory
from storage.ledger.manifest import Manifest, Part
from storage.metadata.records import RunState, TopicSnapshot
from storage.model import IndexLocation, LedgerRecord, LogPosition
from storage.objects.interface import StoreLocation
from storage.objects.throttled import RateLimits

_NO_CHANGE = ("start_offset", "table_snapshot_age_ms", "table_snapshots_max")
"""Policies of which a change alone is no reason for a run."""
CHUNK_WEIGHT = 4
"""Memory of a chunk in a phase-one task, in index records."""


def dirty_ledgers(snapshot: TopicSnapshot, policies: RunPolicies, now: int) -> tuple[LedgerRecord, ...]:
    """Return the ledgers after the horizon and before the first message younger than the minimum lag (P2), in order.

    They also end before the first unsealed segment: an import may have appended ledgers after it, and a horizon there
    would skip the segment's messages.
    """
    horizon = snapshot.horizon.offset if snapshot.horizon else -1
    unsealed = min((segment.first_offset for segment in snapshot.segments), default=None)
    after = (
        ledger
        for ledger in snapshot.ledgers
        if ledger.last_offset > horizon and (unsealed is None or ledger.last_offset < unsealed)
    )
    old_enough = now - policies.min_lag_ms
    return tuple(takewhile(lambda ledger: not policies.min_lag_ms or ledger.newest_publish_time <= old_enough, after))


def end_position(snapshot: TopicSnapshot, policies: RunPolicies, now: int) -> LogPosition | None:
    """Return the end of the last dirty ledger (P2), else the horizon; None: nothing to compact, now or ever before."""
    dirty = dirty_ledgers(snapshot, policies, now)
    return LogPosition(dirty[-1].last_offset, dirty[-1].last_message_id) if dirty else snapshot.horizon


def is_unchanged(snapshot: TopicSnapshot, policies: RunPolicies, now: int) -> bool:
    """Return whether no ledger is dirty, and the last run succeeded with the same policies (P11).

    False if that run could not write the topic's table for a reason that may pass. It ignores rows that are due for
    removal by time: see `anything_due`.
    """
    last = snapshot.last_run
    if last is None or last.state != RunState.SUCCESS or last.can_retry_iceberg_table:
        return False
    unimportant = {name: getattr(policies, name) for name in _NO_CHANGE}
    if {"table_format_version": None, **last.policies, **unimportant} != asdict(policies):
        return False
    return not dirty_ledgers(snapshot, policies, now)


def depends_on_time(snapshot: TopicSnapshot, policies: RunPolicies) -> bool:
    """Return whether a row can become due without a new message.

    Policies can do that, and incomplete chunked messages of the last run (P10).
    """
    return (
        policies.key_ttl_ms is not None
        or policies.tombstone_retention_ms > 0
        or policies.tombstones_wait_for_cursors
        or policies.retention_ms is not None
        or policies.start_offset > 0
        or (snapshot.last_run is not None and bool(snapshot.last_run.statistics.get("incomplete_chunks")))
    )


def anything_due(manifest: Manifest, policies: RunPolicies, now: int, cursor_floor: int | None) -> bool:
    """Return whether any row of a compacted ledger is due for removal at `now` (milliseconds).

    Reasons: a value's time to live, a tombstone's retention, the topic's limits, an incomplete message's age (T1, T2,
    C2, P10).
    """
    since = previous_start_offset(manifest)
    scans = (_part_scan_task(0, part, policies, now, cursor_floor, since, reindex=False) for part in manifest.parts)
    if any(scan != RemovalScanTask(0) for scan in scans):
        return True
    too_old = policies.incomplete_removed_to(now)
    return any(
        _limit_if_reached(policies.values_removed_to(now), table.oldest_value) is not None
        or tombstones_due_to(table, policies, now, cursor_floor) is not None
        or _limit_if_reached(too_old, table.oldest_pending) is not None
        for table in manifest.chunks
    )


def previous_start_offset(previous: Manifest | None) -> int:
    """Return the start offset of the run that published a compacted ledger, which has no rows below it."""
    return int(previous.policies.get("start_offset", 0)) if previous is not None else 0


def initial_plan(
    store: StoreLocation,
    snapshot: TopicSnapshot,
    previous: Manifest | None,
    policies: RunPolicies,
    now: int,
    attempt_id: str,
    hasher: KeyHasher,
    cursor_floor: int | None,
    rates: RateLimits,
    concurrent_tasks: int = 1,
) -> RunPlan:
    """Return the plan before scan and sizing, from database and manifest: sources and indexes, oldest first (P3).

    `previous`: the manifest of the previous compacted ledger; None: there is none. For the others see RunPlan.
    """
    topic = snapshot.topic
    dirty = _ledgers_from(topic.start_offset, dirty_ledgers(snapshot, policies, now))
    parts = previous.parts if previous else ()
    return RunPlan(
        store=store,
        topic_uid=topic.uid,
        partition=topic.name.partition,
        attempt_id=attempt_id,
        policies=policies,
        now=now,
        hasher=hasher,
        sources=(*map(_part_source, parts), *(_ledger_source(ledger, topic.start_offset) for ledger in dirty)),
        old_parts=len(parts),
        indexes=tuple(ledger.index for ledger in dirty),
        levels=previous.index if previous else (),
        chunk_tables=previous.chunks if previous else (),
        cursor_floor=cursor_floor,
        raw_from=topic.start_offset,
        rates=rates,
        concurrent_tasks=concurrent_tasks,
    )


def lacks_event_times(previous: Manifest | None, policies: RunPolicies) -> bool:
    """Return whether the index of old parts lacks the event times that the policies need (P9)."""
    return previous is not None and policies.event_time_order and not previous.policies.get("event_time_order")


def scan_tasks(plan: RunPlan, previous: Manifest | None, dirty: Sequence[LedgerRecord]) -> tuple[RemovalScanTask, ...]:
    """Return the scans: for due rows, a change of order, or a ledger with the topic's start inside; usually none."""
    reindex, start = lacks_event_times(previous, plan.policies), previous_start_offset(previous)
    candidates = [
        _part_scan_task(number, part, plan.policies, plan.now, plan.cursor_floor, start, reindex=reindex)
        for number, part in enumerate(previous.parts if previous else ())
    ]
    candidates += [
        _ledger_scan_task(number, ledger, plan.policies, plan.now, plan.raw_from)
        for number, ledger in enumerate(_ledgers_from(plan.raw_from, dirty), plan.old_parts)
    ]
    return tuple(scan for scan in candidates if scan != RemovalScanTask(scan.source))


def with_scan_results(plan: RunPlan, results: Sequence[RemovalScanResult], *, reindexed: bool) -> RunPlan:
    """Return the plan with the results of the scans.

    Markers precede the dirty indexes; rebuilt indexes replace those of ledgers with the topic's start inside, and, if
    `reindexed`, the levels of old parts.
    """
    due = tuple(result.removal_markers for result in results if result.removal_markers is not None)
    expired = tuple((result.source, result.expired) for result in results if result.expired is not None)
    removed = tuple((result.source, result.removed) for result in results if result.removed is not None)
    rebuilt = {result.source: result.index for result in results if result.index is not None}
    indexes = tuple(rebuilt.get(source, index) for source, index in enumerate(plan.indexes, plan.old_parts))
    levels = plan.levels
    if reindexed:
        levels = (tuple(index for source, index in rebuilt.items() if source < plan.old_parts),)
    return replace(plan, indexes=due + indexes, expired=expired, removed=removed, levels=levels, reindexed=reindexed)


def with_sizing(plan: RunPlan, previous: Manifest | None, sizing: Sizing, *, reindexed: bool) -> RunPlan:
    """Return the plan with the number of its hash ranges and of the levels that it merges."""
    dirty_indexes = plan.indexes[len(plan.indexes) - (len(plan.sources) - plan.old_parts) :]
    merged = merged_level_count(_level_weight(plan.indexes), [_level_weight(level) for level in plan.levels])
    unkeyed_removed = any(source < plan.old_parts for source, _ in plan.removed)
    if reindexed or unkeyed_removed or (not plan.policies.retain_null_key and _has_null_keys(plan.levels)):
        # a rebuilt level has an index per part; removed rows outside the key map may be in any level
        merged = len(plan.levels)
    dirty = _record_count(plan.indexes)
    records = dirty + sum(map(_record_count, plan.levels[:merged]))
    for level in plan.levels[merged:]:  # a task reads at most the fences of its dirty keys
        records += min(_record_count(level), dirty * FENCE_RECORDS)
    # Rows outside the key map have no record, but need the same memory.
    unkeyed = sum(
        source.messages
        for source, index in zip(plan.sources[plan.old_parts :], dirty_indexes, strict=True)
        if any(_decode_directory(index).unkeyed_sizes.values())
    )
    if previous is not None and any(map(_has_unkeyed, plan.levels[:merged])):
        unkeyed += previous.messages - previous.keys - previous.tombstones
    records = max(records, unkeyed) + CHUNK_WEIGHT * _chunk_count(plan)
    return replace(plan, merged=merged, range_bits=range_bits(records, sizing))


INDEX_MEMORY = 4.0
"""Bytes of memory for each byte of index that phase one reads and writes: 80 for a record of about 20."""


def range_costs(plan: RunPlan) -> list[float]:
    """Return the approximate bytes of index that each hash range reads and writes."""
    dirty = sum(location.length for location in plan.indexes)
    old = sum(location.length for level in plan.levels for location in level)
    return [(2 * dirty + old) / len(plan.ranges)] * len(plan.ranges)


def _part_scan_task(
    number: int,
    part: Part,
    policies: RunPolicies,
    now: int,
    cursor_floor: int | None,
    previous_start: int,
    *,
    reindex: bool,
) -> RemovalScanTask:
    """Return the scan of an old part; without any removal if no row is due.

    `previous_start`: the start offset of the previous run, whose ledger has no rows below it.
    """
    values_to = _limit_if_reached(policies.values_removed_to(now), part.oldest_value)
    tombstones_to = tombstones_due_to(part, policies, now, cursor_floor)
    oldest = part.min_publish_time if part.oldest_row is None else part.oldest_row
    rows_to = _limit_if_reached(policies.rows_removed_to(now), oldest)
    start = policies.start_offset
    rows_below = start if start > previous_start and part.first.offset < start else 0
    return RemovalScanTask(number, reindex, values_to, tombstones_to, rows_to, rows_below)


def _ledger_scan_task(
    number: int, ledger: LedgerRecord, policies: RunPolicies, now: int, raw_from: int
) -> RemovalScanTask:
    """Return the scan of a dirty ledger; without any removal if no row is due."""
    values_to = _limit_if_reached(policies.values_removed_to(now), ledger.min_publish_time)
    rows_to = _limit_if_reached(policies.rows_removed_to(now), ledger.min_publish_time)
    rows_below = policies.start_offset if max(ledger.first_offset, raw_from) < policies.start_offset else 0
    reindex = ledger.first_offset < raw_from
    return RemovalScanTask(number, reindex, values_to=values_to, rows_to=rows_to, rows_below=rows_below)


def _limit_if_reached(limit: int | None, oldest: int | None) -> int | None:
    """Return the limit if the oldest row, if any, is that old, else None."""
    return limit if limit is not None and oldest is not None and oldest <= limit else None


def tombstones_due_to(
    bounds: Part | ChunkTable, policies: RunPolicies, now: int, cursor_floor: int | None
) -> int | None:
    """Return the `retained_at` up to which tombstones are due for removal (T1); None: no tombstone is due.

    `bounds`: has the lower bounds of the tombstones' times and offsets.
    """
    if bounds.oldest_tombstone is None or bounds.first_tombstone is None:
        return None
    # `retained_at` rises with the offset: if the first tombstone is not due, none is.
    limit = now - policies.tombstone_retention_ms
    passed = cursor_floor is None or cursor_floor >= bounds.first_tombstone
    return limit if bounds.oldest_tombstone <= limit and passed else None


def _part_source(part: Part) -> Source:
    return Source(part.rows, part.first.offset, part.last.offset, part.live, part.deleted, part.offset_sum)


def _ledger_source(ledger: LedgerRecord, raw_from: int) -> Source:
    rows_object = ledger.rows_object
    if ledger.first_offset >= raw_from:
        return Source(rows_object, ledger.first_offset, ledger.last_offset, ledger.messages)
    remaining = min(
        ledger.messages, ledger.last_offset - raw_from + 1
    )  # an upper bound: offsets lost in the log have no rows
    return Source(rows_object, raw_from, ledger.last_offset, remaining)


def _ledgers_from(raw_from: int, ledgers: Sequence[LedgerRecord]) -> tuple[LedgerRecord, ...]:
    """Return the ledgers with rows at or after the topic's start. Rows below it are trimmed."""
    return tuple(ledger for ledger in ledgers if ledger.last_offset >= raw_from)


def _decode_directory(location: IndexLocation) -> IndexDirectory:
    return IndexDirectory.decode(location.directory, location.name)


def _level_weight(level: Sequence[IndexLocation]) -> int:
    """Return the number of records of a level plus the size of its unkeyed rows, in records."""
    directories = [_decode_directory(location) for location in level]
    unkeyed = sum(sum(directory.unkeyed_sizes.values()) for directory in directories)
    return sum(directory.record_count for directory in directories) + -(-unkeyed // RECORD_BYTES)


def _record_count(level: Sequence[IndexLocation]) -> int:
    return sum(_decode_directory(location).record_count for location in level)


def _has_unkeyed(level: Sequence[IndexLocation]) -> bool:
    return any(any(_decode_directory(location).unkeyed_sizes.values()) for location in level)


def _chunk_count(plan: RunPlan) -> int:
    """Return the number of chunks of the dirty ledgers and of the previous compacted ledger."""
    tables = [_decode_directory(location).chunk_table for location in plan.indexes]
    dirty = sum(table[0] // RECORD.itemsize for table in tables if table is not None)
    return dirty + sum(table.record_count for table in plan.chunk_tables)


def _has_null_keys(levels: Sequence[Sequence[IndexLocation]]) -> bool:
    return any(_decode_directory(location).unkeyed_sizes["null_keys"] for level in levels for location in level)
