"""Snapshots: a topic as of one moment, with its ledgers, segments, horizon, compacted ledger and last run.

Invariant: ledgers and segments of a snapshot do not overlap and leave no gap above the trimmed messages, because
rolling, sealing and trimming each move whole extents in one transaction. The connection must see one moment over
several statements (`Database.snapshot`), or hold the topic's lock.
"""

from __future__ import annotations

from sqlalchemy import Connection

from storage.metadata import cursors, ledgers, runs, segments, topics
from storage.metadata.records import COMPACTION_CURSOR, TopicSnapshot


def of_topic(connection: Connection, topic_id: int) -> TopicSnapshot:
    """Return the snapshot of a topic, the base of reads, runs and reports. Raises TopicNotFound."""
    return TopicSnapshot(
        topic=topics.by_id(connection, topic_id),
        ledgers=ledgers.of_topic(connection, topic_id),
        cursor=cursors.find(connection, topic_id, COMPACTION_CURSOR),
        compacted=cursors.serving_compacted_ledger(connection, topic_id),
        last_run=runs.last(connection, topic_id),
        segments=tuple(segments.of_topic(connection, topic_id, segments.TAIL)),
    )
