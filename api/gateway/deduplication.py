"""Deduplication: an entry that a producer sends again is not stored again (Pulsar's brokerDeduplicationEnabled).

Of each producer the highest sequence id that was stored is known; an entry at or below it was stored before, and gets a
receipt with the id -1:-1. Sequence ids are the producers' own, and go on where a producer of the same name comes again.
What is known is found in the log itself: all entries behind the point up to which it was written down in SQL, which
happens every `STORE_ENTRIES` entries and when the topic is closed. So a service that dies forgets nothing.

The chunks of a message have one sequence id, so a chunk is known by its number, too.

For one thread at a time, that which appends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from storage.entries.entry import inspect, parse, signed
from storage.entries.rebuild import DeliverableEntry
from storage.errors import CompactorError, InvalidRecord
from storage.ledger.seek import StartOffset
from storage.log.group_commit import Answer
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, MessageId
from storage.topic import Topic

if TYPE_CHECKING:
    from api.gateway.producers import Publish

LOG = logging.getLogger(__name__)
STORE_ENTRIES = 1_000
"""Entries after which it is written down (Pulsar's brokerDeduplicationEntriesInterval)."""
_WHOLE = 2**31 - 1
"""The number of a chunk behind all others: of a message that is not chunked, or of its last chunk."""
SequenceId = tuple[int, int]


class Deduplication:
    """What producers of one topic have stored. Made by `load`."""

    def __init__(self, metadata: MetadataStore, topic: Topic, stored: ProducerSequences, most_producers: int) -> None:
        self._most_producers = most_producers
        self._metadata = metadata
        self._topic = topic
        self._last: dict[str, SequenceId] = {name: (number, _WHOLE) for name, number in stored.highest.items()}
        self._end = stored.end_offset
        self._unstored = 0

    @classmethod
    def load(cls, metadata: MetadataStore, topic: Topic, most_producers: int) -> Deduplication:
        """Of what SQL has, and of what the log has behind that. Its memory: a name and two numbers a producer, of
        `most_producers` at most: those that stored something last."""
        found = cls(metadata, topic, metadata.producer_sequences.of_topic(topic.record.id), most_producers)
        reader = topic.entry_reader(StartOffset(found._end) if found._end else EARLIEST)
        try:
            while entries := reader.read():
                found._note_all(entries)
        finally:
            reader.close()
        return found

    def last_sequence_id(self, producer_name: str) -> int:
        """The highest that is stored; -1: none."""
        return self._last.get(producer_name, (-1, 0))[0]

    def append(
        self, group: Sequence[Publish], append: Callable[[Sequence[bytes]], Sequence[Answer]]
    ) -> list[Answer | MessageId | BaseException]:
        """Append what is new of `group`; an id stands for a duplicate of what is stored."""
        answers: list[Answer | MessageId | BaseException] = [EARLIEST] * len(group)
        wanted: list[int] = []
        coming = dict[str, SequenceId]()
        sequences: list[SequenceId] = []
        for number, publish in enumerate(group):
            name = publish.producer.name
            sequence = _of_publish(publish)
            if sequence > coming.get(name, self._last.get(name, (-1, -1))):
                coming[name] = sequence
                wanted.append(number)
                sequences.append(sequence)
        failed = dict[str, CompactorError]()
        for number, sequence, answer in zip(
            wanted, sequences, append([group[number].entry for number in wanted]) if wanted else [], strict=True
        ):
            answers[number] = answer
            if isinstance(answer, CompactorError):
                failed[group[number].producer.name] = answer
            else:
                self._note(group[number].producer.name, sequence, answer.first.offset + answer.messages)
        for number in set(range(len(group))).difference(wanted):
            # It may stand for one of this group that was not stored.
            answers[number] = failed.get(group[number].producer.name, EARLIEST)
        if self._unstored >= STORE_ENTRIES:
            try:
                self.store()
            except CompactorError as error:  # the log has it all the same
                LOG.warning("what producers of %s stored is not written down yet: %s", self._topic.name, error)
                self._unstored = 1  # once more after as many entries
        return answers

    def store(self) -> None:
        """Write down what is known."""
        if self._unstored:
            highest = {name: number for name, (number, chunk) in self._last.items() if chunk == _WHOLE}
            # Of a producer in the middle of a chunked message only the messages before it are whole.
            highest |= {name: number - 1 for name, (number, chunk) in self._last.items() if chunk != _WHOLE}
            self._metadata.producer_sequences.store(self._topic.record.id, ProducerSequences(self._end, highest))
            self._unstored = 0

    def _note(self, name: str, sequence: SequenceId, end: int) -> None:
        self._last[name] = max(sequence, self._last.pop(name, (-1, -1)))
        if len(self._last) > self._most_producers:
            del self._last[next(iter(self._last))]
        self._end = max(self._end, end)
        self._unstored += 1

    def _note_all(self, entries: Iterable[DeliverableEntry]) -> None:
        for entry in entries:
            try:
                name = inspect(entry.data).producer
                self._note(name, _of_entry(entry.data, 0), entry.end)
            except InvalidRecord:
                self._end = max(self._end, entry.end)


def _of_publish(publish: Publish) -> SequenceId:
    highest = signed(max(publish.sequence_id, publish.highest_sequence_id))
    try:
        return _of_entry(publish.entry, highest)
    except InvalidRecord:
        return highest, _WHOLE  # it will be refused


def _of_entry(entry: bytes, at_least: int) -> SequenceId:
    metadata, _ = parse(entry, checked=True)
    number = max(at_least, signed(metadata.sequence_id), signed(metadata.highest_sequence_id))
    chunks = metadata.num_chunks_from_msg
    return number, metadata.chunk_id if chunks > 1 and metadata.chunk_id < chunks - 1 else _WHOLE
