"""Trimming by any policies, and compaction under `compact,delete`, against plain lists and the reference.

Random ledgers, policies, cursors, trims, runs, and a clock: what is trimmed is a prefix of the topic, never past what
a cursor or compaction needs unless forced; trimming twice is trimming once; the start only grows; `compact` changes no
compacted read; and each run gives what the reference gives over the same schedule.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from compactor import reference
from compactor.engines.engine import InProcessEngine
from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies, Sizing
from compactor.run.run_policies import run_policies_from_stored
from storage.ledger.manifest import read_manifest
from storage.log.bulk_append import INPUT_SCHEMA
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import COMPACTION_CURSOR
from storage.model import Message
from storage.topic import Topic
from tests.budgets import within
from tests.clocks import ManualClock
from tests.sealed import live_rows
from tests.workbench import Workbench

START = ManualClock().now_ms()
keys = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])
rows = st.fixed_dictionaries(
    {
        "key": st.one_of(keys, keys, keys, keys, st.none()),
        "payload": st.one_of(st.none(), st.binary(min_size=1, max_size=9), st.binary(min_size=1, max_size=9)),
        "publish_time": st.integers(START - 60, START + 120),
        "event_time": st.none() | st.integers(START - 60, START + 120),
    }
)
sizings = st.builds(
    Sizing,
    parallelism=st.integers(1, 3),
    range_records=st.integers(1, 30),
    part_bytes=st.sampled_from([1, 3000, 1 << 20]),
    small_range_records=st.sampled_from([1, 1000]),
    small_part_bytes=st.sampled_from([1, 1 << 20]),
    max_garbage_ratio=st.sampled_from([0.0, 0.5, 1.0]),
)
run_policies = st.builds(
    RunPolicies,
    retain_null_key=st.booleans(),
    tombstone_retention_ms=st.sampled_from([0, 15, 1000]),
    key_ttl_ms=st.sampled_from([None, None, 40]),
    event_time_order=st.booleans(),
    event_time_max_lateness_ms=st.sampled_from([10, 10_000]),
    retention_ms=st.sampled_from([None, 0, 20, 60, 100]),
)
run_steps = st.lists(
    st.fixed_dictionaries(
        {
            "messages": st.lists(rows, max_size=10),
            "ledger_bytes": st.sampled_from([1, 40, 1 << 20]),
            "later": st.sampled_from([0, 1, 10, 30, 100]),
            "policies": st.none() | run_policies,
            "begins": st.none() | st.floats(0, 1),
            "trims": st.none() | st.none() | st.floats(0, 1),
            "sizing": sizings,
        }
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@within(fast=2, ci=3)
@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(run_steps, run_policies)
def test_runs_within_limits_of_time_and_start_equal_the_reference(
    schedule: list[dict[str, Any]], used: RunPolicies
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench.embedded(Path(folder), InProcessEngine())
        try:
            _replay(bench, bench.topic(), schedule, used)
        finally:
            bench.metadata.close()


def _replay(bench: Workbench, topic: Topic, schedule: list[dict[str, Any]], used: RunPolicies) -> None:
    clock = bench.clock
    state, everything, horizon, begins = reference.ReferenceLedger(), list[Message](), -1, 0
    for step in schedule:
        clock.advance(step["later"])
        if step["messages"]:
            table = pa.Table.from_pylist(step["messages"], schema=INPUT_SCHEMA)
            everything += bench.append(topic, [table], step["ledger_bytes"])
        if step["begins"] is not None:
            begins = max(begins, int(step["begins"] * len(everything)))
        if step["trims"] is not None:  # anywhere: within a ledger too
            before = max(topic.snapshot().topic.start_offset, int(step["trims"] * len(everything)))
            Retention(replace(bench, clock=clock)).trim(topic.record, before, force=True)
        base = step["policies"] or used
        used = RunPolicies(**{**vars(base), "start_offset": begins})

        before_run = topic.snapshot()
        end = max([horizon, *(ledger.last_offset for ledger in before_run.ledgers)])
        added = [message for message in everything if horizon < message.offset <= end]
        expected = reference.run(state, added, used, clock.now_ms(), raw_from=before_run.topic.start_offset)
        outcome = bench.with_sizing(step["sizing"]).compactor().compact(topic.name, used)
        horizon = end
        snapshot = topic.snapshot()
        if horizon < 0:
            continue
        if outcome.run is None:
            assert expected.messages == state.messages
            assert expected.retained_at == state.retained_at
        state = expected
        assert snapshot.compacted is not None
        manifest = read_manifest(bench.store, snapshot.compacted.manifest)
        live = live_rows(bench.store, manifest)
        assert live.column("offset").to_pylist() == [message.offset for message in state.messages]
        assert manifest.tombstones == len(state.retained_at)
        assert manifest.dropped_to == state.dropped_to
        assert manifest.keys == sum(message.key is not None for message in state.messages) - manifest.tombstones
        last = state.messages[-1].message_id if state.messages else None
        assert snapshot.compacted.last_message_id == last
        assert bench.compactor().compact(topic.name, used).run is None, "P11: nothing more is due"


cleanups = st.sampled_from(["", "delete", "compact", "compact,delete"])
trim_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(rows, min_size=1, max_size=5)),
        st.tuples(st.just("wait"), st.sampled_from([1, 30, 100])),
        st.tuples(st.just("policy"), cleanups),
        st.tuples(st.just("time"), st.sampled_from([-1, 0, 50, 100])),
        st.tuples(st.just("bytes"), st.sampled_from([-1, 0, 10, 40])),
        st.tuples(st.just("cursor"), st.floats(0, 1)),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("apply"), st.booleans()),
        st.tuples(st.just("apply"), st.just(False)),
        st.tuples(st.just("trim"), st.tuples(st.floats(0, 1), st.booleans())),
    ),
    max_size=25,
)


@pytest.mark.slow
@within(fast=2, ci=2)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(trim_steps)
def test_trimming_takes_a_prefix_that_nobody_needs(schedule: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench.embedded(Path(folder), InProcessEngine())
        try:
            topic = bench.topic()
            for what, value in schedule:
                _step(bench, topic, what, value)
        finally:
            bench.metadata.close()


def _step(bench: Workbench, topic: Topic, what: str, value: Any) -> None:
    clock, scope = bench.clock, topic_scope(topic.record)
    if what == "append":
        bench.append(topic, [pa.Table.from_pylist(value, schema=INPUT_SCHEMA)], 20)
    elif what == "wait":
        clock.advance(value)
    elif what in ("policy", "time", "bytes"):
        name = {"policy": "cleanup.policy", "time": "retention.ms", "bytes": "retention.bytes"}[what]
        bench.metadata.policies.change([scope], {name: value})
    elif what == "cursor":
        messages = list(topic.messages())
        if messages:
            chosen = messages[int(value * (len(messages) - 1))]
            bench.metadata.cursors.ensure(topic.record.id, "reader")
            bench.metadata.cursors.reset(topic.record.id, "reader", topic.first_raw_at_or_after(chosen.offset))
    elif what == "compact":
        bench.compactor().compact(topic.name, lambda record: run_policies_from_stored(bench.metadata, record))
    elif what == "apply":
        _trimmed(bench, topic, None, force=value)
    else:
        _trimmed(bench, topic, value[0], force=value[1])


def _trimmed(bench: Workbench, topic: Topic, share: float | None, *, force: bool) -> None:
    """Trim, and check what must hold, by readers and rows, not by a plan."""
    retention = Retention(bench)
    before, cleanup = topic.snapshot(), bench.metadata.policies.effective(topic.record).cleanup_policy
    raw_before = [message.offset for message in topic.messages()]
    view_before = list(topic.messages(read_compacted=True))
    cursors = bench.metadata.cursors.of_topic(topic.record.id)
    needed = min((cursor.mark_delete.offset + 1 if cursor.mark_delete else 0 for cursor in cursors), default=2**62)

    if share is None:
        retention.trim(topic.record, force=force)
    elif cleanup != {"compact"}:
        retention.trim(topic.record, int(share * before.topic.next_offset), force=force)
    after = topic.snapshot()
    raw_after = [message.offset for message in topic.messages()]

    assert after.ledgers == before.ledgers[len(before.ledgers) - len(after.ledgers) :], "a prefix went"
    assert after.topic.start_offset >= before.topic.start_offset
    assert raw_after == raw_before[len(raw_before) - len(raw_after) :]
    removed = raw_before[: len(raw_before) - len(raw_after)]
    if not force:
        assert all(offset < needed for offset in removed)
    if (
        "compact" in cleanup
        and not force
        and not any(cursor.name == COMPACTION_CURSOR for cursor in cursors)
        and share is None
    ):
        assert removed == []
    if share is None and not cleanup:
        assert removed == []
    if share is None and cleanup == {"compact"}:
        assert list(topic.messages(read_compacted=True)) == view_before
        assert after.topic.start_offset == before.topic.start_offset

    if share is None:
        assert not retention.trim(topic.record, force=force).plan.candidates, "twice is once"
    elif cleanup != {"compact"}:
        assert not retention.trim(topic.record, int(share * before.topic.next_offset), force=force).plan.candidates
    assert topic.snapshot() == after
