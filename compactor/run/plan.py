"""Plan of a run, its tasks and their results: values that travel to every task.

A *source* has rows: a part of the previous compacted ledger, or a sealed ledger after the horizon. Sources ascend by
offset and do not overlap, so an offset names its source. A *row set* holds offsets of one source: the surviving rows of
a ledger, or the superseded rows of an old part. Row sets and the previous totals of the parts give the totals that
phase one expects and phase two must reach.

The sizing of phase one is here too, as pure functions; `layout.py` decides which parts are kept, merged and divided.
Nothing in a plan is per key or per message: it grows with the ledgers, their fences, the parts and the tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from storage.ledger.chunk_table import ChunkTable
from storage.ledger.hashing import KeyHasher
from storage.ledger.key_index import HashRange
from storage.ledger.manifest import DeletedRows, Part
from storage.model import IndexLocation, MessageId, RowsObject
from storage.objects.interface import StoreLocation
from storage.objects.throttled import RateLimits

RANGE_RECORDS = 8_000_000
"""Maximum number of index records of one phase-one task: about 640 MiB of memory."""
SMALL_RANGE_RECORDS = 100_000
"""Minimum number of records per task: below it a second task costs more than it saves."""
PART_BYTES = 128 << 20
"""Approximate maximum size of a part, in stored bytes."""
PART_ROWS = 4_000_000
"""Maximum number of rows of a part, whatever their size: phase two holds up to 32 bytes per surviving offset."""
SMALL_PART_BYTES = 8 << 20
"""Minimum cost of a part in bytes: below it a second part costs more than it saves."""


LEVEL_RATIO = 2
"""A level of the index is merged if it has fewer than this many times the records of all newer levels."""
DAY_MS = 86_400_000


@dataclass(frozen=True)
class RunPolicies:
    """Policies of a run, frozen at its claim; retries reuse them. Times in milliseconds.

    `retain_null_key`: keep messages without a key (P6). `tombstone_retention_ms`: retention of a winning tombstone in
    the compacted ledger, from the first run that kept it (T1). `tombstones_wait_for_cursors`: also retain a tombstone
    until the slowest compacted cursor has passed it. `key_ttl_ms`: age of the publish time at which a value is removed
    (T2). `incomplete_chunk_max_age_ms`: age of the newest chunk at which an incomplete message is removed; None: never
    (P10). `min_lag_ms`: minimum age of a message for compaction (P2, S3). `event_time_order`: the largest event time
    wins, not the newest id (P9); then removed messages stay in the index for `event_time_max_lateness_ms`.

    Only for `compact,delete` (C2): `retention_ms`: age of the publish time at which any row is removed: value,
    tombstone, or row without a key. `start_offset`: every row below it is removed; raising it alone is no change of
    policy.

    `table_format_version`: Iceberg's version of the topic's table; None: it has none. `table_snapshot_age_ms`,
    `table_snapshots_max`: limits of the older snapshots that the table lists; a change of them alone is none of policy.
    """

    retain_null_key: bool = False
    tombstone_retention_ms: int = 0
    tombstones_wait_for_cursors: bool = False
    key_ttl_ms: int | None = None
    min_lag_ms: int = 0
    event_time_order: bool = False
    event_time_max_lateness_ms: int = 7 * DAY_MS
    incomplete_chunk_max_age_ms: int | None = DAY_MS
    retention_ms: int | None = None
    start_offset: int = 0
    table_format_version: int | None = None
    table_snapshot_age_ms: int = DAY_MS
    table_snapshots_max: int = 10

    def values_removed_to(self, now: int) -> int | None:
        """Return the publish time up to which values are removed at `now` (T2); None: none is."""
        return None if self.key_ttl_ms is None else now - self.key_ttl_ms

    def incomplete_removed_to(self, now: int) -> int | None:
        """Return the publish time up to which incomplete messages are removed at `now`; None: none is."""
        return None if self.incomplete_chunk_max_age_ms is None else now - self.incomplete_chunk_max_age_ms

    def rows_removed_to(self, now: int) -> int | None:
        """Return the publish time up to which every row is removed at `now`; None: none is."""
        return None if self.retention_ms is None else now - self.retention_ms - 1


@dataclass(frozen=True)
class Sizing:
    """Sizes of the tasks and parts of a run. `parallelism`: number of tasks that can run concurrently.

    `max_garbage_ratio`: a part with a larger share of deleted rows is rewritten. `topics_per_job`: number of topics
    that share a Spark job.
    """

    parallelism: int
    range_records: int = RANGE_RECORDS
    part_bytes: int = PART_BYTES
    part_rows: int = PART_ROWS
    small_range_records: int = SMALL_RANGE_RECORDS
    small_part_bytes: int = SMALL_PART_BYTES
    max_garbage_ratio: float = 0.5
    topics_per_job: int = 1000


@dataclass(frozen=True)
class Source:
    """A sealed ledger from the topic's start on, or a part of the previous compacted ledger. Offsets are inclusive.

    For a part, `messages` and `offset_sum` are the totals without the `deleted` rows.
    """

    rows: RowsObject
    first_offset: int
    last_offset: int
    messages: int
    deleted: DeletedRows | None = None
    offset_sum: int = 0


@dataclass(frozen=True)
class RunPlan:
    """Input of every task of a run.

    `sources`: in ascending order; the first `old_parts` are parts of the previous compacted ledger, the others dirty
    ledgers. `indexes`: of the rows of old parts that are due for removal, as markers; then of the dirty ledgers, oldest
    first. `expired`: per dirty source, the rows whose time to live is over. `removed`: per source, the rows that the
    topic's limits remove (C2): of a dirty source all, of an old part those outside the key map. `levels`: the previous
    compacted index, newest first; the first `merged` of them are merged with the new level. `reindexed`: the levels
    were rebuilt from rows. `chunk_tables`: of the previous compacted ledger. `now`: time at which policies apply.
    `cursor_floor`: tombstones above this offset wait for a cursor (T1); None: none waits. `raw_from`: the topic's start
    in the snapshot; rows of dirty ledgers below it are trimmed. `rates`: limits of the run, which `concurrent_tasks`
    share.
    """

    store: StoreLocation
    topic_uid: str
    partition: int
    attempt_id: str
    policies: RunPolicies
    now: int
    hasher: KeyHasher
    sources: tuple[Source, ...]
    old_parts: int = 0
    indexes: tuple[IndexLocation, ...] = ()
    levels: tuple[tuple[IndexLocation, ...], ...] = ()
    merged: int = 0
    range_bits: int = 0
    cursor_floor: int | None = None
    raw_from: int = 0
    rates: RateLimits = field(default_factory=RateLimits)
    concurrent_tasks: int = 1
    expired: tuple[tuple[int, DeletedRows], ...] = ()
    removed: tuple[tuple[int, DeletedRows], ...] = ()
    chunk_tables: tuple[ChunkTable, ...] = ()
    reindexed: bool = False

    @property
    def ranges(self) -> tuple[HashRange, ...]:
        """The hash ranges, one per phase-one task."""
        return tuple(HashRange(prefix, self.range_bits) for prefix in range(1 << self.range_bits))


@dataclass(frozen=True)
class RemovalScanTask:
    """A task before phase one: scan the rows of one source for removals by policy. Times in milliseconds, as in a part.

    Old part: find values published up to `values_to` (T2), and tombstones first kept up to `tombstones_to` and not
    above `cursor_floor` (T1). Dirty ledger: find values published up to `values_to`. Both: find all rows published up
    to `rows_to`, or with an offset below `rows_below` (C2). None: no row is due. `reindex`: rebuild the key index, of
    an old part with event times, of a dirty ledger from the source's first row on.
    """

    source: int
    reindex: bool = False
    values_to: int | None = None
    tombstones_to: int | None = None
    rows_to: int | None = None
    rows_below: int = 0


@dataclass(frozen=True)
class RemovalScanResult:
    """Result of a RemovalScanTask: the rows of one source that policies remove.

    `index`: the rebuilt index. `removal_markers`: markers of the keyed rows of an old part that are removed. `expired`:
    expired rows of a dirty ledger. `removed`: as in a plan. `oldest_value`, `oldest_tombstone`, `first_tombstone`,
    `oldest_row`: of the remaining rows of an old part, as in the manifest.
    """

    source: int
    index: IndexLocation | None = None
    removal_markers: IndexLocation | None = None
    expired: DeletedRows | None = None
    oldest_value: int | None = None
    oldest_tombstone: int | None = None
    first_tombstone: int | None = None
    removed: DeletedRows | None = None
    oldest_row: int | None = None


@dataclass(frozen=True)
class RowSet:
    """Rows of one source in one hash range, by offset: surviving rows of a ledger, or removed rows of an old part.

    Offsets have 32 bits, relative to the source's first. `start`: byte position in the row-set object. `offset_sum`:
    sum of the absolute offsets modulo 2⁶⁴, which phase two must reach.
    """

    source: int
    start: int
    count: int
    offset_sum: int
    crc32c: int


@dataclass(frozen=True)
class HashRangeStatistics:
    """Statistics of phase one in one hash range.

    `records`: index records that were read. `expired`: removed values. `null_keys`: kept messages without a key.
    `keys`, `tombstones`: change of the number of live values and of retained tombstones. `chunks`: live chunks.
    `incomplete_chunks`: live chunks of incomplete messages. `chunks_expired`: removed chunks of incomplete messages.
    `dropped_to`: highest offset of a removed winner, tombstone or value; −1: none.
    """

    records: int = 0
    keys: int = 0
    tombstones: int = 0
    tombstones_removed: int = 0
    tombstones_kept: int = 0
    expired: int = 0
    null_keys: int = 0
    dropped_to: int = -1
    chunks: int = 0
    incomplete_chunks: int = 0
    chunks_expired: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True)
class RangeTaskResult:
    """Result of one phase-one task. `row_sets` ascend by source; the object `name` holds them in that order."""

    name: str
    row_sets: tuple[RowSet, ...]
    index: IndexLocation | None
    statistics: HashRangeStatistics
    chunks: ChunkTable | None = None


Located = tuple[tuple[str, RowSet], ...]
"""The row sets of one source, each with the name of its object; at most one per hash range."""


@dataclass(frozen=True)
class SourceSlice:
    """A range of a source that goes into one part, by offset (inclusive).

    The survivors of a ledger are the rows in `row_sets`. The survivors of an old part are its live rows except the rows
    in `row_sets`.
    """

    source: int
    first_offset: int
    last_offset: int
    row_sets: Located


@dataclass(frozen=True)
class PartTask:
    """A phase-two task that writes the survivors of its slices, in order, as one part."""

    number: int
    slices: tuple[SourceSlice, ...]


@dataclass(frozen=True)
class DeletedRowsTask:
    """A phase-two task that writes one object with the deleted rows of kept old parts, old and new ones.

    `find_last`: also find the last live message of the last part.
    """

    number: int
    parts: tuple[tuple[int, Located], ...]
    find_last: bool = False


@dataclass(frozen=True)
class SourceTotals:
    """Totals of the surviving rows of one source. Phase two must reach the totals that phase one expects.

    `offset_sum`: sum of their absolute offsets modulo 2⁶⁴.
    """

    count: int = 0
    offset_sum: int = 0

    def __add__(self, other: SourceTotals) -> SourceTotals:
        return SourceTotals(self.count + other.count, (self.offset_sum + other.offset_sum) % 2**64)

    def __sub__(self, other: SourceTotals) -> SourceTotals:
        return SourceTotals(self.count - other.count, (self.offset_sum - other.offset_sum) % 2**64)


@dataclass(frozen=True)
class PartTaskResult:
    """Result of a task that writes a part. `part` None: no row of its slices survived. `bytes_read`: of row groups."""

    part: Part | None = None
    kept: Mapping[int, SourceTotals] = field(default_factory=dict)
    bytes_read: int = 0


@dataclass(frozen=True)
class DeletedRowsTaskResult:
    """Result of a task that writes bitmaps: by source, the deleted rows, and the totals of the live rows.

    `last_alive`: last live message of the last part, if `find_last`.
    """

    deleted: Mapping[int, DeletedRows]
    kept: Mapping[int, SourceTotals]
    last_alive: MessageId | None = None


def range_bits(records: int, sizing: Sizing) -> int:
    """Return log2 of the number of hash ranges for `records` index records."""
    by_memory = -(-records // sizing.range_records)
    by_cores = min(sizing.parallelism, records // sizing.small_range_records)
    return max(0, max(by_memory, by_cores) - 1).bit_length()


def merged_level_count(new_records: int, levels: Sequence[int]) -> int:
    """Return how many of the levels, newest first, to merge with a new level of `new_records` records.

    Afterwards each level has at least LEVEL_RATIO times the records of the next newer one. So the number of levels, and
    of merges per record, grows with the logarithm of the records.
    """
    total = new_records
    for number, records in enumerate(levels):
        if records >= LEVEL_RATIO * total:
            return number
        total += records
    return len(levels)


def row_sets_by_source(results: Sequence[RangeTaskResult]) -> dict[int, Located]:
    """Return the row sets of all hash ranges, by number of the source; a source without any is absent."""
    by_source: dict[int, list[tuple[str, RowSet]]] = {}
    for result in results:
        for row_set in result.row_sets:
            by_source.setdefault(row_set.source, []).append((result.name, row_set))
    return {source: tuple(row_sets) for source, row_sets in by_source.items()}


def expected_totals(plan: RunPlan, row_sets: Mapping[int, Located]) -> dict[int, SourceTotals]:
    """Return the totals of the survivors of each source, as phase one decided.

    A ledger without survivors is absent; an old part without survivors has totals of zero.
    """
    totals: dict[int, SourceTotals] = {}
    for number, source in enumerate(plan.sources):
        named = SourceTotals()
        for _, row_set in row_sets.get(number, ()):
            named += SourceTotals(row_set.count, row_set.offset_sum)
        if number < plan.old_parts:
            totals[number] = SourceTotals(source.messages, source.offset_sum) - named
        elif named.count:
            totals[number] = named
    return totals
