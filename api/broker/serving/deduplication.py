"""Deduplication: an entry that a producer sends again is not stored again (Pulsar's MessageDeduplication).

The highest stored sequence id of each producer is known. An entry at or below it was stored before, and is answered
with the id -1:-1. Sequence ids are the producers' own, and continue when a producer of the same name connects again.
SQL has the ids up to an offset, and the log has those after it. They are written to SQL every `STORE_ENTRIES` entries,
when the topic is closed, and before messages are removed (compactor/maintenance/sequence_ids.py), so a process that
dies loses none. A topic without ids in SQL begins at its end: deduplication was switched on there.

Groups of entries come one after the other; other threads may call `load` and `store` meanwhile. Must not know:
connections, commands of a protocol.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from api.broker.serving.publishing import QueuedEntry
from storage.entries.entry import parse_metadata, signed
from storage.entries.sequence_ids import WHOLE, SequenceId, last_complete_number, sequence_of
from storage.errors import CompactorError, InvalidRecord, Unavailable
from storage.log.group_commit import AppendOutcome
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, MessageId
from storage.topic import Topic

STORE_ENTRIES = 1_000
"""Entries after which the ids are stored (Pulsar's brokerDeduplicationEntriesInterval)."""
_UNKNOWN: SequenceId = (-1, -1)


@dataclass(frozen=True)
class NewEntries:
    """The entries of a group that are not duplicates.

    `answers`: of the whole group, as far as they are known; `numbered`: the number of each new entry in the group, its
    producer and its sequence id; `duplicates`: the numbers of those that repeat another entry of the group, and that
    one's.
    """

    entries: Sequence[QueuedEntry]
    answers: list[AppendOutcome | MessageId]
    numbered: Sequence[tuple[int, str, SequenceId]]
    duplicates: Sequence[tuple[int, int]]


class Deduplication:
    """The stored sequence ids of one topic's producers. `load` them before the first entry."""

    def __init__(self, metadata: MetadataStore, topic: Topic, max_producers: int) -> None:
        """`max_producers`: the number of names that are kept: those that stored an entry last. A name costs its bytes
        and two numbers."""
        self._metadata = metadata
        self._topic = topic
        self._max_producers = max_producers
        self._lock = threading.Lock()
        """Held while the ids change or are copied; never while a thread waits."""
        self._known: dict[str, SequenceId] = {}
        self._end = 0
        self._note_count = self._written_count = 0
        """The number of entries that were noted, and the number of those in SQL."""
        self._store_at = STORE_ENTRIES
        self.is_loaded = False

    def load(self) -> None:
        """Read the ids in SQL, then those that the log has after them, and store both. Blocks. Raises CompactorError;
        then load again."""
        record = self._topic.record
        stored = self._metadata.producer_sequences.of_topic(record.id)
        if stored is None:
            stored = ProducerSequences(self._topic.snapshot_reader().end)
            self._metadata.producer_sequences.store(record.id, stored)
        with self._lock:
            self._known = {}
            self._end = stored.end_offset
            for name, number in stored.highest.items():
                self._note(name, (number, WHOLE))
        for scan in self._topic.producer_sequences(stored.end_offset):
            with self._lock:
                self._end = max(self._end, scan.end)
                self._note_count += 1
                for name, sequence in scan.highest.items():
                    self._note(name, sequence)
        self.store()  # so that the next load does not read it again
        self.is_loaded = True

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest sequence id that a producer of that name has stored; -1: none."""
        return self._known.get(producer_name, _UNKNOWN)[0]

    def new_entries(self, group: Sequence[QueuedEntry]) -> NewEntries:
        """Return the entries of a group that must be appended. Then call `answers` with their answers, before this is
        called again."""
        answers: list[AppendOutcome | MessageId] = [EARLIEST] * len(group)
        new_entries: dict[str, list[tuple[SequenceId, int]]] = {}
        """The new entries of each producer, ascending: sequence id and number in the group."""
        duplicates: list[tuple[int, int]] = []
        for number, item in enumerate(group):
            name = item.producer.name
            try:
                sequence = _sequence_of(item)
            except InvalidRecord as error:
                answers[number] = error
                continue
            if sequence <= self._known.get(name, _UNKNOWN):
                continue
            ahead = new_entries.setdefault(name, [])
            if not ahead or sequence > ahead[-1][0]:
                ahead.append((sequence, number))
            else:
                duplicates.append((number, ahead[bisect_left(ahead, (sequence, -1))][1]))
        new = sorted((number, name, sequence) for name, ahead in new_entries.items() for sequence, number in ahead)
        return NewEntries([group[number] for number, _, _ in new], answers, new, duplicates)

    def answers(self, new: NewEntries, appended: Sequence[AppendOutcome]) -> list[AppendOutcome | MessageId]:
        """Note the entries that were appended. Return an answer for each entry of the group, in order.

        EARLIEST is the answer for a duplicate. An entry that repeats one of the same group succeeds if that one does,
        even if later entries fail.
        """
        answers = new.answers
        with self._lock:
            for (number, name, sequence), answer in zip(new.numbered, appended, strict=True):
                answers[number] = answer
                if not isinstance(answer, CompactorError):
                    self._note(name, sequence)
                    self._end = max(self._end, answer.first.offset + answer.messages)
                    self._note_count += 1
        for number, original in new.duplicates:
            if isinstance(answers[original], CompactorError):
                answers[number] = Unavailable(
                    f"an entry that repeats another one of {self._topic.name} was not stored, because that one failed",
                    "send it again",
                    is_public=True,
                )
        return answers

    def is_store_due(self) -> bool:
        """Return whether `store` is due. True is returned once for each `STORE_ENTRIES` entries: the caller must
        store."""
        is_due = self._note_count >= self._store_at
        if is_due:
            self._store_at = self._note_count + STORE_ENTRIES
        return is_due

    def store(self) -> None:
        """Write the ids to SQL, if any is new. Raises CompactorError."""
        with self._lock:
            count, end = self._note_count, self._end
            highest = {name: last_complete_number(sequence) for name, sequence in self._known.items()}
        if count > self._written_count:
            self._metadata.producer_sequences.store(self._topic.record.id, ProducerSequences(end, highest))
            with self._lock:
                self._written_count = max(self._written_count, count)

    def advance_load_start(self, offset: int) -> None:
        """Note that no entry before `offset` has an id that is not known: the next load need not read them.

        Entries of imports and of produce over HTTP have no ids.
        """
        with self._lock:
            if self.is_loaded and offset > self._end:
                self._end = offset
                self._note_count += 1

    def _note(self, name: str, sequence: SequenceId) -> None:
        self._known[name] = max(sequence, self._known.pop(name, _UNKNOWN))
        if len(self._known) > self._max_producers:
            del self._known[next(iter(self._known))]


def _sequence_of(item: QueuedEntry) -> SequenceId:
    """Return the sequence id of an entry. Raises InvalidRecord for a replicated one: its id is another producer's."""
    highest = signed(max(item.sequence_id, item.highest_sequence_id))
    try:
        metadata, _ = parse_metadata(item.entry, checksum_verified=True)
    except InvalidRecord:
        return highest, WHOLE  # the append refuses it
    if metadata.HasField("replicated_from"):
        raise InvalidRecord(
            f"an entry of producer {item.producer.name!r} was replicated from another cluster: its sequence id "
            "is that of another producer, and deduplication would lose entries",
            "end the replication to this cluster, or switch deduplication off",
            is_public=True,
        )
    return sequence_of(metadata, highest)
