"""What one run works on, as values that travel to every task.

A *source* is something with rows: a part of the previous compacted ledger, or a sealed ledger after the horizon.
Sources ascend by offset and do not overlap, so an offset names its source. A *row set* holds offsets of one source:
of a ledger the rows that survive, of an old part the rows that are superseded. Together with what a part had before,
that is what phase one promises and phase two must find.

Sizing of phase one is here too, as pure functions; how parts are kept, merged and cut is in `layout.py`. Nothing in a
plan is per key or per message: it grows with the ledgers, their fences, the parts and the tasks.
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
"""The most index records of one phase-one task: about 640 MiB of memory."""
SMALL_RANGE_RECORDS = 100_000
"""Below this a second task costs more than it saves."""
PART_BYTES = 128 << 20
"""The size that a part is cut at: stored bytes, about."""
PART_ROWS = 4_000_000
"""The most rows of a part, however small: phase two holds up to 32 bytes of each survivor's offset."""
SMALL_PART_BYTES = 8 << 20
"""Below this a second part costs more than it saves."""


LEVEL_RATIO = 2
"""A level of the index is merged with what is in front of it if it has fewer than that many times its records."""
DAY_MS = 86_400_000


@dataclass(frozen=True)
class RunPolicies:
    """The policies of a run, frozen at its claim; retries reuse them. Times in milliseconds.

    `retain_null_key`: messages without a key stay (P6). `tombstone_retention_ms`: how long a tombstone that won stays
    in the compacted ledger, counted from the first run that kept it (T1); `tombstones_wait_for_cursors`: and until the
    slowest compacted cursor has passed it. `key_ttl_ms`: a value goes when its publish time is so old (T2).
    `incomplete_chunk_max_age_ms`: the chunks of an incomplete message go when the newest is so old, None: never (P10).
    `min_lag_ms`: younger messages are not compacted yet (P2, S3). `event_time_order`: the largest event time wins, not
    the newest id (P9); then what left the data is remembered for `event_time_max_lateness_ms`.

    Of a topic with `compact,delete` (C2): `retention_ms`: whatever was published longer ago goes, values, tombstones
    and rows without a key. `start_offset`: and whatever is below it; a larger one alone is no change of policy.
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

    def incomplete_to(self, now: int) -> int | None:
        """The publish time up to which, at `now`, incomplete messages go; None: none goes."""
        return None if self.incomplete_chunk_max_age_ms is None else now - self.incomplete_chunk_max_age_ms

    def rows_to(self, now: int) -> int | None:
        """The publish time up to which, at `now`, every row goes; None: none goes by retention."""
        return None if self.retention_ms is None else now - self.retention_ms - 1


@dataclass(frozen=True)
class Sizing:
    """How a run is cut. `parallelism`: tasks that can run at once.

    `max_garbage_ratio`: a part with a larger share of deleted rows is rewritten. `topics_per_job`: that many topics
    share a Spark job.
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
    """Rows by offset: a sealed ledger from the topic's start on, or a part of the previous compacted ledger. Inclusive.

    Of a part: `deleted` rows no longer count; `messages` and `offset_sum` are of the rows that do.
    """

    rows: RowsObject
    first_offset: int
    last_offset: int
    messages: int
    deleted: DeletedRows | None = None
    offset_sum: int = 0


@dataclass(frozen=True)
class RunPlan:
    """What every task of a run gets.

    `sources`: the first `old_parts` are parts of the previous compacted ledger, the others dirty ledgers; they ascend.
    `indexes`: of the rows of old parts that are due to go, as markers, then of the dirty ledgers, oldest first.
    `expired`: by dirty source, its rows whose time to live is over. `gone`: by source its rows that go whatever they
    are (C2): of a dirty source all, of an old part those outside the key map. `levels`: the previous compacted index,
    newest first; the first `merged` of them are merged with the new level; `reindexed`: they were rebuilt, from
    rows. `chunk_tables`: of the previous compacted ledger. `now`: by which policies are applied. `cursor_floor`:
    tombstones above this offset wait for a cursor (T1); None: none does. `raw_from`: the topic's start as the snapshot
    has it; rows of dirty ledgers below it are not there any more.
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
    expired: tuple[tuple[int, DeletedRows], ...] = ()
    gone: tuple[tuple[int, DeletedRows], ...] = ()
    chunk_tables: tuple[ChunkTable, ...] = ()
    reindexed: bool = False

    @property
    def ranges(self) -> tuple[HashRange, ...]:
        """The hash ranges, one a phase-one task."""
        return tuple(HashRange(prefix, self.range_bits) for prefix in range(1 << self.range_bits))

    @property
    def merges_all(self) -> bool:
        """Whether the new level is the only one: then nothing older is left to be hidden."""
        return self.merged == len(self.levels)


@dataclass(frozen=True)
class ScanTask:
    """A task before phase one: look through the rows of one source, as policies ask for it. Times as in a part.

    `reindex`: make the key index again, of an old part with event times, of a dirty ledger from the source's first row
    on. Of an old part find the rows that are due to
    go: values published up to `values_to` (T2), tombstones first kept up to `tombstones_to` and not above
    `cursor_floor` (T1). Of a dirty ledger find the values published up to `values_to`. None: none is due. Of both find
    all rows published up to `rows_to`, or with an offset below `rows_below` (C2).
    """

    source: int
    reindex: bool = False
    values_to: int | None = None
    tombstones_to: int | None = None
    rows_to: int | None = None
    rows_below: int = 0


@dataclass(frozen=True)
class ScanTaskResult:
    """The answer of a scan. `index`: rebuilt. `due`: markers of the rows of an old part that go; `expired`: rows of
    a dirty ledger; `gone`: as in a plan; `oldest_value`, `oldest_tombstone`, `first_tombstone`, `oldest_row`: of what
    is left of an old part, as in the manifest.
    """

    source: int
    index: IndexLocation | None = None
    due: IndexLocation | None = None
    expired: DeletedRows | None = None
    oldest_value: int | None = None
    oldest_tombstone: int | None = None
    first_tombstone: int | None = None
    gone: DeletedRows | None = None
    oldest_row: int | None = None


@dataclass(frozen=True)
class RowSet:
    """Rows of one source in one hash range, by offset: of a ledger those that survive, of an old part those that go.

    Offsets are 32 bits, relative to the source's first; `start` counts bytes in the row-set object; `offset_sum` is
    the sum of the whole offsets modulo 2⁶⁴, what phase two must reach.
    """

    source: int
    start: int
    count: int
    offset_sum: int
    crc32c: int


@dataclass(frozen=True)
class HashRangeStatistics:
    """What phase one saw and decided in one hash range.

    `keys`, `tombstones`: live values, and retained tombstones, more or fewer than before the run. `chunks`: live
    chunks; `incomplete_chunks`: those of them whose message is not complete; `chunks_expired`: such that go now.
    `dropped_to`: the highest offset of a tombstone or value that won its key and leaves the data, −1: none.
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
    """The answer of one phase-one task. `row_sets` ascend by source and are in that order in `name`."""

    name: str
    row_sets: tuple[RowSet, ...]
    index: IndexLocation | None
    statistics: HashRangeStatistics
    chunks: ChunkTable | None = None


Located = tuple[tuple[str, RowSet], ...]
"""The row sets of one source, one a hash range that has any, with the object that each is in."""


@dataclass(frozen=True)
class Slice:
    """What of a source goes into one part, by offset (inclusive). Of a ledger the rows in `row_sets` survive, of an
    old part all live rows but those."""

    source: int
    first_offset: int
    last_offset: int
    row_sets: Located


@dataclass(frozen=True)
class PartTask:
    """A phase-two task: write the survivors of these slices, in order, as one part."""

    number: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class DeletedRowsTask:
    """A phase-two task: add rows that go to the deleted rows of old parts that are kept, in one object.

    `find_last`: also find the last message that is still alive in the last of them.
    """

    number: int
    parts: tuple[tuple[int, Located], ...]
    find_last: bool = False


@dataclass(frozen=True)
class SourceTotals:
    """Rows of one source: promised by phase one, found by phase two; the two must be equal."""

    count: int = 0
    offset_sum: int = 0

    def __add__(self, other: SourceTotals) -> SourceTotals:
        return SourceTotals(self.count + other.count, (self.offset_sum + other.offset_sum) % 2**64)

    def __sub__(self, other: SourceTotals) -> SourceTotals:
        return SourceTotals(self.count - other.count, (self.offset_sum - other.offset_sum) % 2**64)


@dataclass(frozen=True)
class PartStatistics:
    """What phase two read for one part."""

    groups_read: int = 0
    bytes_read: int = 0


@dataclass(frozen=True)
class PartTaskResult:
    """The answer of a task that writes a part; `part` None: nothing survived in its slices."""

    number: int
    part: Part | None = None
    kept: Mapping[int, SourceTotals] = field(default_factory=dict)
    statistics: PartStatistics = PartStatistics()


@dataclass(frozen=True)
class DeletedRowsTaskResult:
    """The answer of a task that writes bitmaps: by source the deleted rows, and what is left alive.

    `last_alive`: the last live message of the last part, if it was asked for.
    """

    number: int
    deleted: Mapping[int, DeletedRows]
    kept: Mapping[int, SourceTotals]
    last_alive: MessageId | None = None


def range_bits(records: int, sizing: Sizing) -> int:
    """log2 of the number of hash ranges for that many index records."""
    by_memory = -(-records // sizing.range_records)
    by_cores = min(sizing.parallelism, records // sizing.small_range_records)
    return max(0, max(by_memory, by_cores) - 1).bit_length()


def merged_levels(dirty: int, levels: Sequence[int]) -> int:
    """How many of the levels, newest first, to merge with a new one of `dirty` records.

    Afterwards each level has at least LEVEL_RATIO times the records of the one in front of it: so their number grows
    with the logarithm of the records, and a record is merged about as often.
    """
    total = dirty
    for number, records in enumerate(levels):
        if records >= LEVEL_RATIO * total:
            return number
        total += records
    return len(levels)


def located(results: Sequence[RangeTaskResult]) -> dict[int, Located]:
    """The row sets of all hash ranges by source."""
    found: dict[int, list[tuple[str, RowSet]]] = {}
    for result in results:
        for row_set in result.row_sets:
            found.setdefault(row_set.source, []).append((result.name, row_set))
    return {source: tuple(row_sets) for source, row_sets in found.items()}


def expected_totals(plan: RunPlan, found: Mapping[int, Located]) -> dict[int, SourceTotals]:
    """What each source has left after phase one: of a ledger its survivors, of an old part its live rows that stay."""
    totals: dict[int, SourceTotals] = {}
    for number, source in enumerate(plan.sources):
        named = SourceTotals()
        for _, row_set in found.get(number, ()):
            named += SourceTotals(row_set.count, row_set.offset_sum)
        if number < plan.old_parts:
            totals[number] = SourceTotals(source.messages, source.offset_sum) - named
        elif named.count:
            totals[number] = named
    return totals
