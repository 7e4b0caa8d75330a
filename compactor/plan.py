"""What one run works on, as values that travel to every task.

A *source* is something with rows: a sealed ledger after the horizon, or a part of the previous compacted ledger.
Sources ascend by offset and do not overlap, so an offset names its source. A *row set* is the offsets of the rows of
one source that survive; it is what phase one promises and phase two keeps.

Sizing is here too, as pure functions: how many hash ranges phase one has, and how the survivors are cut into parts.
Nothing in a plan is per key or per message: it grows with the ledgers, their fences and the tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from storage.ledger import rows
from storage.ledger.key_index import HashRange
from storage.ledger.rows_file import RowsObject
from storage.metadata.records import IndexLocation
from storage.model import MessageId
from storage.objects.interface import StoreLocation

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
READ_COST = 0.3
"""What a byte that phase two only reads costs, of a byte that it writes (measured: benchmarks/compaction.py)."""


@dataclass(frozen=True)
class Policies:
    """The policies of a run, frozen at its claim; retries reuse them."""

    retain_null_key: bool = False


@dataclass(frozen=True)
class Sizing:
    """How a run is cut. `parallelism`: tasks that can run at once."""

    parallelism: int
    range_records: int = RANGE_RECORDS
    part_bytes: int = PART_BYTES
    part_rows: int = PART_ROWS
    small_range_records: int = SMALL_RANGE_RECORDS
    small_part_bytes: int = SMALL_PART_BYTES


@dataclass(frozen=True)
class Source:
    """Rows by offset: a sealed ledger, or a part of the previous compacted ledger. Offsets are inclusive."""

    rows: RowsObject
    first_offset: int
    last_offset: int
    messages: int


@dataclass(frozen=True)
class RunPlan:
    """The input of both phases. `indexes`: key indexes, oldest first, of all sources."""

    store: StoreLocation
    topic_uid: str
    partition: int
    attempt_id: str
    policies: Policies
    sources: tuple[Source, ...]
    indexes: tuple[IndexLocation, ...]
    range_bits: int

    @property
    def ranges(self) -> tuple[HashRange, ...]:
        """The hash ranges, one a phase-one task."""
        return tuple(HashRange(prefix, self.range_bits) for prefix in range(1 << self.range_bits))


@dataclass(frozen=True)
class RowSet:
    """The survivors of one source in one hash range: where their offsets lie, and what they add up to.

    Offsets are 32 bits, relative to the source's first; `start` counts bytes in the row-set object; `offset_sum` is
    the sum of the whole offsets modulo 2⁶⁴, what phase two must reach.
    """

    source: int
    start: int
    count: int
    offset_sum: int
    crc32c: int


@dataclass(frozen=True)
class RangeStatistics:
    """What phase one saw and decided in one hash range."""

    records: int = 0
    keys: int = 0
    tombstones: int = 0
    null_keys: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


@dataclass(frozen=True)
class RangeResult:
    """The answer of one phase-one task. `row_sets` ascend by source and lie in that order in `name`."""

    name: str
    row_sets: tuple[RowSet, ...]
    index: IndexLocation | None
    statistics: RangeStatistics


@dataclass(frozen=True)
class Slice:
    """The part of a source that goes into one part, by offset (inclusive), and its row sets by object."""

    source: int
    first_offset: int
    last_offset: int
    row_sets: tuple[tuple[str, RowSet], ...]


@dataclass(frozen=True)
class PartPlan:
    """One phase-two task: write the survivors of these slices, in order, as one part."""

    number: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class SourceTotals:
    """Survivors of one source: promised by phase one, kept by phase two; the two must be equal."""

    count: int = 0
    offset_sum: int = 0

    def __add__(self, other: SourceTotals) -> SourceTotals:
        return SourceTotals(self.count + other.count, (self.offset_sum + other.offset_sum) % 2**64)


@dataclass(frozen=True)
class PartStatistics:
    """What phase two read and wrote for one part."""

    groups_read: int = 0
    bytes_read: int = 0


@dataclass(frozen=True)
class PartResult:
    """The answer of one phase-two task; `rows` None: nothing survived in its slices."""

    number: int
    rows: RowsObject | None = None
    first_offset: int = 0
    last_offset: int = 0
    first_message_id: MessageId | None = None
    last_message_id: MessageId | None = None
    messages: int = 0
    logical_bytes: int = 0
    min_publish_time: int = 0
    max_publish_time: int = 0
    kept: dict[int, SourceTotals] = field(default_factory=dict)
    statistics: PartStatistics = PartStatistics()


def range_bits(records: int, sizing: Sizing) -> int:
    """log2 of the number of hash ranges for so many index records."""
    by_memory = -(-records // sizing.range_records)
    by_cores = min(sizing.parallelism, records // sizing.small_range_records)
    return max(0, max(by_memory, by_cores) - 1).bit_length()


def promised(results: list[RangeResult]) -> dict[int, SourceTotals]:
    """Survivors by source, over all hash ranges."""
    totals: dict[int, SourceTotals] = {}
    for result in results:
        for row_set in result.row_sets:
            before = totals.get(row_set.source, SourceTotals())
            totals[row_set.source] = before + SourceTotals(row_set.count, row_set.offset_sum)
    return totals


def part_count(written: float, cost: float, survivors: int, sizing: Sizing) -> int:
    """Into how many parts to cut: as many as their limits ask for, in whole rounds of tasks unless parts get small.

    A last round with one task would leave the other cores idle.
    """
    least = max(1, -(-int(written) // sizing.part_bytes), -(-survivors // sizing.part_rows))
    rounds = -(-least // sizing.parallelism) * sizing.parallelism
    return max(least, min(rounds, int(cost) // sizing.small_part_bytes))


def cut_parts(plan: RunPlan, results: list[RangeResult], sizing: Sizing) -> list[PartPlan]:
    """Cut the survivors into parts of about equal cost, in offset order.

    The cost of a source counts what is written and, for less, the row groups that must be read to find it, as if its
    survivors were thrown at random. A cut may fall inside a source: then by offset, as if its survivors were spread
    evenly. Every part spans fewer than 2³² offsets.
    """
    totals = promised(results)
    located: dict[int, list[tuple[str, RowSet]]] = {}
    for result in results:
        for row_set in result.row_sets:
            located.setdefault(row_set.source, []).append((result.name, row_set))
    alive = [number for number in sorted(totals) if totals[number].count]
    if not alive:
        return []
    written, cost = {}, {}
    for number in alive:
        source = plan.sources[number]
        stored = source.rows.stored.size
        survivors = totals[number].count
        groups = max(1, stored // rows.GROUP_BYTES)
        written[number] = stored * survivors / source.messages
        cost[number] = written[number] + READ_COST * stored * (1 - math.exp(-survivors / groups))
    kept = sum(totals[number].count for number in alive)
    goal = sum(cost.values()) / part_count(sum(written.values()), sum(cost.values()), kept, sizing)

    parts: list[PartPlan] = []
    slices: list[Slice] = []
    room = goal
    for number in alive:
        source = plan.sources[number]
        first, rest = source.first_offset, cost[number]
        while True:
            span = source.last_offset - first + 1
            last = source.last_offset if rest <= room * 1.01 else first + max(1, int(span * room / rest)) - 1
            if slices and last - slices[0].first_offset >= rows.MAX_ROWS:
                parts.append(PartPlan(len(parts), tuple(slices)))
                slices, room = [], goal
                continue
            slices.append(Slice(number, first, last, tuple(located[number])))
            used = rest * (last - first + 1) / span
            rest, room, first = rest - used, room - used, last + 1
            if room <= goal * 0.01:
                parts.append(PartPlan(len(parts), tuple(slices)))
                slices, room = [], goal
            if first > source.last_offset:
                break
    if slices:
        parts.append(PartPlan(len(parts), tuple(slices)))
    return parts
