"""The last message that a reader gets (R6): plain ones, and chunked ones that are whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from storage.errors import ObjectMissing
from storage.ledger import chunk_table
from storage.ledger.chunk_table import Chunks, ChunkTable
from storage.ledger.key_index import HashRange
from storage.ledger.manifest import read_manifest
from storage.metadata.policy_store import topic_scope
from storage.model import EARLIEST
from storage.objects.interface import ObjectStore
from storage.topic import Topic
from tests import chunked
from tests.pulsar_entries import PUBLISHED, entry, metadata
from tests.workbench import Workbench, compacted_ledger, compacted_only, content, half_compacted, ids, raw


@pytest.fixture
def topic(bench: Workbench) -> Topic:
    return half_compacted(bench)


def test_last_message_id(bench: Workbench, topic: Topic) -> None:
    """R6: raw while there is raw after the horizon, else the last live compacted one; off never looks (#21969)."""
    assert topic.last_message_id(True) == topic.last_message_id(False) == ids(raw(topic))[6]
    bench.compact(topic)
    bench.append(topic, [content((b"d", None))])
    bench.compact(topic)
    assert [m.key for m in compacted_only(topic)] == [b"a", b"b"]
    assert topic.last_message_id(True) == ids(raw(topic))[4]
    assert topic.last_message_id(False) == ids(raw(topic))[7]
    assert bench.topic("empty").last_message_id(True) == EARLIEST


@pytest.mark.parametrize("others", [0, 1])
def test_the_last_message_is_none_that_is_incomplete(bench: Workbench, others: int) -> None:
    """R6, Pulsar #18808: a reader that waits for it would wait forever."""
    topic = bench.topic("chunked")
    chunked.append(bench, topic, [chunked.message(b"b", b"x")] * others + [chunked.chunk("u", 0, 2, b"k", b"1")])
    delivered = [*ids(topic.messages()), EARLIEST][0]
    assert topic.last_message_id() == delivered
    bench.compact(topic)
    assert topic.last_message_id(read_compacted=True) == delivered
    chunked.append(bench, topic, [chunked.chunk("u", 1, 2, b"k", b"2")])
    bench.compact(topic)
    assert topic.last_message_id(read_compacted=True) == ids(topic.messages(read_compacted=True))[-1]


@pytest.mark.parametrize("how", ["open", "rolled", "sealed", "compacted"])
@pytest.mark.parametrize("others", [0, 3])
def test_the_last_message_is_none_whose_first_chunks_are_gone(bench: Workbench, how: str, others: int) -> None:
    """R6: no reader gets a message of which the last chunk alone is there."""
    topic = bench.topic("chunked")
    append_chunked(topic, (b"k", 0, 2), (b"k", 1, 2), *[(b"a", None, None)] * others, (b"m", 1, 2), (b"l", 2, 3))
    if how != "open":
        topic.log_manager().roll(topic.record, 0)
    if how in ("sealed", "compacted"):
        topic.log_manager().roll_and_seal(topic.record)
    if how != "open":
        bench.metadata.trimming.trim(topic.record.id, 1, [], force=True)
    if how == "compacted":
        bench.compact(topic)
    for flag in (False, True):
        delivered = [EARLIEST, *ids(topic.messages(read_compacted=flag))]
        assert len(delivered) == 1 + others + (how == "open") or (how, flag) == ("compacted", True)
        assert topic.last_message_id(flag) == delivered[-1]


def test_the_last_message_is_none_of_which_a_chunk_is_hidden(bench: Workbench) -> None:
    """C2: its last chunk is young enough, its first one is not."""
    topic = bench.topic("chunked")
    rows = [chunked.message(b"a", b"x"), *chunked.whole("u", b"k", b"1", b"2")]
    now = bench.clock.now_ms()
    chunked.append(bench, topic, [{**row, "publish_time": now - age} for row, age in zip(rows, (0, 9, 0), strict=True)])
    bench.compact(topic)
    scope = topic_scope(topic.record)
    bench.metadata.policies.change([scope], {"cleanup.policy": "compact,delete"})
    bench.metadata.policies.change([scope], {"retention.ms": 5})
    assert [message.key for message in topic.messages(read_compacted=True)] == [b"a"]
    assert topic.last_message_id(True) == ids(raw(topic))[0]
    assert topic.last_message_id(False) == ids(raw(topic))[1]


def test_a_chunk_that_belongs_to_no_message_is_one_by_itself(bench: Workbench) -> None:
    """P8, P10: without a uuid it cannot be assembled, so it passes whole, and a reader gets it."""
    topic = bench.topic("chunked")
    chunked.append(
        bench, topic, [chunked.message(b"a", b"x"), {**chunked.chunk("u", 0, 2, b"k", b"1"), "chunk_uuid": None}]
    )
    assert topic.last_message_id() == ids(topic.messages())[-1] == ids(raw(topic))[1]


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("rolls", [False, True])
def test_the_last_message_is_a_chunked_one_wherever_its_chunks_lie(
    bench: Workbench, compacts: bool, rolls: bool
) -> None:
    """Its first chunk in a ledger or in the compacted one, the others in a ledger, and a segment that is open."""
    topic = bench.topic("chunked")
    append_chunked(topic, (b"k", 0, 3), (b"a", None, None))
    if compacts:
        bench.compact(topic)
    append_chunked(topic, *[(b"a", None, None)] * 20, (b"k", 1, 3), *[(b"a", None, None)] * 20)
    if rolls:
        topic.log_manager().roll_and_seal(topic.record)
    append_chunked(topic, *[(b"a", None, None)] * 20, (b"k", 2, 3), (b"l", 0, 2), (b"m", 2, 3))
    for flag in (False, True):
        last = list(topic.messages(read_compacted=flag))[-1]
        assert (last.key, last.payload) == (b"k", b"0 of 31 of 32 of 3")
        assert topic.last_message_id(flag) == last.message_id


def append_chunked(topic: Topic, *messages: tuple[bytes, int | None, int | None]) -> None:
    """Messages to the log: key, and number and count of a chunk."""
    with topic.append_log() as log:
        for key, index, count in messages:
            answer = {"publish_time": PUBLISHED, "partition_key": key}
            if index is not None:
                answer |= {"uuid": key.hex(), "num_chunks_from_msg": count, "chunk_id": index}
            log.append(entry(metadata(**answer), b"x" if index is None else b"%d of %d" % (index, count)))


@pytest.mark.parametrize("compacts", [False, True])
def test_the_last_message_costs_each_chunk_table_once(
    bench: Workbench, compacts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many last chunks are stray, as of a producer that lost its first ones again and again; and one that is
    not is among them, of which the first chunk is in the oldest ledger."""
    topic = bench.topic("chunked")
    begun, ended = chunked.whole("whole", b"k", b"1", b"2")
    strays = [[chunked.chunk(f"{n} {m}", 1, 2, b"k", b"x") for m in range(2)] for n in range(6)]
    chunked.append(bench, topic, [begun, *strays[0]])
    if compacts:
        bench.compact(topic)
    for more in (*strays[1:4], [ended], *strays[4:]):
        chunked.append(bench, topic, more)
    names: list[str] = []
    get = bench.store.get

    def counted(name: str, *place: int) -> bytes:
        names.append(name)
        return get(name, *place)

    monkeypatch.setattr(type(bench.store), "get", lambda _, *arguments: counted(*arguments))
    (last,) = ids(topic.messages(read_compacted=compacts))
    names.clear()
    assert topic.last_message_id(compacts) == last
    tables = [name for name in names if "index" in name or "chunk" in name]
    assert tables
    assert len(tables) == len(set(tables))


def test_the_last_message_of_a_compacted_ledger_costs_each_chunk_table_once(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bench.topic("chunked")
    strays = [chunked.chunk(f"stray {n}", 1, 2, b"k", b"x") for n in range(6)]
    chunked.append(bench, topic, [*chunked.whole("u", b"k", b"1", b"2"), *strays])
    bench.compact(topic)
    reads: list[int] = []
    read_tables = chunk_table.read_chunk_tables

    def counted(store: ObjectStore, tables: Sequence[ChunkTable], hash_range: HashRange) -> list[Chunks]:
        reads.extend(range(len(tables)))
        return read_tables(store, tables, hash_range)

    monkeypatch.setattr(chunk_table, "read_chunk_tables", counted)
    assert topic.last_message_id(True) == ids(topic.messages(read_compacted=True))[-1]
    snapshot = topic.snapshot().compacted
    assert snapshot is not None
    assert len(reads) == len(read_manifest(bench.store, snapshot.manifest).chunks)


def test_a_lost_manifest_is_named_once(bench: Workbench, topic: Topic) -> None:
    """R8. With limits that hide rows the manifest must be read (C2)."""
    bench.compact(topic)
    bench.set_policies(topic, **{"cleanup.policy": "compact,delete"})
    bench.set_policies(topic, **{"retention.ms": 3_600_000})
    bench.store.delete(compacted_ledger(topic).manifest.name)
    with pytest.raises(ObjectMissing) as raised:
        topic.last_message_id(True)
    assert raised.value.message.count("cannot be read") == 1
