"""The job against its oracle: random histories, any cut into ledgers, any sizing, several runs in a row.

semantics.md P3–P6, P11, W1, R1, R2, R10, A4; properties 1, 2, 3, 4 (whole rewrites), 5, 10, 13, 14.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from compactor import reference
from compactor.engines.engine import Engine, InProcessEngine
from compactor.run.plan import Sizing
from storage.model import Message
from tests.budgets import SPARK_EXAMPLES, within
from tests.sealed import CollidingHasher
from tests.strategies import contents
from tests.workbench import Workbench, compacted_only, content, raw, view

sizings = st.builds(
    Sizing,
    parallelism=st.integers(1, 4),
    range_records=st.integers(1, 40),
    part_bytes=st.sampled_from([1, 300, 3000, 1 << 20]),
    small_range_records=st.sampled_from([1, 10, 1000]),
    small_part_bytes=st.sampled_from([1, 500, 1 << 20]),
)
appends = st.tuples(st.lists(contents(max_size=25), min_size=1, max_size=2), st.sampled_from([1, 40, 200, 1 << 20]))
steps = st.lists(st.tuples(appends, st.booleans(), sizings), min_size=1, max_size=4)

Failpoint = tuple[tuple[list[pa.Table], int], bool, Sizing]


def replay(engine: Engine, schedule: list[Failpoint], colliding: bool) -> None:
    """Run the schedule and compare every compacted ledger, whole, with the reference."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench.embedded(Path(folder), engine)
        # 64 low bits stay, so two keys never share the whole hash, but most share the high half.
        topic = bench.topic(hasher=CollidingHasher() if colliding else None)
        expected: list[Message] = []
        everything: list[Message] = []
        horizon = -1
        for (tables, ledger_bytes), retain_null_key, sizing in schedule:
            added = bench.append(topic, tables, ledger_bytes)
            everything += added
            bench.with_sizing(sizing).compact(topic, retain_null_key)
            expected = reference.compact(expected, added, retain_null_key)

            assert compacted_only(topic) == expected
            assert raw(topic) == everything
            assert view(list(topic.messages(read_compacted=True))) == view(everything)
            snapshot = topic.snapshot()
            assert snapshot.compacted is not None
            assert snapshot.compacted.messages == len(expected)
            assert snapshot.compacted.horizon.offset >= horizon
            horizon = snapshot.compacted.horizon.offset
            assert horizon == everything[-1].offset
            assert topic.last_message_id(True) == (expected[-1].message_id if expected else topic_is_empty())
            assert bench.compact(topic, retain_null_key).run is None
        bench.metadata.close()


def topic_is_empty() -> object:
    from storage.model import EARLIEST

    return EARLIEST


@within(fast=2, ci=2)
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
@example([(([content((b"k", b"1"), (b"k", None))], 1), False, Sizing(1))], False)
@example([(([content((None, b"x"), (None, None))], 1), True, Sizing(4, 1, 1, 1, 1))], False)
@given(steps, st.booleans())
def test_equals_the_reference_after_each_run(schedule: list[Failpoint], colliding: bool) -> None:
    replay(InProcessEngine(), schedule, colliding)


@within(fast=2, ci=2)
@settings(max_examples=SPARK_EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.booleans())
def test_equals_the_reference_on_spark(spark_engine: Engine, schedule: list[Failpoint], colliding: bool) -> None:
    replay(spark_engine, schedule, colliding)


@pytest.mark.slow
@within(fast=2, ci=2)
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(contents(max_size=20), min_size=1, max_size=3), st.data())
def test_readers_from_any_start_with_any_page(tables: list[pa.Table], data: st.DataObject) -> None:
    """R1, R2, R10: pages of any size, chained from any message id, give the whole sequence once and in order."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Workbench.embedded(Path(folder))
        topic = bench.topic()
        below = bench.append(topic, tables, 60)
        bench.compact(topic)
        tail = bench.append(topic, data.draw(st.lists(contents(max_size=6), max_size=2)), 60)
        live = reference.compact([], below)
        start = data.draw(st.sampled_from([*below, *tail])).message_id
        page = data.draw(st.integers(1, 7))
        whole = [m for m in live if m.message_id >= start] if start <= below[-1].message_id else []
        whole += [m for m in tail if m.message_id >= start]

        assert list(topic.messages(start, read_compacted=True)) == whole
        assert list(topic.messages(start)) == [m for m in [*below, *tail] if m.message_id >= start]
        got: list[Message] = []
        position = start
        while True:
            some = list(topic.messages(position, read_compacted=True, max_messages=page))
            assert len(some) <= page
            some = [m for m in some if not got or m.message_id > got[-1].message_id]
            if not some:
                # a page of one cannot pass the message that it begins with
                break
            got += some
            position = got[-1].message_id
        assert got == whole[: len(got)]
        assert got == whole or page == 1
        bench.metadata.close()


@pytest.mark.parametrize("retain_null_key", [False, True])
def test_a_policy_change_alone_makes_a_run(tmp_path: Path, retain_null_key: bool) -> None:
    """P11: nothing new and the same policies make no run; other policies do."""
    bench = Workbench.embedded(tmp_path)
    topic = bench.topic()
    bench.append(topic, [content((None, b"n"), (b"k", b"v"))])
    assert bench.compact(topic, retain_null_key).run is not None
    assert bench.compact(topic, retain_null_key).run is None
    changed = bench.compact(topic, not retain_null_key)
    assert changed.run is not None
    # null keys that were dropped cannot come back, ones that were kept can go
    assert [m.key for m in compacted_only(topic)] == [b"k"]
    bench.metadata.close()
