"""A topic's whole life against a plain list: every way to append, roll, seal, import, trim, compact, crash and read.

The model is the list of rows that were acknowledged, with the ids and offsets that came back, and the rows that a fold
by key leaves at each compaction. After each step a raw read is the list from the topic's first message on, and a
compacted read is the fold and then the list. Readers stay open over all of it, and get each message once, in order;
what they are not given was trimmed before they came to it (L1–L4, R1, R2, R7, R10, P3–P8).

Nothing here waits: heartbeats do not beat by themselves, and a writer looks up when somebody waits for it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, note, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactor.engines.engine import InProcessEngine
from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.grace import GRACE_MS
from compactor.maintenance.retention import Retention
from storage.entries.encode import encode_batch, encode_message
from storage.errors import Fenced, LeaseHeld, StateMayBeStale
from storage.ledger.rows import CompressionType, RowType
from storage.ledger.seek import AtTime, StartOffset, StartPosition
from storage.log.bulk_append import INPUT_SCHEMA
from storage.log.directory import LogDirectory
from storage.log.group_commit import Answer
from storage.log.segment import AppendResult
from storage.log.topic_log import TopicLog
from storage.metadata.leases import LeaseStore
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import COMPACTION_CURSOR
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, LATEST, MessageId
from storage.objects.registry import open_store
from storage.reading.continuation_token import ContinuationToken
from storage.reading.limits import ReadLimits
from storage.reading.page_reader import PageReader
from storage.reading.positions import parse_start
from storage.topic import Topic
from tests.budgets import IN_CI, IN_SOAK
from tests.clocks import ManualClock
from tests.pulsar_entries import PUBLISHED, encrypted, entry, metadata
from tests.workbench import TINY, Workbench

EXAMPLES = 100 if IN_SOAK else 40 if IN_CI else 15
COLUMNS = ["offset", "ledger_id", "entry_id", "batch_index", "key", "payload", "publish_time", "slot", "chunk_index"]
AFTER_TERM = 60_000

keys = st.sampled_from([b"a", b"b", b"c", b"d", b"\xff", b""])
payloads = st.one_of(st.none(), st.just(b""), st.binary(min_size=1, max_size=9), st.just(b"x" * 6000))
times = st.integers(PUBLISHED - 5, PUBLISHED + 5)


@dataclass(frozen=True)
class Row:
    """A row as readers get it. `slot` COMPACTED_OUT: it only takes an offset."""

    offset: int
    ledger_id: int
    entry_id: int
    batch_index: int
    key: bytes | None
    payload: bytes | None
    publish_time: int
    slot: int = int(RowType.MESSAGE)
    chunk_index: int | None = None

    @property
    def message_id(self) -> MessageId:
        return MessageId(self.ledger_id, self.entry_id, -1, self.batch_index)


@dataclass(frozen=True)
class Sent:
    """An entry, and of each of its rows: key, payload, slot, chunk index."""

    data: bytes
    publish_time: int
    rows: tuple[tuple[bytes | None, bytes | None, RowType, int | None], ...]
    batched: bool = False

    def placed(self, at: AppendResult) -> list[Row]:
        """Its rows, where the log says that they are."""
        first = at.first
        assert at.messages == len(self.rows)
        # That a batch cannot be taken apart is not known yet when it is acknowledged.
        assert first.message_id.batch_index == (0 if self.batched else -1) or self.rows[0][2] is RowType.WHOLE_ENTRY
        found = []
        for number, (key, payload, slot, chunk) in enumerate(self.rows):
            index = number if self.batched or number else -1
            place = (first.offset + number, first.message_id.ledger_id, first.message_id.entry_id, index)
            found.append(Row(*place, key, payload, self.publish_time, int(slot), chunk))
        return found


@st.composite
def sent(draw: st.DrawFn) -> list[Sent]:
    """What a producer sends at once: one entry, or the chunks of a message."""
    time, key = draw(times), draw(st.none() | keys)
    kinds = ["message", "message", "batch", "batch", "encrypted", "encrypted batch", "undecodable", "chunks"]
    match draw(st.sampled_from(kinds)):
        case "message":
            payload = draw(payloads)
            codec = draw(st.sampled_from(CompressionType))
            data = encode_message(key, payload, producer="p", sequence_id=1, publish_time=time, codec=codec)
            return [Sent(data, time, ((key, payload, RowType.MESSAGE, None),))]
        case "batch":
            inside = draw(st.lists(st.tuples(st.none() | keys, payloads), min_size=1, max_size=4))
            table = pa.Table.from_pylist([{"key": k, "payload": p} for k, p in inside], schema=INPUT_SCHEMA)
            codec = draw(st.sampled_from(CompressionType))
            data = encode_batch(table, producer="p", first_sequence_id=1, publish_time=time, codec=codec)
            return [Sent(data, time, tuple((k, p, RowType.MESSAGE, None) for k, p in inside), batched=True)]
        case "encrypted":
            given: dict[str, Any] = {} if key is None else {"partition_key": key}
            if key == b"\xff":
                given = {"partition_key": b"/w==", "partition_key_b64_encoded": True}
            data = entry(encrypted(publish_time=time, **given), b"secret")
            return [Sent(data, time, ((key, b"secret", RowType.MESSAGE, None),))]
        case "encrypted batch":
            data = entry(encrypted(publish_time=time, num_messages_in_batch=3), b"secrets")
            return [Sent(data, time, ((None, data, RowType.WHOLE_ENTRY, None),))]
        case "undecodable":
            data = entry(metadata(publish_time=time, num_messages_in_batch=3), b"\xff" * 40)
            out = (None, None, RowType.COMPACTED_OUT, None)
            return [Sent(data, time, ((None, data, RowType.WHOLE_ENTRY, None), out, out))]
        case _:
            uuid = draw(st.uuids()).hex
            count = draw(st.integers(2, 3))
            answer = {"publish_time": time, "uuid": uuid, "num_chunks_from_msg": count, "partition_key": uuid.encode()}
            return [
                Sent(
                    entry(metadata(chunk_id=number, **answer), b"%d of %d" % (number + 1, count)),
                    time,
                    ((uuid.encode(), b"%d of %d" % (number + 1, count), RowType.CHUNK, number),),
                )
                for number in range(count)
            ]


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    return [Row(**row) for batch in batches for row in batch.select(COLUMNS).to_pylist()]


def fold(rows: Iterable[Row]) -> list[Row]:
    """What a compaction keeps: the newest of each key if it has a value, and what passes whole."""
    newest: dict[bytes, Row] = {}
    whole = []
    for row in rows:
        if row.slot != int(RowType.MESSAGE):
            whole.append(row)
        elif row.key is not None:
            newest[row.key] = row
    return sorted([*whole, *(row for row in newest.values() if row.payload)], key=lambda row: row.offset)


def ending(rows: Iterable[Row]) -> list[Row]:
    """The rows with which a message is whole: of a chunked one the last, if all others come before it."""
    found = []
    begun: dict[bytes | None, int] = {}
    for row in rows:
        if row.slot != int(RowType.CHUNK):
            found.append(row)
        elif row.chunk_index == begun.get(row.key, 0):
            begun[row.key] = row.chunk_index + 1
            if row.payload == b"%d of %d" % (begun[row.key], begun[row.key]):
                found.append(row)
    return found


def values(rows: Iterable[Row]) -> dict[bytes, bytes]:
    """Where a reader ends that keeps the newest value of each key."""
    return {
        row.key: row.payload
        for row in fold(rows)
        if row.slot == int(RowType.MESSAGE) and row.key is not None and row.payload
    }


class AskingClock(ManualClock):
    """A clock during whose waits the writer in this process does what its thread does otherwise."""

    def __init__(self) -> None:
        super().__init__(PUBLISHED)
        self.meanwhile: Callable[[], object] = lambda: None

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self.meanwhile()


class NoHeartbeat:
    """Instead of `storage.heartbeat.Heartbeat`."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class PagesReader:
    """A reader that keeps nothing but a token between two pages."""

    def __init__(self, topic: Topic, start: StartPosition, read_compacted: bool) -> None:
        self._topic = topic
        self._read_compacted = read_compacted
        self._token = ContinuationToken(start).to_token()

    def poll(self, limits: ReadLimits) -> list[pa.RecordBatch]:
        state = ContinuationToken.from_token(self._token, parse_start)
        with closing(self._topic.reader(state, self._read_compacted)) as reader:
            page = reader.rows(limits)
        self._token = page.next.to_token()
        return page.batches

    def close(self) -> None:
        pass


@dataclass
class Reading:
    """A reader that stays open. `next`: the first offset that it has not been given, or passed over."""

    reader: PageReader | PagesReader
    compacted: bool
    whole: bool
    """It began at the beginning, before anything was trimmed."""
    next: int
    got: list[Row] = field(default_factory=list)
    lost_raw: bool = False
    """What it had not read yet was trimmed, and no compacted ledger replaces it that it may read."""
    may_be_stale: bool = False
    """Raw that it had not read was trimmed: a deletion of what it has may be gone."""
    is_stale: bool = False
    """It was told so (R7)."""


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.life = ExitStack()
        folder = Path(self.life.enter_context(tempfile.TemporaryDirectory()))
        for module in ("log.lease", "log.topic_log", "log.log_manager"):
            self.life.enter_context(mock.patch(f"storage.{module}.Heartbeat", NoHeartbeat))
        self.clock = AskingClock()
        store = MetadataStore(f"sqlite:///{folder / 'metadata.db'}", self.clock)
        store.upgrade()
        self.life.callback(store.close)
        objects = open_store((folder / "objects").as_uri())
        self.bench = Workbench(store, objects, self.clock, LogDirectory(folder / "log"), InProcessEngine(), TINY)
        self.topic: Topic = self.bench.topic()
        self.log: TopicLog | None = None
        self.rows: list[Row] = []
        """All that was acknowledged, fillers too: row n has offset n."""
        self.state: list[Row] = []
        self.horizon = -1
        self.start = 0
        """The topic's start offset."""
        self.kept = 0
        """The first offset that no trimmed ledger held."""
        self.readings: list[Reading] = []

    def teardown(self) -> None:
        try:
            self.close_writer()
            if sys.exc_info()[0] is None:
                for reading in self.readings:
                    self.drain(reading)
        finally:
            for reading in self.readings:
                reading.reader.close()
            self.life.close()

    # The model

    @property
    def first(self) -> int:
        return max(self.start, self.kept)

    def raw_rows(self, first: int) -> list[Row]:
        return [row for row in self.rows[max(first, self.first) :] if row.slot != int(RowType.COMPACTED_OUT)]

    def compacted_view(self) -> list[Row]:
        return [*self.state, *self.raw_rows(self.horizon + 1)]

    def add(self, rows: list[Row]) -> None:
        for row in rows:
            assert row.offset == len(self.rows), "dense"
            assert not self.rows or row.message_id > self.rows[-1].message_id, "ids ascend as offsets do"
            self.rows.append(row)

    def set_policy(self, name: str, value: object) -> None:
        self.bench.metadata.policies.set(topic_scope(self.topic.record), name, value)

    # The writer

    def open_writer(self) -> TopicLog:
        if self.log is None:
            log = self.topic.append_log(0)
            log.__enter__()
            self.log = log
            self.clock.meanwhile = self.beat
        return self.log

    def beat(self) -> None:
        """What a living writer does all the time."""
        if self.log is not None:
            segments = self.log._open_segments
            self.bench.metadata.leases.renew(segments._lease, 15_000)
            self.log.poll()

    def close_writer(self) -> None:
        log, self.log = self.log, None
        self.clock.meanwhile = lambda: None
        if log is not None:
            log.__exit__(None, None, None)

    def go_on(self, milliseconds: int) -> None:
        """Time goes by, in steps that a living writer's lease outlives."""
        for _ in range(milliseconds // 10_000 + 1):
            self.clock.wait(milliseconds / (milliseconds // 10_000 + 1) / 1000)

    # Rules

    @initialize(segment_bytes=st.sampled_from([1 << 14, 1 << 20]), flush=st.sampled_from([1, 2, None]))
    def policies(self, segment_bytes: int, flush: int | None) -> None:
        self.set_policy("segment.bytes", segment_bytes)
        self.set_policy("flush.messages", flush)

    @rule(flush=st.sampled_from([1, 3, None]), flush_ms=st.sampled_from([None, 1000]))
    def change_the_flush_policy(self, flush: int | None, flush_ms: int | None) -> None:
        self.set_policy("flush.messages", flush)
        self.set_policy("flush.ms", flush_ms)

    @rule(group=st.lists(sent(), min_size=1, max_size=4))
    def append(self, group: list[list[Sent]]) -> None:
        log = self.open_writer()
        for item in (item for some in group for item in some):
            self.add(item.placed(log.append(item.data)))

    @rule(group=st.lists(sent(), min_size=1, max_size=4))
    def append_without_waiting(self, group: list[list[Sent]]) -> None:
        log = self.open_writer()
        answers: list[Answer] = []
        flat = [item for some in group for item in some]
        for one in flat:
            log.submit(one.data, answers.append)
        self.close_writer()
        for one, answer in zip(flat, answers, strict=True):
            assert isinstance(answer, AppendResult)
            self.add(one.placed(answer))

    @rule()
    def end_the_writer(self) -> None:
        self.close_writer()

    @rule(
        group=st.lists(sent(), max_size=3),
        written=st.integers(0, 5),
        aids=st.sampled_from(["kept", "no index", "no index, torn log"]),
    )
    def crash(self, group: list[list[Sent]], written: int, aids: str) -> None:
        """The writer dies with entries under way. What it had acknowledged is there, and of the rest a beginning."""
        log = self.open_writer()
        flat = [item for some in group for item in some]
        tickets = []
        for number, one in enumerate(flat):
            tickets.append(log._current(one.data).submit(one.data))
            if number < written and log._writer is not None:
                log._writer.flush()
        answers: list[Answer | None] = [ticket.answer for ticket in tickets]
        writer = log._writer
        with mock.patch.object(LeaseStore, "release"):
            if writer is not None:
                writer.abandon()
            self.log, log._writer = None, None
            self.clock.meanwhile = lambda: None
            log.__exit__(None, None, None)
        acknowledged = [answer for answer in answers if isinstance(answer, AppendResult)]
        for one, answer in zip(flat, acknowledged, strict=False):
            self.add(one.placed(answer))
        if writer is not None and writer.path.exists():
            if aids != "kept":
                writer.path.with_suffix(".index").unlink(missing_ok=True)
            if aids == "no index, torn log":
                with writer.path.open("ab") as file:
                    file.write(b"\x00\x00\x00\x40\x01torn")
        with pytest.raises(LeaseHeld):
            self.open_writer()
        self.clock.advance(AFTER_TERM)
        self.open_writer()
        unknown = flat[len(acknowledged) :]
        found = rows_of(self.topic.read(StartOffset(len(self.rows))))
        while unknown and found:
            one = unknown.pop(0)
            delivered = [row for row in one.rows if row[2] is not RowType.COMPACTED_OUT]
            place, found = found[0], found[len(delivered) :]
            first = MessageId(place.ledger_id, place.entry_id, -1, place.batch_index)
            self.add(one.placed(AppendResult(mock.Mock(offset=place.offset, message_id=first), len(one.rows))))
        assert not found, "what was never appended is never read"

    @precondition(lambda self: self.log is not None)
    @rule(one=sent())
    def sleep_past_the_lease(self, one: list[Sent]) -> None:
        """The lock on the file keeps others out, so what is appended in the open segment counts. Then it is over."""
        assert self.log is not None
        log, writer = self.log, self.log._writer
        if writer is None or writer.messages == 0:
            return
        self.clock.advance(AFTER_TERM)
        with pytest.raises(LeaseHeld):
            self.topic.append_log(0).__enter__()
        with pytest.raises(LeaseHeld):
            self.topic.bulk_append(wait_ms=0).append([table_of([(b"a", b"1", PUBLISHED)])])
        try:
            for each in one:
                self.add(each.placed(log.append(each.data)))
        except Fenced:
            note("it had to roll, and may not")
        self.close_writer()

    @rule()
    def roll(self) -> None:
        self.open_writer().roll()

    @rule()
    def seal(self) -> None:
        for _ in self.topic.log_manager().seal(self.topic.record):
            pass

    @rule()
    def roll_and_seal(self) -> None:
        self.topic.log_manager().roll_and_seal(self.topic.record)
        snapshot = self.topic.snapshot()
        assert all(segment.content is None for segment in snapshot.segments)
        assert snapshot.topic.next_offset == len(self.rows)

    @rule(later=st.sampled_from([0, 1000, 100_000]))
    def sweep(self, later: int) -> None:
        self.go_on(later)
        self.topic.log_manager().sweep()

    @rule(rows=st.lists(st.tuples(st.none() | keys, payloads, times), min_size=1, max_size=5))
    def bulk_import(self, rows: list[tuple[bytes | None, bytes | None, int]]) -> None:
        self.close_writer()
        (ledger,) = self.topic.bulk_append(wait_ms=0).append([table_of(rows)]).ledgers
        first = len(self.rows)
        self.add([Row(first + n, ledger.ledger_id, n, -1, *row) for n, row in enumerate(rows)])

    @rule()
    def compact(self) -> None:
        self.bench.compact(self.topic)
        if self.rows:
            snapshot = self.topic.snapshot()
            dirty = self.rows[max(self.first, self.horizon + 1) :]
            remaining = [row for row in dirty if row.slot != int(RowType.COMPACTED_OUT)]
            # A ledger that a trim cut off whole, but that was not sealed then, is a run's input without a message.
            unseen = any(ledger.last_offset > self.horizon for ledger in snapshot.ledgers)
            assert unseen or not dirty
            if unseen:
                self.state = fold([*self.state, *remaining])
                self.horizon = len(self.rows) - 1
            assert (snapshot.horizon.offset if snapshot.horizon else -1) == self.horizon

    @precondition(lambda self: self.rows)
    @rule(where=st.floats(0, 1))
    def trim(self, where: float) -> None:
        """Records are deleted up to an offset, whoever needs them."""
        snapshot = self.topic.snapshot()
        self.start = max(self.start, round(where * snapshot.topic.next_offset))
        going = [ledger for ledger in snapshot.ledgers if ledger.last_offset < self.start]
        self.bench.metadata.trimming.trim(
            self.topic.record.id, self.start, [ledger.ledger_id for ledger in going], force=True
        )
        self.kept = max([self.kept, *(ledger.last_offset + 1 for ledger in going)])
        self.trimmed()

    @rule()
    def trim_what_is_compacted(self) -> None:
        """C2, by the policy `compact`."""
        self.set_policy("cleanup.policy", "compact")
        Retention(self.bench).apply(self.topic.record)
        self.set_policy("cleanup.policy", "")
        snapshot = self.topic.snapshot()
        firsts = [ledger.first_offset for ledger in snapshot.ledgers]
        firsts += [segment.first_offset for segment in snapshot.segments]
        kept = max(self.kept, min(firsts, default=snapshot.topic.next_offset))
        assert kept <= max(self.kept, self.start, self.horizon + 1), "nothing went that is not compacted"
        self.kept = kept
        self.trimmed()

    @rule()
    def truncate(self) -> None:
        self.bench.metadata.trimming.truncate([self.topic.record.id])
        self.start = self.kept = self.topic.snapshot().topic.start_offset
        self.state, self.horizon = [], -1
        self.trimmed()

    @precondition(lambda self: self.horizon >= 0)
    @rule()
    def delete_the_compaction_cursor(self) -> None:
        self.bench.metadata.cursors.delete(self.topic.record.id, COMPACTION_CURSOR, force=True)
        self.state, self.horizon = [], -1
        self.trimmed()

    @rule(grace=st.sampled_from([0, GRACE_MS]))
    def collect_garbage(self, grace: int) -> None:
        """What is retired goes: at once, but for pins, or after its grace."""
        self.go_on(grace)
        GarbageCollector(self.bench, grace_ms=grace).collect(self.topic.record)
        self.trimmed()

    def trimmed(self) -> None:
        for reading in self.readings:
            if reading.next < self.first:
                stands = reading.compacted and self.first <= self.horizon + 1
                holds_something = reading.compacted and bool(reading.got)
                reading.may_be_stale = reading.may_be_stale or holds_something
                reading.lost_raw = reading.lost_raw or not (stands or holds_something)

    # Reading

    @invariant()
    def raw_is_the_list(self) -> None:
        assert rows_of(self.topic.read()) == self.raw_rows(0)

    @invariant()
    def compacted_is_the_fold(self) -> None:
        assert rows_of(self.topic.read(read_compacted=True)) == self.compacted_view()

    @rule(data=st.data(), flag=st.booleans(), limit=st.sampled_from([None, 1, 3]))
    def read_from_anywhere(self, data: st.DataObject, flag: bool, limit: int | None) -> None:
        start, _ = self.some_start(data)
        view = self.compacted_view() if flag else self.raw_rows(0)
        expected = [] if start == LATEST else self.behind(start, view, flag)
        assert rows_of(self.topic.read(start, flag, limit)) == expected[:limit]
        fits = sum(size <= 20 for size in accumulate(len(row.key or b"") + len(row.payload or b"") for row in expected))
        assert rows_of(self.topic.read(start, flag, max_bytes=20)) == expected[: max(fits, 1)]

    def behind(self, start: StartPosition, view: list[Row], flag: bool) -> list[Row]:
        """What of a view comes at or behind a start (R1: above the horizon the flag changes nothing)."""
        if isinstance(start, AtTime):
            first = next((n for n, row in enumerate(view) if row.publish_time >= start.publish_time), len(view))
            return view[first:]
        if isinstance(start, StartOffset):
            return [row for row in view if row.offset >= start.offset]
        assert isinstance(start, MessageId)
        return [row for row in view if row.message_id >= start]

    def some_start(self, data: st.DataObject) -> tuple[StartPosition, str]:
        kind = data.draw(st.sampled_from(["earliest", "latest", "offset", "id", "time"]), label="start")
        if kind == "latest":
            return LATEST, kind
        if kind == "time":
            return AtTime(data.draw(times, label="time")), kind
        number = data.draw(st.integers(0, len(self.rows)), label="number")
        if kind == "offset":
            return StartOffset(number), kind
        if kind == "id" and number < len(self.rows):
            return self.rows[number].message_id, kind
        return EARLIEST, "earliest"

    @rule(key=keys)
    def look_up(self, key: bytes) -> None:
        """T4: the key's newest value, wherever its message is."""
        found = self.topic.get(key)
        assert (None if found is None else found.payload) == values(self.compacted_view()).get(key)

    @rule(flag=st.booleans())
    def ask_for_the_last(self, flag: bool) -> None:
        """R6: the id of the last message that a reader gets."""
        whole = ending(self.compacted_view() if flag else self.raw_rows(0))
        assert self.topic.last_message_id(flag) == (whole[-1].message_id if whole else EARLIEST)

    @precondition(lambda self: len(self.readings) < 6)
    @rule(data=st.data(), flag=st.booleans(), in_pages=st.booleans())
    def open_a_reader(self, data: st.DataObject, flag: bool, in_pages: bool) -> None:
        """It is asked for its first page at once: then it knows where it is."""
        start, kind = self.some_start(data)
        reader = PagesReader(self.topic, start, flag) if in_pages else self.topic.reader(start, read_compacted=flag)
        view = self.compacted_view() if flag else self.raw_rows(0)
        expected = [] if start == LATEST else self.behind(start, view, flag)
        first = expected[0].offset if expected else len(self.rows)
        reading = Reading(reader, flag, kind == "earliest" and self.first == 0, first)
        self.readings.append(reading)
        self.read_on(reading, ReadLimits(1))
        assert reading.got == expected[:1]

    @precondition(lambda self: self.readings)
    @rule(data=st.data(), limit=st.sampled_from([ReadLimits(1), ReadLimits(3), ReadLimits(bytes=20), ReadLimits()]))
    def read_a_page(self, data: st.DataObject, limit: ReadLimits) -> None:
        self.read_on(data.draw(st.sampled_from(self.readings), label="reader"), limit)

    @precondition(lambda self: self.readings)
    @rule(data=st.data())
    def close_a_reader(self, data: st.DataObject) -> None:
        reading = self.readings.pop(data.draw(st.integers(0, len(self.readings) - 1), label="reader"))
        self.drain(reading)
        reading.reader.close()

    def read_on(self, reading: Reading, limits: ReadLimits) -> bool:
        """One page: rows as they were appended, in order, none twice; none left out that is still there."""
        try:
            got = rows_of(reading.reader.poll(limits))
        except StateMayBeStale:
            assert reading.may_be_stale
            reading.is_stale = True
            return False
        assert limits.messages is None or len(got) <= limits.messages
        for row in got:
            assert row.offset >= reading.next, "twice, or out of order"
            assert row == self.rows[row.offset], "as it was appended"
            if not reading.compacted:
                between = self.rows[max(reading.next, self.first) : row.offset]
                left_out = [item for item in between if item.slot != int(RowType.COMPACTED_OUT)]
                assert not left_out
            reading.next = row.offset + 1
        reading.got += got
        return bool(got)

    def drain(self, reading: Reading) -> None:
        """To the end: it has all that there is now, and where it missed nothing but what was superseded, the state."""
        while self.read_on(reading, ReadLimits(7)):
            pass
        if reading.is_stale:
            return
        delivered = self.compacted_view() if reading.compacted else self.raw_rows(0)
        if delivered and delivered[-1].offset >= reading.next:
            raise AssertionError(f"it ends at {reading.next}, and {delivered[-1]} is there")
        if reading.whole and not reading.lost_raw:
            assert values(reading.got) == values(self.rows), "R7: no newest value, and no deletion, is missed"


def table_of(rows: list[tuple[bytes | None, bytes | None, int]]) -> pa.Table:
    drawn = [{"key": key, "payload": payload, "publish_time": time} for key, payload, time in rows]
    return pa.Table.from_pylist(drawn, schema=INPUT_SCHEMA)


TestLog: Any = pytest.mark.budgeted(LogMachine.TestCase)
TestLog.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
