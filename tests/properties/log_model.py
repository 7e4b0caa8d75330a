"""The model of a topic's log: rows, what producers send, the fold by key, and stand-ins for threads and readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from api.formats.position_text import parse_start
from storage.entries.encode import encode_batch, encode_message
from storage.ledger.rows import CompressionType, RowType
from storage.log.bulk_append import INPUT_SCHEMA
from storage.log.segment import AppendResult
from storage.model import MessageId
from storage.positions import ContinuationToken, StartPosition
from storage.reading.page_reader import PageReader, ReadLimits
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.pulsar_entries import PUBLISHED, encrypted, entry, metadata

COLUMNS = ["offset", "ledger_id", "entry_id", "batch_index", "key", "payload", "publish_time", "slot", "chunk_index"]

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
        placed_rows = []
        for number, (key, payload, slot, chunk) in enumerate(self.rows):
            index = number if self.batched or number else -1
            place = (first.offset + number, first.message_id.ledger_id, first.message_id.entry_id, index)
            placed_rows.append(Row(*place, key, payload, self.publish_time, int(slot), chunk))
        return placed_rows


@st.composite
def sent(draw: st.DrawFn) -> list[Sent]:
    """Draw what a producer sends at once: one entry, or the chunks of a message."""
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
            key_fields: dict[str, Any] = {} if key is None else {"partition_key": key}
            if key == b"\xff":
                key_fields = {"partition_key": b"/w==", "partition_key_b64_encoded": True}
            data = entry(encrypted(publish_time=time, **key_fields), b"secret")
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
    """Return what a compaction keeps: the newest of each key if it has a value, and what passes whole."""
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
    ends = []
    begun: dict[bytes | None, int] = {}
    for row in rows:
        if row.slot != int(RowType.CHUNK):
            ends.append(row)
        elif row.chunk_index == begun.get(row.key, 0):
            begun[row.key] = row.chunk_index + 1
            if row.payload == b"%d of %d" % (begun[row.key], begun[row.key]):
                ends.append(row)
    return ends


def values(rows: Iterable[Row]) -> dict[bytes, bytes]:
    """Return the final state of a reader that keeps the newest value of each key."""
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


class SteppedHeartbeat:
    """A `storage.heartbeat.Heartbeat` without a thread: its owner finds it in `active` and calls `beat`."""

    def __init__(self, active: list[SteppedHeartbeat], beat: Callable[[], object], *_: object) -> None:
        self._active = active
        self.beat = beat

    def __enter__(self) -> None:
        self._active.append(self)

    def __exit__(self, *_: object) -> None:
        self._active.remove(self)


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
    """It got the error of R7."""


def table_of(rows: list[tuple[bytes | None, bytes | None, int]]) -> pa.Table:
    drawn = [{"key": key, "payload": payload, "publish_time": time} for key, payload, time in rows]
    return pa.Table.from_pylist(drawn, schema=INPUT_SCHEMA)
