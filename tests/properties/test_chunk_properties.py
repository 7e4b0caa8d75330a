"""P10 on any schedule: chunked messages interleaved, repeated, incomplete, across ledgers and runs.

Every compacted ledger is compared whole with the reference, chunk by chunk; readers, point reads and verify with what
its messages say. The rule that puts chunks together is written three times (reference, readers, arrays): they agree.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from compactor import reference
from compactor.engines.engine import Engine, InProcessEngine
from compactor.run.plan import RunPolicies, Sizing
from compactor.verify.verify import Verifier
from storage.entries.chunk_assembler import assemble_chunks, row_messages
from storage.ledger import chunk_table
from storage.ledger.chunk_table import PENDING, STALE, assemble_chunk_records, chunk_offsets, chunk_records
from storage.ledger.hashing import Xxh3KeyHasher
from storage.ledger.key_index import NO_EVENT_TIME, HashRange
from storage.ledger.manifest import Manifest, read_manifest
from storage.model import Message
from storage.topic import Topic
from tests.budgets import SPARK_EXAMPLES, within
from tests.chunked import Drawn, append, compacted_rows, drawn_rows, table_of
from tests.clocks import ManualClock
from tests.properties.test_schedules import acknowledge, retained_at, sizings, value_of
from tests.sealed import SEED, CollidingHasher
from tests.workbench import Workbench

START = ManualClock().now_ms()
policies = st.builds(
    RunPolicies,
    retain_null_key=st.booleans(),
    tombstone_retention_ms=st.sampled_from([0, 0, 15, 50]),
    tombstones_wait_for_cursors=st.sampled_from([False, False, True]),
    key_ttl_ms=st.sampled_from([None, None, 20, 70]),
    event_time_order=st.booleans(),
    event_time_max_lateness_ms=st.sampled_from([10, 60, 10_000]),
    incomplete_chunk_max_age_ms=st.sampled_from([None, 20, 80, 10_000]),
    retention_ms=st.sampled_from([None, None, None, 100]),
    start_offset=st.sampled_from([0, 0, 0, 3, 12]),
)
steps = st.lists(
    st.fixed_dictionaries(
        {
            "ledgers": st.lists(st.lists(drawn_rows, min_size=1, max_size=8), max_size=3),
            "later": st.sampled_from([0, 1, 10, 30, 100]),
            "policies": st.none() | policies,
            "sizing": sizings,
            "acknowledged": st.none() | st.floats(0, 1),
        }
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@within(fast=1, ci=2)
@settings(max_examples=300)
@given(st.lists(drawn_rows, max_size=40), st.booleans())
def test_chunks_are_put_together_in_the_same_way_everywhere(drawn: list[dict[str, Any]], colliding: bool) -> None:
    table = table_of(Drawn().rows(drawn, START, START), 3, 100, START)
    stored_rows = list(row_messages(iter(table.to_batches()), -1))
    messages, rows_of, pending = reference.assemble_messages(stored_rows)
    assert list(assemble_chunks(stored_rows)) == messages

    records = chunk_records(table, CollidingHasher() if colliding else Xxh3KeyHasher(SEED))
    created = assemble_chunk_records(records[::-1])
    chunked = [message for message in messages if stored_rows[message.offset - 100].is_chunk]
    assert sorted(created.message_offsets.tolist()) == [item.offset for item in chunked]
    for number, (at, empty) in enumerate(zip(created.last_chunks, created.empty, strict=True)):
        own_chunks = created.chunks[created.message_numbers == number]
        (message,) = [item for item in chunked if item.offset == chunk_offsets(created.chunks[at : at + 1])[0]]
        assert chunk_offsets(own_chunks).tolist() == [row.offset for row in rows_of[message.offset]]
        assert empty == (not message.payload)
        event_time = created.chunks["event_time"][created.first_chunks[number]]
        assert (None if event_time == NO_EVENT_TIME else event_time) == message.event_time
    carried = sorted(row.offset for group in pending for row in group)
    assert sorted(chunk_offsets(created.chunks[created.message_numbers == PENDING])) == carried
    everyone = sorted(
        [
            *carried,
            *chunk_offsets(created.chunks[created.message_numbers >= 0]),
            *chunk_offsets(created.chunks[created.message_numbers == STALE]),
        ]
    )
    assert everyone == [row.offset for row in stored_rows if row.is_chunk]
    newest = created.newest_pending_times()[np.unique(created.group_numbers[created.message_numbers == PENDING])]
    assert sorted(newest) == sorted(max(row.publish_time for row in group) for group in pending)


def replay(engine: Engine, schedule: list[dict[str, Any]], used: RunPolicies, colliding: bool, uniform: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench.embedded(Path(folder), engine)
        hasher = CollidingHasher() if colliding else None
        topic = bench.topic(hasher=hasher)
        try:
            _replay(bench, topic, hasher, schedule, used, uniform)
        finally:
            bench.metadata.close()


def _replay(
    bench: Workbench, topic: Topic, hasher: Any, schedule: list[dict[str, Any]], used: RunPolicies, uniform: bool
) -> None:
    clock = bench.clock
    drawn = Drawn()
    state = reference.ReferenceLedger()
    everything: list[Message] = []
    horizon = -1
    for step in schedule:
        clock.advance(step["later"])
        for ledger in step["ledgers"]:
            everything += append(bench, topic, drawn.rows(ledger, clock.now_ms(), START), hasher)
        if not everything:
            continue
        if step["acknowledged"] is not None:
            acknowledge(bench, topic, everything[int(step["acknowledged"] * (len(everything) - 1))])
        used = used if uniform else step["policies"] or used
        floor = (
            bench.metadata.cursors.slowest_compacted_reader_offset(topic.record.id)
            if used.tombstones_wait_for_cursors
            else None
        )
        added = [row for row in everything if row.offset > horizon]
        expected = reference.run(state, added, used, clock.now_ms(), floor)
        for key in {row.key for row in everything if row.key is not None}:
            assert topic.newest_value(key) == value_of(
                key, whole(state), tail_of(state, added), of(topic, bench), clock.now_ms()
            )
        compactor = bench.with_sizing(step["sizing"]).compactor(hasher)
        foretold = compactor.dry_run(topic.name, used)
        outcome = compactor.compact(topic.name, used)
        horizon = everything[-1].offset
        if outcome.run is None:
            assert expected.messages == state.messages
            assert (expected.retained_at, expected.dropped_to) == (state.retained_at, state.dropped_to)
        state = expected
        assert compacted_rows(topic) == list(state.messages)
        assert foretold["messages_out"] == len(state.messages)
        compare(bench, topic, state, horizon)
        for key in {row.key for row in everything if row.key is not None}:
            assert topic.newest_value(key) == value_of(key, whole(state), [], of(topic, bench), clock.now_ms())
        assert list(topic.messages(read_compacted=True)) == reference.assemble_messages(state.messages).messages
        assert list(row_messages(topic.read(), -1)) == everything
        assert bench.compactor(hasher).compact(topic.name, used).run is None  # property 3, P11
        verifier = Verifier(replace(bench, clock=clock), bench.engine, sizing=step["sizing"])
        report = (verifier if hasher is None else replace(verifier, hasher=lambda _: hasher)).verify(topic.name)
        assert report.differences == ()
        assert report.total == 0


def compare(bench: Workbench, topic: Topic, state: reference.ReferenceLedger, horizon: int) -> None:
    """Compare the manifest of the compacted ledger with the reference."""
    manifest = manifest_of(topic, bench)
    messages, _, pending = reference.assemble_messages(state.messages)
    keyed = [message for message in messages if message.key is not None]
    assert (manifest.keys, manifest.tombstones) == (len(keyed) - len(state.retained_at), len(state.retained_at))
    assert manifest.dropped_to == state.dropped_to
    assert manifest.messages == len(state.messages)
    tables = [chunk_table.empty_chunks(), *chunk_table.read_chunk_tables(bench.store, manifest.chunks, HashRange())]
    chunks = np.concatenate(tables)
    assert sorted(chunk_offsets(chunks)) == [row.offset for row in state.messages if row.is_chunk]
    sizes = [table.record_count for table in manifest.chunks]
    assert [len(table) for table in tables[1:]] == sizes
    assert all(size > 0 for size in sizes)
    assert sum(chunk.pending for chunk in manifest.chunks) == sum(map(len, pending))
    kept = chunks[chunks["retained_at"] != NO_EVENT_TIME]
    times = dict(zip(chunk_offsets(kept).tolist(), kept["retained_at"].tolist(), strict=True))
    assert retained_at(topic, horizon) | times == state.retained_at


def manifest_of(topic: Topic, bench: Workbench) -> Manifest:
    compacted = topic.snapshot().compacted
    assert compacted is not None
    return read_manifest(bench.store, compacted.manifest)


def of(topic: Topic, bench: Workbench) -> RunPolicies:
    """The policies that serve."""
    return RunPolicies() if topic.snapshot().compacted is None else RunPolicies(**manifest_of(topic, bench).policies)


def whole(state: reference.ReferenceLedger) -> reference.ReferenceLedger:
    """The state with its messages whole."""
    return replace(state, messages=tuple(reference.assemble_messages(state.messages).messages))


def tail_of(state: reference.ReferenceLedger, added: list[Message]) -> list[Message]:
    """The messages that rows behind the horizon complete."""
    messages, _, _ = reference.assemble_messages([*state.messages, *added])
    behind = added[0].offset if added else 0
    return [message for message in messages if added and message.offset >= behind]


def drawn_row(uuid: str | None, payload: bytes | None, event_time: int | None) -> dict[str, Any]:
    """A row of key a as `drawn_rows` has them, in order and in time."""
    row = {"uuid": uuid, "key": b"a", "payload": payload, "event_time": event_time}
    return row | {"index": None, "other_key": False, "late": 0}


def one_run(*ledgers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The schedule of one run over some ledgers."""
    return [{"ledgers": ledgers, "later": 0, "policies": None, "sizing": Sizing(1), "acknowledged": None}]


BY_EVENT = RunPolicies(event_time_order=True)


@pytest.mark.slow
@within(fast=2, ci=3)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@example(one_run([drawn_row("x", b"1", 130), drawn_row(None, None, None)]), BY_EVENT, False, True)
@example(one_run([drawn_row("x", b"1", 1)], [drawn_row("u", None, 2), drawn_row("u", b"", 0)]), BY_EVENT, False, True)
@given(steps, policies, st.booleans(), st.booleans())
def test_equals_the_reference_replayed_over_the_same_schedule(
    schedule: list[dict[str, Any]], first: RunPolicies, colliding: bool, uniform: bool
) -> None:
    replay(InProcessEngine(), schedule, first, colliding, uniform)


@within(fast=2, ci=2)
@pytest.mark.slow
@settings(max_examples=SPARK_EXAMPLES // 2, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(steps, policies)
def test_on_spark_too(spark_engine: Engine, schedule: list[dict[str, Any]], first: RunPolicies) -> None:
    replay(spark_engine, schedule, first, False, True)
