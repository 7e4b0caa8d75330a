"""Any schedule of runs, policies, clock and cursors against the reference: semantics.md, properties 4, 13, 19.

Each step appends, lets time go by, moves a cursor, and compacts by policies of its own, on sizes at which a handful of
messages has several parts, index levels and hash ranges. After each run the compacted ledger is compared whole, with
the times at which tombstones were first kept, and what a reader must know of dropped ones.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from compactor import reference
from compactor.engines.engine import Engine, InProcessEngine
from compactor.run.plan import RunPolicies, Sizing
from storage.ledger.manifest import read_manifest
from storage.log.bulk_append import INPUT_SCHEMA
from storage.model import LogPosition, Message
from storage.topic import Topic
from tests.budgets import SPARK_EXAMPLES, within
from tests.clocks import ManualClock
from tests.sealed import CollidingHasher
from tests.workbench import Workbench, compacted_only, raw

START = ManualClock().now_ms()
keys = st.sampled_from([b"", b"a", b"b", b"c", b"d", b"e", b"f", b"g"])
times = st.integers(START - 60, START + 200)
rows = st.fixed_dictionaries(
    {
        "key": st.one_of(keys, keys, keys, keys, st.none()),
        "payload": st.one_of(st.none(), st.just(b""), st.binary(min_size=1, max_size=12), st.binary(min_size=1)),
        "publish_time": st.none() | times,
        "event_time": st.none() | times,
    }
)
policies = st.builds(
    RunPolicies,
    retain_null_key=st.booleans(),
    tombstone_retention_ms=st.sampled_from([0, 0, 15, 50]),
    tombstones_wait_for_cursors=st.booleans(),
    key_ttl_ms=st.sampled_from([None, None, 20, 70]),
    min_lag_ms=st.sampled_from([0, 0, 10]),
    event_time_order=st.booleans(),
    event_time_max_lateness_ms=st.sampled_from([10, 60, 10_000]),
    retention_ms=st.sampled_from([None, None, None, 20, 90]),
    start_offset=st.sampled_from([0, 0, 0, 3, 12]),
)
sizings = st.builds(
    Sizing,
    parallelism=st.integers(1, 3),
    range_records=st.integers(1, 30),
    part_bytes=st.sampled_from([1, 3000, 12_000, 1 << 20]),
    small_range_records=st.sampled_from([1, 1000]),
    small_part_bytes=st.sampled_from([1, 1 << 20]),
    max_garbage_ratio=st.sampled_from([0.0, 0.3, 0.5, 0.9, 1.0]),
)
steps = st.lists(
    st.fixed_dictionaries(
        {
            "messages": st.lists(rows, max_size=12),
            "ledger_bytes": st.sampled_from([1, 40, 1 << 20]),
            "later": st.sampled_from([0, 1, 10, 30, 100]),
            "policies": st.none() | policies,
            "sizing": sizings,
            "acknowledged": st.none() | st.floats(0, 1),
        }
    ),
    min_size=1,
    max_size=7,
)


def replay(engine: Engine, schedule: list[dict[str, Any]], first: RunPolicies, colliding: bool) -> None:
    """Run the schedule. RunPolicies of a step stay until another step has some, as those of a topic do."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench.embedded(Path(folder), engine)
        hasher = CollidingHasher() if colliding else None
        topic = bench.topic(hasher=hasher)
        try:
            _replay(bench, topic, hasher, schedule, first)
        finally:
            bench.metadata.close()


def _replay(bench: Workbench, topic: Topic, hasher: Any, schedule: list[dict[str, Any]], used: RunPolicies) -> None:
    clock = bench.clock
    state = reference.ReferenceLedger()
    everything: list[Message] = []
    horizon = -1
    for step in schedule:
        clock.advance(step["later"])
        if step["messages"]:
            table = pa.Table.from_pylist(step["messages"], schema=INPUT_SCHEMA)
            everything += bench.append(topic, [table], step["ledger_bytes"])
        if step["acknowledged"] is not None and everything:
            acknowledge(bench, topic, everything[int(step["acknowledged"] * (len(everything) - 1))])
        used = step["policies"] or used
        floor = (
            bench.metadata.cursors.slowest_compacted_reader_offset(topic.record.id)
            if used.tombstones_wait_for_cursors
            else None
        )

        end = last_old_enough(topic, used, clock.now_ms(), horizon)
        added = [message for message in everything if horizon < message.offset <= end]
        expected = reference.run(state, added, used, clock.now_ms(), floor)
        outcome = bench.with_sizing(step["sizing"]).compactor(hasher).compact(topic.name, used)
        horizon = max(horizon, end)
        snapshot = topic.snapshot()
        if horizon < 0:
            assert snapshot.compacted is None
            continue
        if outcome.run is None:
            # P11: then there was indeed nothing to do
            assert expected.messages == state.messages
            assert (expected.retained_at, expected.dropped_to) == (state.retained_at, state.dropped_to)
        state = expected

        assert snapshot.compacted is not None
        assert snapshot.compacted.horizon.offset == horizon
        manifest = read_manifest(bench.store, snapshot.compacted.manifest)
        assert compacted_only(topic) == list(state.messages)
        assert retained_at(topic, horizon) == state.retained_at
        assert manifest.dropped_to == state.dropped_to
        assert manifest.messages == snapshot.compacted.messages == len(state.messages)
        assert manifest.tombstones == len(state.retained_at)
        keyed = [message for message in state.messages if message.key is not None]
        assert manifest.keys == len(keyed) - len(state.retained_at)
        last = state.messages[-1].message_id if state.messages else None
        assert snapshot.compacted.last_message_id == last
        assert raw(topic) == everything
        tail = [message for message in everything if message.offset > horizon]
        for key in {message.key for message in everything if message.key is not None}:
            assert topic.newest_value(key) == value_of(
                key, state, tail, RunPolicies(**manifest.policies), clock.now_ms()
            )
        assert bench.compactor(hasher).compact(topic.name, used).run is None  # property 3, P11


def value_of(
    key: bytes, state: reference.ReferenceLedger, tail: list[Message], used: RunPolicies, now: int
) -> Message | None:
    """T4, by hand: the winner of the key among compacted messages, what is remembered of it, and the tail."""
    by_event = used.event_time_order
    candidates: list[tuple[tuple[int, int], Message | None]] = []
    for message in [*state.messages, *tail]:
        if message.key == key:
            event_time = -(2**63) if message.event_time is None or not by_event else message.event_time
            candidates.append(((event_time, message.offset), message))
    if by_event and key in state.markers and state.markers[key][0] > now - used.event_time_max_lateness_ms:
        candidates.append((state.markers[key], None))
    winner = max(candidates, key=lambda item: item[0])[1] if candidates else None
    return None if winner is None or winner.is_tombstone else winner


def acknowledge(bench: Workbench, topic: Topic, message: Message) -> None:
    """Move the one compacted cursor there."""
    bench.metadata.cursors.ensure(topic.record.id, "slow")
    bench.metadata.cursors.set_properties(topic.record.id, "slow", {"readCompacted": "true"})
    bench.metadata.cursors.reset(topic.record.id, "slow", LogPosition(message.offset, message.message_id))


def last_old_enough(topic: Topic, used: RunPolicies, now: int, horizon: int) -> int:
    """P2, from the ledgers' own messages: whole ledgers up to the first that holds one that is too young.

    None is younger than the ledger that holds it, whatever its publish time says.
    """
    end = horizon
    for ledger in topic.snapshot().ledgers:
        if ledger.last_offset <= horizon:
            continue
        inside = [m for m in topic.messages() if ledger.first_offset <= m.offset <= ledger.last_offset]
        if used.min_lag_ms and any(
            min(message.publish_time, ledger.created_at) > now - used.min_lag_ms for message in inside
        ):
            break
        end = ledger.last_offset
    return end


def retained_at(topic: Topic, horizon: int) -> dict[int, int]:
    """Return, by offset, when a compaction first kept each row that has this time."""
    return {
        offset: time
        for batch in topic.read(read_compacted=True)
        for offset, time in zip(batch["offset"].to_pylist(), batch["retained_at"].to_pylist(), strict=True)
        if time is not None and offset <= horizon
    }


@pytest.mark.slow
@within(fast=2, ci=3)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(steps, policies, st.booleans())
def test_equals_the_reference_replayed_over_the_same_schedule(
    schedule: list[dict[str, Any]], first: RunPolicies, colliding: bool
) -> None:
    replay(InProcessEngine(), schedule, first, colliding)


@within(fast=2, ci=2)
@pytest.mark.slow
@settings(max_examples=SPARK_EXAMPLES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(steps, policies)
def test_on_spark_too(spark_engine: Engine, schedule: list[dict[str, Any]], first: RunPolicies) -> None:
    replay(spark_engine, schedule, first, False)
