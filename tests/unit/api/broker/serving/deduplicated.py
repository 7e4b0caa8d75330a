"""A log whose senders are deduplicated, and entries of producers and replicators for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from types import SimpleNamespace
from typing import cast

from api.broker.serving.deduplication import Deduplication
from api.broker.serving.logs import HeldLog, TopicLogs
from api.broker.serving.producer import Producer
from api.broker.serving.publishing import QueuedEntry
from storage.entries.encode import encode_message
from storage.entries.replicated import POSITION_PROPERTY, Source, split_source
from storage.log.group_commit import AppendOutcome
from storage.log.lease_renewer import LeaseRenewer
from storage.log.segment import AppendResult
from storage.model import EARLIEST, MessageId
from storage.topic import Topic
from tests.pulsar_entries import entry, metadata
from tests.workbench import Workbench


def queued(name: str, sequence_id: int, entry: bytes, source: Source | None = None) -> QueuedEntry:
    return QueuedEntry(cast(Producer, SimpleNamespace(name=name)), sequence_id, 0, 1, entry, source)


def publish(name: str, sequence_id: int) -> QueuedEntry:
    entry = encode_message(b"k", b"v", producer=name, sequence_id=sequence_id, publish_time=1)
    return queued(name, sequence_id, entry)


def replicate(cluster: str, ledger_id: int, entry_id: int, publish_time: int = 1, **fields: object) -> QueuedEntry:
    """An entry of the replicator of `cluster`, by a producer that this cluster has, too."""
    described = metadata(producer_name="a", sequence_id=0, publish_time=publish_time, replicated_from=cluster, **fields)
    described.properties.add(key=POSITION_PROPERTY, value=f"{ledger_id}:{entry_id}")
    source, stored = split_source(entry(described, f"{ledger_id}:{entry_id}".encode()))
    return queued(f"pulsar.repl.{cluster}", 0, stored, source)


class Log:
    """A topic's log and what is known of its producers; `reopened` after the service died."""

    def __init__(self, bench: Workbench, topic: Topic, max_producers: int = 100, *, of_producers: bool = True) -> None:
        self._bench, self._topic, self._max_producers = bench, topic, max_producers
        self.of_producers = of_producers
        self.open()

    def open(self) -> None:
        """Open it as a service does that begins."""
        self._renewer = LeaseRenewer(self._bench.metadata, poll_seconds=3600.0, renew_seconds=3600.0)
        self._renewer.__enter__()
        self._logs = TopicLogs(self._bench.clock, max_open=2, idle_ms=5_000, watch=self._renewer)
        self.held: HeldLog = self._logs.hold(self._topic)
        self.known = Deduplication(
            self._bench.metadata, self._topic, self._max_producers, of_producers=self.of_producers
        )
        self.known.load()

    def append_unchecked(self, group: Sequence[QueuedEntry]) -> list[AppendOutcome]:
        """Append entries to the log, duplicates as well."""
        answered: SimpleQueue[list[AppendOutcome]] = SimpleQueue()
        entries, senders = [item.entry for item in group], [item.producer.name for item in group]
        self.held.new_append(entries, senders, answered.put).submit_remaining()
        return answered.get()

    def answers(
        self, group: Sequence[QueuedEntry], append: Callable[[Sequence[QueuedEntry]], Sequence[AppendOutcome]]
    ) -> list[AppendOutcome | MessageId]:
        """Append the new entries of a group by `append`. Return an answer for each entry."""
        new = self.known.new_entries(group)
        return self.known.record_outcomes(new, append(new.entries) if new.entries else [])

    def append(self, *sent: tuple[str, int]) -> list[bool]:
        """Return whether each was stored now."""
        answers = self.answers([publish(*item) for item in sent], self.append_unchecked)
        assert all(isinstance(answer, AppendResult) or answer == EARLIEST for answer in answers)
        return [isinstance(answer, AppendResult) for answer in answers]

    def replicate(self, *sent: QueuedEntry) -> list[bool]:
        """Return whether each entry of a replicator was stored now."""
        self.known.mark_replicated_and_end_accepted_gaps()
        answers = self.answers(sent, self.append_unchecked)
        assert all(isinstance(answer, AppendResult) or answer == EARLIEST for answer in answers)
        return [isinstance(answer, AppendResult) for answer in answers]

    def payloads(self) -> list[bytes | None]:
        return [message.payload for message in self._topic.messages()]

    def roll(self) -> None:
        """Roll the segment, so that no other caller has to wait for it."""
        self._bench.metadata.segments.request_roll(self._topic.record.id)
        (rolling,) = self._renewer.poll_logs()
        rolling.result()

    def reopened(self) -> Log:
        """Open it again as a service does that begins; nothing was written at the end."""
        self.close()
        self.open()
        return self

    def close(self) -> None:
        self.held.release()
        self._logs.drain_and_close()
        self._renewer.__exit__(None, None, None)
