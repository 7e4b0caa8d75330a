"""Chunked messages for tests: rows made by hand, since a bulk import has none, sealed and appended as a tail is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from storage.entries.chunk_assembler import row_messages
from storage.ledger import rows
from storage.ledger.hashing import KeyHasher, Xxh3KeyHasher
from storage.ledger.sealing import Sealer
from storage.log.lease import writer_lease
from storage.metadata.records import AttemptKind
from storage.model import Message
from storage.topic import Topic
from tests.workbench import Workbench

Row = dict[str, Any]


def message(key: bytes | None, payload: bytes | None, **columns: Any) -> Row:
    """A plain message."""
    return {"key": key, "payload": payload, "slot": int(rows.RowType.MESSAGE), **columns}


def chunk(uuid: str, index: int, count: int, key: bytes | None, payload: bytes | None, **columns: Any) -> Row:
    """One chunk."""
    numbers = {"chunk_uuid": uuid, "chunk_index": index, "chunk_count": count}
    return {"key": key, "payload": payload, "slot": int(rows.RowType.CHUNK), **numbers, **columns}


def whole(uuid: str, key: bytes | None, *payloads: bytes | None, **columns: Any) -> list[Row]:
    """All chunks of a message, one a payload."""
    return [chunk(uuid, index, len(payloads), key, payload, **columns) for index, payload in enumerate(payloads)]


def table_of(content: Sequence[Row], ledger_id: int, first_offset: int, now: int) -> pa.Table:
    """Rows as a ledger's table: ids, offsets and defaults filled in."""
    defaults = {"batch_index": -1, "batch_size": 0, "key_base64": False, "codec": 0, "publish_time": now}
    filled = [
        dict.fromkeys(rows.SCHEMA.names)
        | defaults
        | {"ledger_id": ledger_id, "entry_id": number, "offset": first_offset + number}
        | row
        for number, row in enumerate(content)
    ]
    return pa.Table.from_pylist(filled, schema=rows.SCHEMA)


def append(bench: Workbench, topic: Topic, content: Sequence[Row], hasher: KeyHasher | None = None) -> list[Message]:
    """Append rows as one sealed ledger. Return them, chunks as separate rows."""
    metadata, record = bench.metadata, topic.record
    with writer_lease(bench, record.id, "test", 1000) as lease:
        attempt = metadata.attempts.begin(record.id, AttemptKind.IMPORT, "test")
        hashes = hasher or Xxh3KeyHasher(record.hash_seed)
        sealer = Sealer(bench.store, record.uid, -1, hashes, attempt.attempt_id)
        ledger_id = metadata.ledgers.allocate_ids(1)
        now = bench.clock.now_ms()
        table = table_of(content, ledger_id, metadata.topics.get(record.name).next_offset, now)
        metadata.ledgers.append(lease, [sealer.seal([table], ledger_id, now)])
        metadata.attempts.finish(attempt.attempt_id)
    return list(row_messages(iter(table.to_batches()), -1))


def compacted_rows(topic: Topic) -> list[Message]:
    """The rows of the compacted ledger, chunks by themselves."""
    horizon = topic.snapshot().horizon
    messages = row_messages(topic.read(read_compacted=True), -1)
    return [row for row in messages if horizon is not None and row.offset <= horizon.offset]


MESSAGES = {"u": (b"a", 2), "v": (b"b", 3), "w": (None, 2), "x": (b"a", 1), "y": (b"c", 3)}
"""Of each uuid that is drawn the key, and how many chunks."""
payloads = st.sampled_from([None, b"", b"1", b"22", b"333"])
drawn_rows = st.fixed_dictionaries(
    {
        "uuid": st.sampled_from([None, None, None, "u", "u", "v", "v", "v", "w", "x", "y", "y"]),
        "key": st.sampled_from([b"a", b"a", b"b", b"b", b"c", None]),
        "payload": payloads | payloads.filter(bool),
        "index": st.sampled_from([None, None, None, None, None, 0, 1, 2]),
        "other_key": st.sampled_from([False] * 9 + [True]),
        "late": st.integers(-60, 60),
        "event_time": st.none() | st.integers(-60, 200),
    }
)
"""A row; `index` None: the chunk that comes next. Times are relative."""


class Drawn:
    """Makes rows of what was drawn; knows which chunk of each uuid comes next."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def rows(self, drawn: Sequence[dict[str, Any]], now: int, start: int) -> list[Row]:
        return [self._row(item, now, start) for item in drawn]

    def _row(self, drawn: dict[str, Any], now: int, start: int) -> Row:
        event_time = None if drawn["event_time"] is None else start + drawn["event_time"]
        times = {"publish_time": now + drawn["late"], "event_time": event_time}
        uuid = drawn["uuid"]
        if uuid is None:
            return message(drawn["key"], drawn["payload"], **times)
        key, count = MESSAGES[uuid]
        index = self._next.get(uuid, 0) if drawn["index"] is None else drawn["index"] % count
        self._next[uuid] = (index + 1) % count
        return chunk(uuid, index, count, b"z" if drawn["other_key"] else key, drawn["payload"], **times)
