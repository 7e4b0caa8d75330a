"""A log that is older than the database: restored from a copy, or without its end after a loss of power.

It shows by its end, which is before the offset up to which SQL has ids and positions. They are stored from time to time
(deduplication.py), so a loss of power is not noticed here if it took entries after the last ones in SQL alone.

The log is right. The ids of mirrors and the positions of source clusters become those of the log, so that a source can
give the lost entries again. Kafka does, because a mirror asks from its position on. A replicator goes on after its last
receipt, so an operator has to let its source begin again: until it does, nothing of it is stored, because a later
position would make the missing entries count as stored.

| the log has of a source cluster | its position here | missing |
|---|---|---|
| entries | that of the last one | up to the stored position |
| none, and nothing was trimmed | none | up to the stored position |
| none after the horizon of the compacted ledger, the only cluster | that of the horizon | up to the stored position |
| none, and more was trimmed | the stored one | not known: a warning |

Must not know: groups of entries, connections.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace

from storage.entries.sequence_ids import last_complete_sequence_number
from storage.errors import InvalidRecord
from storage.metadata.producer_sequences import ProducerSequences
from storage.metadata.store import MetadataStore
from storage.model import SourcePosition, SourceProgress, merged_progress
from storage.reading.snapshot_reader import SnapshotReader
from storage.topic import Topic

LOG = logging.getLogger(__name__)
MIRROR_PREFIX = "kafka:"
"""Names of the producers of mirrors begin with it. After a restore they begin where the log ends, as replicators do."""
ACCEPT_GAPS = "replication.accept-gaps"
"""The policy with which a replicator goes on without the missing entries."""
_AGAIN = (
    "remove this cluster from the replication clusters of the source's namespace or topic and add it again, with "
    "replicationStartAt=earliest in the source's broker.conf: entries that are stored here are not stored again"
)


def reset_sequences_to_log(
    metadata: MetadataStore, topic: Topic, stored: ProducerSequences, end: int
) -> ProducerSequences:
    """Reset the sequence ids of mirrors and the positions of source clusters to those that the log has, because it ends
    at `end`, before the stored ones. Store them with the gaps of missing entries, and return them.

    Blocks. Raises CompactorError.
    """
    reader = topic.snapshot_reader()
    in_log: dict[str, SourceProgress] = {}
    highest = None if stored.highest is None else _without_mirrors(stored.highest)
    if stored.sources or highest != stored.highest:
        for scan in topic.producer_sequences(reader.first_offset):
            in_log = merged_progress(scan.sources, in_log)
            for name, sequence in scan.highest.items():
                if highest is not None and name.startswith(MIRROR_PREFIX):
                    highest[name] = max(highest.get(name, -1), last_complete_sequence_number(sequence))
    LOG.warning(
        "%s: the log ends at offset %d, and the database has sequence ids and positions of entries up to offset %d: "
        "acknowledged entries are missing, as after a restore of an older log. Restore a newer one, or take the "
        "missing entries from their source",
        topic.name,
        end,
        stored.end_offset,
    )
    sources, missing = dict(stored.sources or {}), dict(stored.missing)
    is_single = len(sources.keys() | in_log.keys()) == 1
    for cluster, known in (stored.sources or {}).items():
        if cluster not in in_log and reader.first_offset:
            at_horizon = _progress_at_horizon(reader, known) if is_single else None
            if at_horizon is None:
                LOG.warning(
                    "%s: the log has no entry of the source cluster %s, so entries up to position %s may be missing. "
                    "Compare the topic with its source",
                    topic.name,
                    cluster,
                    known.position,
                )
                continue
            in_log[cluster] = at_horizon
        progress = in_log.get(cluster)
        if progress is None:
            del sources[cluster]
        else:  # entries that were trimmed may have a later publish time, and be sent again
            in_log[cluster] = progress._replace(publish_time=max(progress.publish_time, known.publish_time))
        if progress is None or progress.position < known.position:
            missing[cluster] = max(known.position, missing.get(cluster, known.position))
            gap = _gap_text(cluster, progress, missing[cluster])
            LOG.warning("%s: %s. To fill the gap, %s", topic.name, gap, _AGAIN)
    if highest != stored.highest:
        partition = topic.name
        metadata.mirrors.clear_progress(partition.partitioned_topic or partition, partition.partition)
    accepted = replace(
        stored,
        end_offset=end,
        highest=highest,
        sources=None if stored.sources is None else {**sources, **in_log},
        missing=missing,
    )
    metadata.producer_sequences.replace(topic.record.id, accepted)
    return accepted


def _progress_at_horizon(reader: SnapshotReader, known: SourceProgress) -> SourceProgress | None:
    """Return the position of a source cluster at the horizon of the compacted ledger; None: not all messages before
    the log are in that ledger.

    `known`: the stored position of the cluster, which the result does not exceed.
    """
    compacted = reader.snapshot.compacted
    if compacted is None or compacted.source_horizon is None or compacted.horizon.offset + 1 < reader.first_offset:
        return None
    return SourceProgress(min(compacted.source_horizon, known.position), known.publish_time)


def _without_mirrors(highest: Mapping[str, int]) -> dict[str, int]:
    return {name: number for name, number in highest.items() if not name.startswith(MIRROR_PREFIX)}


def _gap_text(cluster: str, progress: SourceProgress | None, last: SourcePosition) -> str:
    """Return a text about the missing entries of a source cluster: those after `progress` up to `last`."""
    after = "" if progress is None else f" after position {progress.position}"
    return (
        f"of the source cluster {cluster}, entries{after} up to position {last} are missing, and the source has "
        "receipts for them"
    )


class MissingEntries:
    """The gaps in a topic's log: the source clusters of which it lacks entries, each with the position of the last
    missing one. For the holder of the lock of deduplication."""

    def __init__(self, topic: Topic, missing: Mapping[str, SourcePosition]) -> None:
        self._topic = topic
        self._last = dict(missing)
        self.ended: set[str] = set()
        """The clusters that have begun again, and are not removed from SQL yet."""

    def __bool__(self) -> bool:
        return bool(self._last)

    def try_end_gap(self, cluster: str, position: SourcePosition, progress: SourceProgress | None) -> bool:
        """End the gap of a source cluster if its entry at `position` is before the gap or at its begin, because the
        source then sends all missing ones, in order. Return whether a gap has ended. Raise InvalidRecord for an entry
        after a gap.

        `progress`: how far the cluster is stored; None: the log has no entry of it.
        """
        last = self._last.get(cluster)
        if last is None:
            return False
        if progress is None:
            is_before = position <= last and not position.entry_id
        else:
            stored = progress.position
            is_before = position <= stored or position == stored._replace(entry_id=stored.entry_id + 1)
        if not is_before:
            remedy = (
                f"{_AGAIN}. Or set the policy {ACCEPT_GAPS} of the topic, to go on without the missing entries; until "
                "then no entry of that cluster is taken, and none is dropped"
            )
            if progress is None:
                remedy += (
                    f". If the source has begun again at earliest already, position {position} is that of the first "
                    "entry that it has for this cluster, and the policy leaves out none of them"
                )
            raise InvalidRecord(
                f"{self._topic.name}: {_gap_text(cluster, progress, last)}; it continues at position {position}",
                remedy,
                is_public=True,
            )
        self._end_gaps([cluster])
        return True

    def end_filled_gaps(self, sources: Mapping[str, SourceProgress]) -> None:
        """End the gaps that are filled: those of which the log has the last missing entry."""
        filled = [name for name, last in self._last.items() if name in sources and sources[name].position >= last]
        self._end_gaps(filled)

    def accept_all(self) -> dict[str, SourcePosition]:
        """End all gaps although their entries stay missing. Return the position of the last missing entry by source
        cluster."""
        accepted = dict(self._last)
        self._end_gaps(accepted)
        return accepted

    def _end_gaps(self, clusters: Iterable[str]) -> None:
        for cluster in clusters:
            self._last.pop(cluster, None)
            self.ended.add(cluster)


def warn_about_accepted_gaps(topic: Topic, accepted: Mapping[str, SourcePosition]) -> None:
    """Log a warning for each gap that the policy has ended although its entries are missing."""
    for cluster, last in accepted.items():
        LOG.warning(
            "%s: the policy %s is set, so the source cluster %s goes on without the entries up to position %s that "
            "are missing here",
            topic.name,
            ACCEPT_GAPS,
            cluster,
            last,
        )
