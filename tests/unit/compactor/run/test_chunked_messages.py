"""P10 by name: a chunked message is one message, in runs, readers, point reads and verify."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compactor.run.plan import RunPolicies
from compactor.verify.findings import DifferenceKind, Report
from compactor.verify.verify import Verifier
from storage.errors import ObjectDamaged
from storage.ledger import chunk_table
from storage.ledger.chunk_table import ChunkTable
from storage.ledger.key_index import HashRange
from storage.topic import Topic
from tests.chunked import append, chunk, compacted_rows, message, whole
from tests.workbench import Workbench, compacted_ledger

DAY = 86_400_000


def offsets(topic: Topic) -> list[int]:
    return [row.offset for row in compacted_rows(topic)]


def values(topic: Topic) -> list[tuple[bytes | None, bytes | None]]:
    return [(item.key, item.payload) for item in topic.messages(read_compacted=True)]


def verified(bench: Workbench, topic: Topic) -> Report:
    return Verifier(bench, bench.engine, sizing=bench.sizing).verify(topic.name)


def compact(bench: Workbench, topic: Topic, policies: RunPolicies = RunPolicies()) -> bool:  # noqa: B008
    """Compact, and verify the result. Return whether there was a run."""
    ran = bench.compactor().compact(topic.name, policies).run is not None
    assert verified(bench, topic).differences == ()
    return ran


def assert_goes_after(bench: Workbench, topic: Topic, milliseconds: int, policies: RunPolicies) -> None:
    """All that is compacted goes, by a run that has nothing to do a millisecond earlier."""
    bench.advance(milliseconds - 1)
    assert not compact(bench, topic, policies)
    bench.advance(1)
    assert compact(bench, topic, policies)
    assert offsets(topic) == []


def tables(bench: Workbench, topic: Topic) -> tuple[ChunkTable, ...]:
    return bench.manifest(topic).chunks


def test_all_chunks_of_the_newest_value_stay_and_a_reader_gets_one_message(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, [message(b"k", b"old"), *whole("u", b"k", b"A", b"B", b"C")])
    compact(bench, topic)
    assert offsets(topic) == [1, 2, 3]
    assert values(topic) == [(b"k", b"ABC")]
    newest = topic.newest_value(b"k")
    assert newest is not None
    assert (newest.offset, newest.payload) == (3, b"ABC")


def test_chunks_that_lie_far_apart_are_named_once(bench: Workbench) -> None:
    """Row sets of few offsets over a wide span are sorted, not marked: nothing may be in them twice."""
    topic = bench.topic()
    between = [message(b"k", b"v")] * 400
    append(bench, topic, [chunk("u", 0, 2, b"l", b"A"), *between, chunk("u", 1, 2, b"l", b"B")])
    compact(bench, topic)
    assert offsets(topic) == [0, 400, 401]
    append(bench, topic, [message(b"l", b"new")])
    compact(bench, topic)
    assert offsets(topic) == [400, 402]


@pytest.mark.parametrize("newer", [b"new", None])
def test_all_chunks_go_with_a_message_that_is_superseded(bench: Workbench, newer: bytes | None) -> None:
    """In the same run and in a later one, by a value or a tombstone."""
    topic = bench.topic()
    append(bench, topic, [*whole("u", b"k", b"A", b"B"), message(b"k", newer), *whole("v", b"l", b"C", b"D")])
    compact(bench, topic)
    assert offsets(topic) == ([2, 3, 4] if newer else [3, 4])
    append(bench, topic, [message(b"l", newer)])
    compact(bench, topic)
    assert offsets(topic) == ([2, 5] if newer else [])
    assert tables(bench, topic) == ()


def test_an_incomplete_message_supersedes_nothing_until_a_later_run_completes_it(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, [message(b"k", b"old"), chunk("u", 0, 3, b"k", b"A")])
    append(bench, topic, [chunk("u", 1, 3, b"k", b"B")])
    compact(bench, topic)
    assert offsets(topic) == [0, 1, 2]
    assert values(topic) == [(b"k", b"old")]
    assert not compact(bench, topic)
    append(bench, topic, [chunk("u", 2, 3, b"k", b"C")])
    newest = topic.newest_value(b"k")
    assert newest is not None
    assert newest.payload == b"ABC"
    compact(bench, topic)
    assert offsets(topic) == [1, 2, 3]
    assert values(topic) == [(b"k", b"ABC")]


def test_an_incomplete_message_expires_a_day_after_its_newest_chunk(bench: Workbench) -> None:
    """P11: nothing is new until then, and no other policy goes by time."""
    topic = bench.topic()
    append(bench, topic, [message(b"k", b"old"), chunk("u", 0, 3, b"k", b"A")])
    bench.advance(1000)
    append(bench, topic, [chunk("u", 1, 3, b"k", b"B")])
    assert compact(bench, topic)
    bench.advance(DAY - 1)
    assert not compact(bench, topic)
    assert offsets(topic) == [0, 1, 2]
    bench.advance(1)
    assert compact(bench, topic)
    assert offsets(topic) == [0]
    append(bench, topic, [chunk("u", 2, 3, b"k", b"C")])
    compact(bench, topic)
    assert values(topic) == [(b"k", b"old")]


def test_a_chunk_that_goes_by_a_limit_keeps_no_other(bench: Workbench) -> None:
    """The newest chunk is below the topic's start: the one that is left is judged by itself, in one run (C2, P11)."""
    topic = bench.topic()
    now = bench.clock.now_ms()
    newest, remaining = chunk("u", 0, 3, b"k", b"A"), chunk("u", 1, 3, b"k", b"B", publish_time=now - DAY)
    append(bench, topic, [newest, message(b"l", b"v"), remaining, message(b"m", b"v")])
    policies = RunPolicies(start_offset=1)
    assert compact(bench, topic, policies)
    assert offsets(topic) == [1, 3]
    assert not compact(bench, topic, policies)


@pytest.mark.parametrize("retain", [False, True])
def test_without_a_key_it_is_kept_whole_or_dropped(bench: Workbench, retain: bool) -> None:
    topic = bench.topic()
    append(bench, topic, [*whole("u", None, b"A", b"B"), chunk("v", 0, 2, None, b"C")])
    compact(bench, topic, RunPolicies(retain_null_key=retain))
    assert offsets(topic) == ([0, 1, 2] if retain else [2])
    compact(bench, topic, RunPolicies(retain_null_key=False))
    assert offsets(topic) == [2]


def test_without_any_payload_it_is_a_tombstone_that_is_retained_whole(bench: Workbench) -> None:
    topic = bench.topic()
    policies = RunPolicies(tombstone_retention_ms=1000)
    append(bench, topic, [message(b"k", b"v"), *whole("u", b"k", None, b"")])
    compact(bench, topic, policies)
    assert offsets(topic) == [1, 2]
    assert topic.newest_value(b"k") is None
    assert_goes_after(bench, topic, 1000, policies)


def test_its_time_to_live_is_counted_from_its_last_chunk(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, [chunk("u", 0, 2, b"k", b"A")])
    bench.advance(500)
    append(bench, topic, [chunk("u", 1, 2, b"k", b"B")])
    policies = RunPolicies(key_ttl_ms=1000)
    compact(bench, topic, policies)
    assert_goes_after(bench, topic, 1000, policies)


def test_by_event_time_the_first_chunk_counts(bench: Workbench) -> None:
    """P9, and a topic that changes its order: the message is in an index that is created again."""
    topic = bench.topic()
    first = [chunk("u", 0, 2, b"k", b"A", event_time=9), chunk("u", 1, 2, b"k", b"B", event_time=1)]
    append(bench, topic, [*first, message(b"l", b"v", event_time=1)])
    compact(bench, topic)
    append(bench, topic, [message(b"k", b"late", event_time=5)])
    compact(bench, topic, RunPolicies(event_time_order=True))
    assert offsets(topic) == [0, 1, 2]
    append(bench, topic, [message(b"k", b"new", event_time=9)])
    compact(bench, topic, RunPolicies(event_time_order=True))
    assert offsets(topic) == [2, 4]


@pytest.mark.parametrize("key_has_plain", [True, False])
def test_by_event_time_it_counts_though_no_plain_message_has_one(bench: Workbench, key_has_plain: bool) -> None:
    """Event times of chunks are in chunk tables only: a ledger's index may have none, and yet they decide."""
    topic = bench.topic()
    policies = RunPolicies(event_time_order=True)
    append(bench, topic, [*whole("u", b"k", b"A", b"B", event_time=9), *whole("x", b"l", b"C", event_time=9)])
    compact(bench, topic, policies)
    later = [message(b"k", None), message(b"l", None)] if key_has_plain else whole("v", b"k", None, b"")
    append(bench, topic, later)  # older than any: without an event time
    compact(bench, topic, policies)
    assert values(topic) == [(b"k", b"AB"), (b"l", b"C")]
    assert bench.manifest(topic).dropped_to == -1  # no deletion was one


def test_without_any_payload_it_deletes_by_event_time(bench: Workbench) -> None:
    """A tombstone with the event time of its first chunk, at the offset of its last; then remembered (P5, P9)."""
    topic = bench.topic()
    policies = RunPolicies(event_time_order=True)
    now = bench.clock.now_ms()
    append(bench, topic, [*whole("u", b"k", b"A", b"B", event_time=now), message(b"l", b"v")])
    compact(bench, topic, policies)
    first, last = whole("v", b"k", None, b"", event_time=now + 1)
    append(bench, topic, [first, message(b"k", b"older"), last | {"event_time": None}, message(b"m", b"v")])
    compact(bench, topic, policies)
    assert values(topic) == [(b"l", b"v"), (b"m", b"v")]
    assert bench.manifest(topic).dropped_to == 5
    append(bench, topic, whole("w", b"k", b"late", b"", event_time=now))
    compact(bench, topic, policies)
    assert topic.newest_value(b"k") is None
    append(bench, topic, whole("w", b"k", b"", b"newer", event_time=now + 2))
    compact(bench, topic, policies)
    assert values(topic) == [(b"l", b"v"), (b"m", b"v"), (b"k", b"newer")]


def test_a_uuid_that_comes_again_is_another_message_and_what_was_begun_before_goes(bench: Workbench) -> None:
    """A named producer that restarts uses its uuids again: chunks of two messages are never mixed."""
    topic = bench.topic()
    append(bench, topic, [chunk("u", 0, 2, b"k", b"lost"), *whole("u", b"k", b"A", b"B"), chunk("u", 1, 2, b"k", b"B")])
    compact(bench, topic)
    assert offsets(topic) == [1, 2, 3]
    append(bench, topic, whole("u", b"k", b"C", b"D"))
    compact(bench, topic)
    assert offsets(topic) == [4, 5]
    assert values(topic) == [(b"k", b"CD")]


def test_a_topic_without_chunks_has_no_table(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, [message(b"k", b"v")])
    compact(bench, topic)
    assert tables(bench, topic) == ()
    assert b'"chunks"' not in bench.store.get(compacted_ledger(topic).manifest.name)


def test_a_damaged_table_fails_the_run_and_leaves_what_serves(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, whole("u", b"k", b"A", b"B"))
    compact(bench, topic)
    (table,) = tables(bench, topic)
    data = bench.store.get(table.name)
    bench.store.delete(table.name)
    bench.store.put(table.name, data[:-1] + bytes([data[-1] ^ 1]))
    append(bench, topic, [message(b"k", b"new")])
    with pytest.raises(ObjectDamaged, match=f"the chunk table in {table.name} does not match its checksum"):
        bench.compactor().compact(topic.name)
    assert offsets(topic) == [0, 1]


# --- verify


Forgery = Callable[[chunk_table.Chunks], chunk_table.Chunks]


def altered(chunks: chunk_table.Chunks) -> chunk_table.Chunks:
    chunks["publish_time"][0] += 1
    return chunks


@pytest.mark.parametrize(
    ("forgery", "kind"),
    [
        pytest.param(lambda chunks: chunks[1:], DifferenceKind.MISSING, id="a chunk is missing"),
        pytest.param(lambda chunks: chunks[:-1], DifferenceKind.MISSING, id="the last chunk is missing"),
        pytest.param(
            lambda chunks: np.concatenate([chunks, chunks[-1:]]), DifferenceKind.INCONSISTENT, id="one is there twice"
        ),
        pytest.param(altered, DifferenceKind.ALTERED, id="a time is another"),
    ],
)
def test_verify_finds_a_table_that_is_not_what_the_rows_say(
    bench: Workbench, forgery: Forgery, kind: DifferenceKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bench.topic()
    append(bench, topic, [*whole("u", b"k", b"A", b"B"), message(b"l", b"v")])
    compact(bench, topic)
    genuine = chunk_table.read_chunk_tables
    monkeypatch.setattr(
        chunk_table, "read_chunk_tables", lambda *arguments: [forgery(item.copy()) for item in genuine(*arguments)]
    )
    assert kind in verified(bench, topic).counts


def test_verify_finds_a_chunk_that_should_have_gone(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that a run kept though their message was superseded, in table and parts alike."""
    from compactor.run.chunked_messages import RangeChunks

    topic = bench.topic()
    append(bench, topic, [*whole("u", b"k", b"A", b"B"), message(b"k", b"new"), chunk("v", 0, 2, b"l", b"C")])
    monkeypatch.setattr(RangeChunks, "decide", keep_everything)
    bench.compactor().compact(topic.name)
    assert offsets(topic) == [0, 2, 3]
    report = verified(bench, topic)
    assert [(difference.kind, difference.offset) for difference in report.differences] == [(DifferenceKind.EXTRA, 0)]


def keep_everything(self: object, resolved: object) -> object:
    from compactor.run.chunked_messages import ChunkDecision

    assembled = self._assembled  # type: ignore[attr-defined]
    kept = (
        assembled.chunks[assembled.message_numbers != 0]
        if len(assembled.last_chunks) == 0
        else assembled.chunks[np.arange(len(assembled.chunks)) != assembled.last_chunks[0]]
    )
    kept = kept[np.argsort(chunk_table.chunk_offsets(kept))]
    newest = int(kept["publish_time"].min())
    return ChunkDecision(kept, chunk_table.chunk_offsets(kept), pending=len(kept), oldest_pending=newest)


def test_what_a_hash_range_reads_of_tables_is_only_what_may_be_its_own(bench: Workbench) -> None:
    topic = bench.topic()
    append(bench, topic, [row for n in range(20) for row in whole(f"u{n}", b"k%d" % n, b"A", b"B")])
    compact(bench, topic)
    chunk_tables = tables(bench, topic)
    assert len(chunk_tables) > 1
    whole_range = chunk_table.read_chunk_tables(bench.store, chunk_tables, HashRange())
    assert sum(map(len, whole_range)) == 40
    for table in chunk_tables:
        (selected,) = chunk_table.read_chunk_tables(bench.store, chunk_tables, table.hash_range)
        assert len(selected) == table.record_count
