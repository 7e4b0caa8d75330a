"""Deduplication: an entry that its sender sends again is not stored again (Pulsar's MessageDeduplication).

| sender | is identified by | an entry by | is deduplicated |
|---|---|---|---|
| a producer | its name | its sequence id | if the policy says so |
| a replicator | the source cluster | the position there (ledger, entry) | always |

Both ascend in the log. The highest stored one of each sender is known; an entry at or below it was stored before, and
is answered with the id -1:-1. Sequence ids are the producers' own, and continue when a producer of the same name
connects again. A replicator goes back to the last entry for which it has stored a receipt.

SQL has the ids and positions up to an offset, and the log has those after it. They are written to SQL every
`STORE_ENTRIES` entries, when the topic is closed, and before messages are removed
(compactor/maintenance/sequence_ids.py), so a process that dies loses none. A topic without ids in SQL begins at its
end: deduplication was switched on there.

A position at or below the last one with a newer publish time than all entries of that cluster is no repetition: the
cluster was built again, and its ledgers are numbered from the start. Such an entry is refused: nothing is dropped in
silence. So is every entry that a replicator sends after one that was refused, because a later position would make the
refused entry count as stored; and every entry after those that a restored log lacks (older_log.py).

Groups of entries come one after the other; other threads may call `load` and `store` meanwhile. Must not know:
connections, commands of a protocol.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from api.broker.serving.older_log import MissingEntries, reset_sequences_to_log, warn_about_accepted_gaps
from api.broker.serving.publishing import QueuedEntry
from storage.entries.entry import parse_metadata, signed
from storage.entries.replicated import Source, directly_follows
from storage.entries.sequence_ids import WHOLE, SequenceId, last_complete_sequence_number, sequence_id_of
from storage.errors import CompactorError, InvalidRecord, Unavailable
from storage.log.group_commit import AppendOutcome
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.store import MetadataStore
from storage.model import EARLIEST, MessageId, SourcePosition, SourceProgress
from storage.topic import Topic

LOG = logging.getLogger(__name__)
STORE_ENTRIES = 1_000
"""Entries after which the ids are stored (Pulsar's brokerDeduplicationEntriesInterval)."""
MAX_SOURCES = 100
"""Source clusters of one topic."""
NOT_STORED = MessageId(-1, 0)
"""The id of a marker, which is acknowledged and not stored. At -1:-1 a source logs a warning."""
_UNKNOWN: SequenceId = (-1, -1)
_BEFORE_ALL = SourceProgress(SourcePosition(-1, -1), -1)


@dataclass
class NewEntries:
    """The entries of a group that must be appended, because they are not duplicates.

    `answers`: of the whole group, as far as they are known; `entries` are appended, and `numbers` are their numbers in
    the group; `sequences`: the sequence ids of producers' entries, by number, where they count; `duplicates`: the
    numbers of those that repeat another entry of the group, and that one's.
    """

    answers: list[AppendOutcome | MessageId]
    entries: list[QueuedEntry] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    sequences: dict[int, SequenceId] = field(default_factory=dict)
    duplicates: list[tuple[int, int]] = field(default_factory=list)


class _GroupCheck:
    """The check of one group of entries for duplicates, and its result so far, `new`.

    `newest`: the newest publish time of each source cluster, in the log and in the group. `refused`: the replicators of
    which an entry was refused.
    """

    def __init__(self, size: int) -> None:
        self.new = NewEntries([EARLIEST] * size)
        self.newest: dict[str, int] = {}
        self.refused: set[str] = set()
        self._ahead: dict[Hashable, list[tuple[tuple[int, int], int]]] = {}
        """The new entries of each sender, ascending: sequence id or position, and number in the group."""

    def add_if_new(self, sender: Hashable, sequence: tuple[int, int], number: int) -> bool:
        """Note entry `number` of the group: as new, or as a duplicate of an earlier entry of its sender. Return whether
        it is new.

        `sequence`: its sequence id, or its position in the source cluster.
        """
        ahead = self._ahead.setdefault(sender, [])
        if not ahead or sequence > ahead[-1][0]:
            ahead.append((sequence, number))
            return True
        self.new.duplicates.append((number, ahead[bisect_left(ahead, (sequence, -1))][1]))
        return False


class Deduplication:
    """The deduplication of one topic: the highest stored sequence id of each producer, and the highest stored position
    of each source cluster. `load` them before the first entry."""

    def __init__(self, metadata: MetadataStore, topic: Topic, max_producers: int, *, of_producers: bool = True) -> None:
        """Make the deduplication of a topic. `max_producers`: the number of names that are kept: those that stored an
        entry last. A name costs its bytes and two numbers. `of_producers`: the policy; False: entries of producers are
        not deduplicated."""
        self._metadata = metadata
        self._topic = topic
        self._max_producers = max_producers
        self.of_producers = of_producers
        self._lock = threading.Lock()
        """Held while the ids change or are copied; never while a thread waits."""
        self._known: dict[str, SequenceId] = {}
        self._sources: dict[str, SourceProgress] | None = None
        """None: no replicator has connected."""
        self._markers: dict[str, SourcePosition] = {}
        """The last marker of each source cluster."""
        self._missing = MissingEntries(topic, {})
        self._connected: set[str] = set()
        """The replicators that have connected and sent nothing since."""
        self._end = 0
        self._note_count = self._written_count = 0
        """The number of entries that were noted, and the number of those in SQL."""
        self._store_at = STORE_ENTRIES
        self.is_loaded = False

    # Loading and storing

    def load(self) -> None:
        """Read the sequence ids and positions that SQL has, then those that the log has after them, and store both in
        SQL. Blocks. Raises CompactorError; then load again."""
        record = self._topic.record
        end = self._topic.snapshot_reader().end
        stored = self._metadata.producer_sequences.of_topic(record.id)
        if stored is not None and stored.end_offset > end:
            stored = reset_sequences_to_log(self._metadata, self._topic, stored, end)
        begins = self.of_producers and stored is not None and stored.highest is None
        if stored is None:
            stored = ProducerSequences(end, {} if self.of_producers else None)
            if self.of_producers:
                self._metadata.producer_sequences.store(record.id, stored)
        with self._lock:
            self._known = {}
            self._sources = None if stored.sources is None else dict(stored.sources)
            self._missing = MissingEntries(self._topic, stored.missing)
            self._end = stored.end_offset
            for name, number in (stored.highest or {}).items():
                self._note_sequence_id(name, (number, WHOLE))
        for scan in self._topic.producer_sequences(stored.end_offset):
            with self._lock:
                self._end = max(self._end, scan.end)
                self._note_count += 1
                for name, sequence in scan.highest.items():
                    if self.of_producers and not begins:
                        self._note_sequence_id(name, sequence)
                for cluster, progress in scan.sources.items():
                    self._note_source_progress(cluster, progress)
        with self._lock:
            self._missing.end_filled_gaps(self._sources or {})
        self._note_count += begins  # the ids of producers count from here on
        self.store()  # so that the next load does not read it again
        self.is_loaded = True

    def mark_replicated_and_end_accepted_gaps(self) -> None:
        """Store in SQL that replicators write to the topic, before the first entry of any, and end the gaps of missing
        entries that a policy accepts. Idempotent. Blocks; call `load` before. Raises CompactorError."""
        if self._missing and self._metadata.policies.effective(self._topic.record).replication_accept_gaps:
            with self._lock:
                accepted = self._missing.accept_all()
                self._store_at = 0  # if it fails now
            warn_about_accepted_gaps(self._topic, accepted)
            self.store()
        with self._lock:
            if self._sources is not None:
                return
            sequences = self._copy_sequences(sources={})
        self._metadata.producer_sequences.store(self._topic.record.id, sequences)
        with self._lock:
            self._sources = self._sources or {}

    def claim_due_store(self) -> bool:
        """Return whether the caller must call `store` now. Each due time is returned once: after each `STORE_ENTRIES`
        entries, and when a gap has ended."""
        is_due = self._note_count >= self._store_at
        if is_due:
            self._store_at = self._note_count + STORE_ENTRIES
        return is_due

    def store(self) -> None:
        """Write the sequence ids, the positions and the gaps that have ended to SQL, if any is new. Raises
        CompactorError."""
        with self._lock:
            count = self._note_count
            sequences = self._copy_sequences(self._sources)
            ended = frozenset(self._missing.ended)
        is_kept = sequences.highest is not None or sequences.sources is not None
        if (count > self._written_count or ended) and is_kept:
            self._metadata.producer_sequences.store(self._topic.record.id, sequences, ended)
            with self._lock:
                self._written_count = max(self._written_count, count)
                self._missing.ended -= ended

    def _copy_sequences(self, sources: Mapping[str, SourceProgress] | None) -> ProducerSequences:
        """Return a copy of the known sequence ids, with the positions `sources`, as SQL stores them. For the holder of
        the lock."""
        highest = {name: last_complete_sequence_number(sequence) for name, sequence in self._known.items()}
        return ProducerSequences(
            self._end, highest if self.of_producers else None, None if sources is None else dict(sources)
        )

    def advance_load_start(self, offset: int) -> None:
        """Let the next load read the log from `offset` on, because no entry before it has a sequence id that is not
        known.

        Entries of imports and of produce over HTTP have no sequence ids.
        """
        with self._lock:
            if self.is_loaded and offset > self._end:
                self._end = offset
                self._note_count += 1

    # Entries

    def last_sequence_id(self, producer_name: str) -> int:
        """Return the highest sequence id that a producer of that name has stored; -1: none."""
        return self._known.get(producer_name, _UNKNOWN)[0]

    def note_sequence_id(self, producer_name: str, sequence_id: int) -> None:
        """Note a producer's sequence id that the log has, and that was not known. Call `load` before."""
        with self._lock:
            self._note_sequence_id(producer_name, (sequence_id, WHOLE))
            self._note_count += 1

    def note_replicator_connected(self, replicator: str) -> None:
        """Note that a replicator has connected: its first entry is checked for missing entries before it."""
        self._connected.add(replicator)

    def new_entries(self, group: Sequence[QueuedEntry]) -> NewEntries:
        """Return the entries of a group that must be appended, and the answers to the others.

        The caller appends them and calls `record_outcomes`, before it calls this for the next group.
        """
        checked = _GroupCheck(len(group))
        new = checked.new
        for number, item in enumerate(group):
            try:
                if item.source is not None:
                    is_new = self._accept_replicated_entry(item, item.source, number, checked)
                else:
                    is_new = not self.of_producers or self._accept_producer_entry(item, number, checked)
            except CompactorError as error:
                new.answers[number] = error
                continue
            if is_new:
                new.entries.append(item)
                new.numbers.append(number)
        return new

    def _accept_producer_entry(self, item: QueuedEntry, number: int, group: _GroupCheck) -> bool:
        """Check a producer's entry, and note it in the group. Return whether it must be appended; False: it is a
        duplicate. Raises InvalidRecord."""
        name = item.producer.name
        sequence = _entry_sequence_id(item)
        if sequence <= self._known.get(name, _UNKNOWN) or not group.add_if_new(name, sequence, number):
            return False
        group.new.sequences[number] = sequence
        return True

    def _accept_replicated_entry(self, item: QueuedEntry, source: Source, number: int, group: _GroupCheck) -> bool:
        """Check an entry of a replicator, and note it in the group. Return whether it must be appended; False: it is a
        duplicate or a marker. Raises InvalidRecord, Unavailable for an entry that is refused."""
        name, cluster = item.producer.name, source.cluster
        if name in group.refused:
            raise Unavailable(
                f"an entry of {name!r} before it was refused", "send both again, in order", is_public=True
            )
        if source.is_marker:
            group.new.answers[number] = NOT_STORED
            self._markers[cluster] = source.position
            return False
        try:
            with self._lock:
                if self._missing.try_end_gap(cluster, source.position, (self._sources or {}).get(cluster)):
                    self._store_at = 0
            progress = self._source_progress(name, source)
            newest = group.newest.get(cluster, progress.publish_time)
            if source.position > progress.position and group.add_if_new((cluster,), source.position, number):
                group.newest[cluster] = max(newest, source.publish_time)
                return True
            if source.publish_time > newest:
                raise self._rebuilt_source_error(source, progress, newest)
        except InvalidRecord:
            group.refused.add(name)
            raise
        return False

    def _source_progress(self, name: str, source: Source) -> SourceProgress:
        """Return how far the source cluster of an entry is stored. Log a warning if entries may be missing before the
        first entry of a connection. Raises InvalidRecord for a cluster beyond `MAX_SOURCES`.

        `name`: the replicator.
        """
        sources = self._sources or {}
        progress = sources.get(source.cluster)
        if progress is None and len(sources) >= MAX_SOURCES:
            raise InvalidRecord(
                f"{self._topic.name} has entries of {MAX_SOURCES} source clusters, and takes none of "
                f"{source.cluster!r}",
                "replicate to another topic",
                is_public=True,
            )
        if name in self._connected:
            self._connected.discard(name)
            marker = self._markers.get(source.cluster)
            before = None if progress is None else max(progress.position, marker or progress.position)
            if before is not None and source.position > before and not directly_follows(source.position, before):
                LOG.warning(
                    "%s: the source cluster %s continues at position %s after position %s: entries between them are "
                    "missing here, unless the source has none for this cluster there (markers, expired or aborted "
                    "messages). Compare the topic with its source",
                    self._topic.name,
                    source.cluster,
                    source.position,
                    before,
                )
        return progress or _BEFORE_ALL

    def _rebuilt_source_error(self, source: Source, progress: SourceProgress, newest_time: int) -> InvalidRecord:
        """Return the error for an entry of a source cluster that was built again and numbers its ledgers from the
        start."""
        return InvalidRecord(
            f"{self._topic.name} has entries of the source cluster {source.cluster!r} up to position "
            f"{progress.position}, published up to {newest_time}, and the cluster sends position {source.position}, "
            f"published at {source.publish_time}: the cluster, or its topic, was built again and numbers its ledgers "
            "from the start",
            "replicate from a cluster of another name (clusterName in its broker.conf), or delete the topic here and "
            "replicate it again; no entry of that cluster is taken until then, and none is dropped",
            is_public=True,
        )

    def record_outcomes(self, new: NewEntries, appended: Sequence[AppendOutcome]) -> list[AppendOutcome | MessageId]:
        """Note the sequence ids and positions of the entries that were appended, by their outcomes. Return an answer
        for each entry of the group, in order.

        EARLIEST is the answer for a duplicate. An entry that repeats one of the same group succeeds if that one does,
        even if later entries fail.
        """
        answers = new.answers
        with self._lock:
            for number, item, answer in zip(new.numbers, new.entries, appended, strict=True):
                answers[number] = answer
                source, sequence = item.source, new.sequences.get(number)
                if isinstance(answer, CompactorError):
                    continue
                if source is not None:
                    self._note_source_progress(source.cluster, SourceProgress(source.position, source.publish_time))
                elif sequence is not None:
                    self._note_sequence_id(item.producer.name, sequence)
                else:
                    continue
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

    def _note_sequence_id(self, name: str, sequence: SequenceId) -> None:
        """Note a producer's sequence id if it is the highest. Beyond the limit drop the producer that stored an entry
        least recently."""
        self._known[name] = max(sequence, self._known.pop(name, _UNKNOWN))
        if len(self._known) > self._max_producers:
            del self._known[next(iter(self._known))]

    def _note_source_progress(self, cluster: str, progress: SourceProgress) -> None:
        """Note how far a source cluster is stored, unless it was further before."""
        if self._sources is None:
            self._sources = {}
        self._sources[cluster] = progress.merged(self._sources.get(cluster))


def _entry_sequence_id(item: QueuedEntry) -> SequenceId:
    """Return the sequence id of a producer's entry. Raises InvalidRecord for a replicated entry: its id is another
    producer's."""
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
    return sequence_id_of(metadata, highest)
