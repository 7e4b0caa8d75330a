"""What comes again is not stored again; what was not stored is never said to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import cast

import pytest

from api.gateway import deduplication
from api.gateway.deduplication import Deduplication
from api.gateway.producers import Publish
from api.messaging.topic_logs import HeldLog, TopicLogs
from storage.entries.encode import encode_message
from storage.errors import Unavailable
from storage.log.group_commit import Answer
from storage.log.segment import AppendResult
from storage.model import EARLIEST
from storage.topic import Topic
from tests.workbench import Workbench


def publish(name: str, sequence_id: int) -> Publish:
    entry = encode_message(b"k", b"v", producer=name, sequence_id=sequence_id, publish_time=1)
    return cast(Publish, SimpleNamespace(
        producer=SimpleNamespace(name=name), sequence_id=sequence_id, highest_sequence_id=0, entry=entry
    ))  # fmt: skip


class Log:
    """A topic's log and what is known of its producers; `reopened` after the service died."""

    def __init__(self, bench: Workbench, topic: Topic, most: int = 100) -> None:
        self._bench, self._topic, self._most = bench, topic, most
        self._logs = TopicLogs(bench.clock, most=2, idle_ms=5_000)
        self.held: HeldLog = self._logs.hold(topic)
        self.known = Deduplication.load(bench.metadata, topic, most)

    def append(self, *wanted: tuple[str, int]) -> list[bool]:
        """Whether each was stored now."""
        answers = self.known.append([publish(*item) for item in wanted], self.held.append)
        assert all(isinstance(answer, AppendResult) or answer == EARLIEST for answer in answers)
        return [isinstance(answer, AppendResult) for answer in answers]

    def reopened(self) -> Log:
        """It again, as a service finds it that begins; nothing was written down at the end."""
        self.close()
        self._logs = TopicLogs(self._bench.clock, most=2, idle_ms=5_000)
        self.held = self._logs.hold(self._topic)
        self.known = Deduplication.load(self._bench.metadata, self._topic, self._most)
        return self

    def close(self) -> None:
        self.held.release()
        self._logs.drain()


@pytest.fixture
def log(bench: Workbench, topic: Topic) -> Iterator[Log]:
    found = Log(bench, topic)
    yield found
    found.close()


def test_what_comes_again_is_a_duplicate(log: Log) -> None:
    assert log.append(("a", 0), ("a", 1), ("b", 0)) == [True, True, True]
    assert log.append(("a", 1), ("a", 0), ("b", 1), ("b", 1)) == [False, False, True, False]
    assert (log.known.last_sequence_id("a"), log.known.last_sequence_id("c")) == (1, -1)


@pytest.mark.parametrize("stored", [True, False])
def test_it_is_known_again_after_the_service_died(log: Log, stored: bool) -> None:
    log.append(("a", 5))
    if stored:
        log.known.store()
    log.append(("b", 7))
    again = log.reopened()
    assert (again.known.last_sequence_id("a"), again.known.last_sequence_id("b")) == (5, 7)
    assert again.append(("a", 5), ("a", 6), ("b", 7)) == [False, True, False]


def test_it_is_written_down_now_and_then(
    log: Log, bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deduplication, "STORE_ENTRIES", 3)
    log.append(("a", 0), ("a", 1))
    assert bench.metadata.producer_sequences.of_topic(topic.record.id).highest == {}
    log.append(("a", 2))
    assert bench.metadata.producer_sequences.of_topic(topic.record.id).highest == {"a": 2}


def test_a_duplicate_of_what_failed_fails(log: Log) -> None:
    def failing(entries: Sequence[bytes]) -> list[Answer]:
        return [Unavailable("the disk is full", "make room") for _ in entries]

    answers = log.known.append([publish("a", 0), publish("a", 0)], failing)
    assert all(isinstance(answer, Unavailable) for answer in answers)
    assert log.append(("a", 0)) == [True]


def test_the_producers_that_are_known_have_a_bound(bench: Workbench, topic: Topic) -> None:
    with closing(Log(bench, topic, most=2)) as log:
        log.append(("a", 0), ("b", 0))
        log.append(("a", 1), ("c", 0))
        assert [log.known.last_sequence_id(name) for name in "abc"] == [1, -1, 0]
        log.reopened()
        assert [log.known.last_sequence_id(name) for name in "abc"] == [1, -1, 0]
