"""Messages whose publish time is in the future: they are refused; those that are there hold nothing back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies
from compactor.scheduling.backlog import BacklogReader
from compactor.scheduling.due import cause_of
from storage.errors import InvalidRecord
from storage.metadata.policy_store import BROKER
from storage.model import Message
from storage.options.policies import TopicPolicies
from storage.topic import Topic
from tests.entries import NOW, produce, single
from tests.workbench import Workbench, all_ids, compacted_only, content, raw

HOUR = 3_600_000
CENTURY = 100 * 365 * 24 * HOUR


def rows_at(*times: int) -> pa.Table:
    return content(*((b"i%d" % number, b"1", time) for number, time in enumerate(times)))


def test_what_lies_too_far_in_the_future_is_refused(bench: Workbench, topic: Topic) -> None:
    limit = NOW + HOUR
    assert TopicPolicies().message_timestamp_after_max_ms == HOUR
    bench.metadata.policies.change([BROKER], {"message.timestamp.after.max.ms": HOUR})
    refused = r"the publish time \d+ of a message is 3600001 ms in the future, and at most 3600000 ms are allowed"
    for first in (True, False):
        with topic.append_log() as log:
            with pytest.raises(InvalidRecord, match=refused):
                log.append(single(b"a", b"1", publish_time=limit + 1))
            assert topic.snapshot().segments == () or not first
            log.append(single(b"a", b"1", publish_time=limit))
    with pytest.raises(InvalidRecord, match=refused):
        bench.append(topic, [rows_at(NOW, limit), rows_at(limit + 1, NOW)])
    bench.append(topic, [rows_at(NOW, limit)])
    assert len(raw(topic)) == 4
    bench.set_policies(topic, **{"message.timestamp.after.max.ms": "none"})
    produce(topic, [single(b"a", b"1", publish_time=NOW + CENTURY)])
    bench.append(topic, [rows_at(NOW + CENTURY)])
    assert len(raw(topic)) == 6


@pytest.fixture
def stored(bench: Workbench, topic: Topic) -> list[Message]:
    """A ledger and a rolled segment from before there was a limit."""
    bench.append(topic, [rows_at(NOW + CENTURY, NOW)])
    produce(topic, [single(b"r", b"1", publish_time=NOW + CENTURY)])
    topic.log_manager().roll(topic.record)
    return raw(topic)


def test_they_keep_no_lag_from_ending(bench: Workbench, topic: Topic, stored: list[Message]) -> None:
    policies = RunPolicies(min_lag_ms=HOUR)
    bench.set_policies(topic, **{"min.compaction.lag.ms": HOUR, "max.compaction.lag.ms": 2 * HOUR})

    def cause() -> str | None:
        (backlog,) = BacklogReader(bench.metadata, bench.log).read_with_trigger(all_ids(bench))
        return cause_of(backlog, bench.clock.now_ms())

    assert cause() is None
    bench.advance(2 * HOUR + 1)
    assert cause() is not None
    bench.compactor().compact(topic.name, policies)
    bench.advance(HOUR)  # since the segment was sealed
    bench.compactor().compact(topic.name, policies)
    assert compacted_only(topic) == stored


def test_they_keep_nothing_from_being_trimmed(bench: Workbench, topic: Topic, stored: list[Message]) -> None:
    assert len(stored) == 3
    bench.set_policies(topic, **{"cleanup.policy": "delete", "retention.ms": HOUR})
    retention = Retention(bench)
    assert retention.trim(topic.record).plan.candidates == ()
    bench.advance(HOUR + 1)
    retention.trim(topic.record)
    retention.trim(topic.record)
    assert [m.key for m in raw(topic)] == [b"r"], "sealed a moment ago"
    bench.advance(HOUR + 1)
    retention.trim(topic.record)
    assert raw(topic) == []
