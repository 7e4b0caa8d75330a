"""Verify is quiet on any schedule of runs, policies, clock, cursors and trims, and says what raw no longer tells.

The schedules are those by which compaction itself is compared with its reference (test_schedules.py): policies come
and go, so nearly every key has a history that must be explained and must not be reported.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from sqlalchemy import delete

from compactor.engines.engine import InProcessEngine
from compactor.run.plan import RunPolicies
from compactor.verify.verify import Verifier
from storage.log.bulk_append import INPUT_SCHEMA
from storage.metadata.tables import ledgers
from storage.topic import Topic
from tests.budgets import within
from tests.properties.test_schedules import acknowledge, policies, steps
from tests.sealed import CollidingHasher
from tests.workbench import Workbench, raw

deeds = st.sampled_from(["nothing", "nothing", "nothing", "delete the cursor", "trim", "cut", "cut"])


def replay(schedule: list[dict[str, Any]], done: list[str], used: RunPolicies, uniform: bool, colliding: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench.embedded(Path(folder), InProcessEngine())
        try:
            _replay(bench, schedule, done, used, uniform, CollidingHasher() if colliding else None)
        finally:
            bench.metadata.close()


def _replay(
    bench: Workbench, schedule: list[dict[str, Any]], done: list[str], used: RunPolicies, uniform: bool, hasher: Any
) -> None:
    clock = bench.clock
    topic = bench.topic(hasher=hasher)
    trimmed = False
    for step, deed in zip(schedule, done, strict=False):
        clock.advance(step["later"])
        if step["messages"]:
            bench.append(topic, [pa.Table.from_pylist(step["messages"], schema=INPUT_SCHEMA)], step["ledger_bytes"])
        if step["acknowledged"] is not None and not trimmed and (everything := raw(topic)):
            acknowledge(bench, topic, everything[int(step["acknowledged"] * (len(everything) - 1))])
        if deed == "cut":
            cut(bench, topic)
        used = used if uniform else step["policies"] or used
        bench.with_sizing(step["sizing"]).compactor(hasher).compact(topic.name, used)
        if deed == "trim" and not trimmed:
            trimmed = trim_one(bench, topic)
        elif deed == "delete the cursor" and not trimmed and topic.snapshot().compacted is not None:
            bench.metadata.cursors.delete(topic.record.id, "__compaction", force=True)
        verifier = Verifier(replace(bench, clock=clock), bench.engine, sizing=step["sizing"])
        report = (verifier if hasher is None else replace(verifier, hasher=lambda _: hasher)).verify(topic.name)
        assert report.differences == ()
        assert report.total == 0
        if report.compacted_ledger is not None and not trimmed:
            assert report.checked["part rows compared with raw"] == live(topic)


def live(topic: Topic) -> int:
    compacted = topic.snapshot().compacted
    assert compacted is not None
    return compacted.messages


def cut(bench: Workbench, topic: Topic) -> None:
    """Let the topic begin in the middle of its newest ledger; those below are left to a trim that is still to come."""
    snapshot = topic.snapshot()
    if snapshot.ledgers:
        newest = snapshot.ledgers[-1]
        start = max(snapshot.topic.start_offset, (newest.first_offset + newest.last_offset + 1) // 2)
        bench.metadata.trimming.trim(topic.record.id, start, [], force=True)


def trim_one(bench: Workbench, topic: Topic) -> bool:
    """Take away the first raw ledger below the horizon, if there is one, as trimming will."""
    snapshot = topic.snapshot()
    if snapshot.horizon is None or not snapshot.ledgers or snapshot.ledgers[0].last_offset > snapshot.horizon.offset:
        return False
    first = snapshot.ledgers[0]
    with bench.metadata.database.write() as connection:
        connection.execute(delete(ledgers).where(ledgers.c.ledger_id == first.ledger_id))
    bench.store.delete(first.rows.name)
    bench.store.delete(first.index.name)
    return True


@pytest.mark.slow
@within(fast=2, ci=2)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.lists(deeds, min_size=7, max_size=7), policies, st.booleans(), st.booleans())
def test_a_clean_topic_has_no_difference(
    schedule: list[dict[str, Any]], done: list[str], first: RunPolicies, uniform: bool, colliding: bool
) -> None:
    replay(schedule, done, first, uniform, colliding)
