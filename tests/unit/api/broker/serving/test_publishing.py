"""Entries are appended and answered in order; after one that failed none of its producer is, until it is sent again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import cast

import pytest

from api.broker.serving import publishing
from api.broker.serving.channel import Receipt
from api.broker.serving.producer import Producer, ProducerOptions
from api.broker.serving.publishing import PublishOutcome, PublishQueue, QueuedEntry
from api.observability.logs import LogThrottle
from storage.entries.entry import EntryHeader
from storage.entries.replicated import Source
from storage.errors import Fenced, InvalidRecord, Unavailable
from storage.model import EARLIEST, SourcePosition, TopicName
from tests.event_loop import in_event_loop
from tests.pulsar_entries import entry as pulsar_entry, metadata

FULL = Unavailable("the disk is full", "make room")
WRONG = InvalidRecord("an entry cannot be taken", "send another one")


class Sender:
    """A connection with one producer, which notes how its entries are answered."""

    address, client_version = "127.0.0.1:1", "test"

    def __init__(self, name: str, stops_on_error: bool = False) -> None:
        self.producer = Producer(self, ProducerOptions(name, stops_on_error=stops_on_error), 0, self._remove)
        self.waiting = 0
        self.answers: list[tuple[int, str]] = []
        self.disconnected = 0

    @property
    def connection(self) -> Sender:
        return self

    async def close_unless_alive(self) -> bool:
        return True

    def _remove(self, producer: Producer) -> None:
        producer.is_closed = True

    def add_queued(self, entries: int, _size: int) -> None:
        self.waiting += entries

    def send_receipts(self, receipts: Sequence[Receipt]) -> None:
        for sequence_id, _, message_id in receipts:
            self.answers.append((sequence_id, "duplicate" if message_id.ledger_id < 0 else "stored"))

    def send_error(self, sequence_id: int, error: InvalidRecord) -> None:
        self.answers.append((sequence_id, "refused"))

    def disconnect(self) -> None:
        self.disconnected += 1


class Bench:
    """A queue over a log that answers entries by their bytes; all others are duplicates."""

    def __init__(self, **outcomes: PublishOutcome) -> None:
        self.outcomes = {name.encode(): outcome for name, outcome in outcomes.items()}
        self.groups: list[list[bytes]] = []
        self.defect: Exception | None = None
        self.lost: list[BaseException] = []
        self.refused: list[tuple[Producer, InvalidRecord]] = []
        self.warnings: list[tuple[str, str]] = []
        self.queue = PublishQueue(
            TopicName.parse("t"),
            self._append,
            lambda: None,
            self.lost.append,
            lambda producer, error: self.refused.append((producer, error)),
            cast(LogThrottle, self),
        )

    def warn(self, text: str, *arguments: object, condition: str) -> None:
        self.warnings.append((text % arguments, condition))

    async def _append(self, group: Sequence[QueuedEntry]) -> list[PublishOutcome]:
        await asyncio.sleep(0)
        if self.defect is not None:
            raise self.defect
        self.groups.append([queued.entry for queued in group])
        return [self.outcomes.pop(queued.entry, EARLIEST) for queued in group]

    def put(self, sender: Sender, *entries: str) -> None:
        for entry in entries:
            self.queue.put(QueuedEntry(sender.producer, int(entry[1:]), 0, 1, entry.encode()))


@in_event_loop
async def test_what_waits_behind_a_failed_entry_is_not_appended_before_it_is_sent_again() -> None:
    a, b = Sender("a"), Sender("b")
    bench = Bench(a0=FULL)
    bench.put(a, "a0")
    await asyncio.sleep(0)  # the first group is under way
    bench.put(a, "a1")
    bench.put(b, "b0")
    assert (bench.queue.has_entries_of("a"), bench.queue.has_entries_of("c")) == (True, False)
    await bench.queue.drain()
    assert bench.groups == [[b"a0"], [b"b0"]]
    assert (a.answers, a.disconnected, b.answers) == ([], 1, [(0, "duplicate")])
    assert (a.waiting, b.waiting, bench.queue.has_entries_of("a")) == (0, 0, False)


@in_event_loop
async def test_the_event_loop_checks_all_entries_but_those_with_large_metadata() -> None:
    """A million properties would keep it for a second; the log checks them."""
    sender, bench = Sender("a"), Bench()
    large = metadata()
    large.properties.add(key="k", value="v" * publishing.METADATA_BYTES)
    entries = pulsar_entry(large), pulsar_entry(metadata(), bytes(publishing.METADATA_BYTES)), b"no entry"
    queued = [QueuedEntry(sender.producer, number, 0, 1, data) for number, data in enumerate(entries)]
    for item in queued:
        bench.queue.put(item)
    await bench.queue.drain()
    assert [type(item.header) for item in queued] == [type(None), EntryHeader, InvalidRecord]


@in_event_loop
async def test_no_receipt_follows_a_failed_entry_of_the_same_group() -> None:
    a, b = Sender("a"), Sender("b")
    bench = Bench(a1=FULL, a3=WRONG)
    bench.put(a, "a0", "a1", "a2", "a3")
    bench.put(b, "b4")
    await bench.queue.drain()
    assert (a.answers, a.disconnected) == ([(0, "duplicate")], 1)
    assert (b.answers, b.disconnected) == ([(4, "duplicate")], 0)
    assert bench.lost == []


@in_event_loop
async def test_what_can_never_be_appended_is_refused_and_the_rest_goes_on() -> None:
    sender = Sender("a")
    bench = Bench(a1=WRONG)
    bench.put(sender, "a0", "a1", "a2")
    await bench.queue.drain()
    assert sender.answers == [(0, "duplicate"), (1, "refused"), (2, "duplicate")]
    assert not sender.producer.is_closed


@in_event_loop
async def test_a_replicator_gets_no_receipt_after_any_entry_that_failed() -> None:
    sender, other = Sender("pulsar.repl.us"), Sender("a")
    bench = Bench(r1=WRONG)
    source = Source("us", SourcePosition(1, 1), 1)
    for name in ("r0", "r1", "r2"):
        bench.queue.put(QueuedEntry(sender.producer, int(name[1]), 0, 1, name.encode(), source))
    bench.put(other, "a3")
    await bench.queue.drain()
    assert (sender.answers, other.answers) == ([(0, "duplicate")], [(3, "duplicate")])
    assert bench.refused == [(sender.producer, WRONG)]


@in_event_loop
async def test_a_strict_producer_hears_of_a_refused_entry_and_none_after_it_is_appended() -> None:
    sender, bench = Sender("kafka:c:t-0", stops_on_error=True), Bench(a1=WRONG)
    bench.put(sender, "a0", "a1", "a2")
    await asyncio.sleep(0)  # the first group is under way
    bench.put(sender, "a3")
    await bench.queue.drain()
    assert bench.groups == [[b"a0", b"a1", b"a2"]]
    assert (sender.answers, sender.disconnected) == ([(0, "duplicate"), (1, "refused")], 1)
    assert bench.refused == [], "it is no replicator, and is not refused for some time"


@in_event_loop
async def test_a_topic_that_is_written_elsewhere_is_lost() -> None:
    fenced = Fenced("another writer has the topic", "look it up again")
    sender, bench = Sender("a"), Bench(a0=fenced)
    bench.put(sender, "a0")
    await bench.queue.drain()
    assert (bench.lost, sender.disconnected) == ([fenced], 1)


@in_event_loop
async def test_clients_that_connect_again_and_fail_are_one_condition_of_the_log() -> None:
    bench = Bench(a0=FULL, b1=Unavailable("the disk has 5 bytes left", "make room"), c2=WRONG)
    for name, entry in (("a", "a0"), ("b", "b1"), ("c", "c2")):
        bench.put(Sender(name), entry)
        await bench.queue.drain()
    (first, condition), (second, same) = bench.warnings
    assert "the producer a is disconnected, to send again: the disk is full" in first
    assert ("the disk has 5 bytes left" in second, same) == (True, condition)


@in_event_loop
async def test_a_group_has_a_bound_and_at_least_one_entry() -> None:
    sender, bench = Sender("a"), Bench()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(publishing, "GROUP_BYTES", 5)
        bench.put(sender, "a0", "a1", "a2", "a1000000", "a4")
        await bench.queue.drain()
    assert bench.groups == [[b"a0", b"a1"], [b"a2"], [b"a1000000"], [b"a4"]]


def test_an_error_that_was_not_foreseen_ends_no_queue(caplog: pytest.LogCaptureFixture) -> None:
    @in_event_loop
    async def main() -> None:
        sender, bench = Sender("a"), Bench()
        bench.defect = ZeroDivisionError("not foreseen")
        bench.put(sender, "a0")
        await bench.queue.drain()
        assert sender.disconnected == 1
        bench.defect = None
        other = Sender("b")
        bench.put(other, "b1")
        await bench.queue.drain()
        assert other.answers == [(1, "duplicate")]

    with caplog.at_level(logging.ERROR):
        main()
    assert "1 entries are not appended" in caplog.text
