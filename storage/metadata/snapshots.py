"""A topic as of one moment, put together from all that is known of it.

Invariant: ledgers and segments of a snapshot do not overlap and leave no gap above what was trimmed, because rolling,
sealing and trimming each move whole pieces in one transaction. The connection must see one moment over several
statements (`Database.snapshot`), or hold the topic's lock.
"""

from __future__ import annotations

from sqlalchemy import Connection

from storage.metadata import attempts, cursors, ledgers, pins, runs, segments, topics
from storage.metadata.records import COMPACTION_CURSOR, GcSnapshot, TopicSnapshot


def of_topic(connection: Connection, topic_id: int) -> TopicSnapshot:
    """What readers, runs and faces look at. Raises TopicNotFound."""
    return TopicSnapshot(
        topic=topics.by_id(connection, topic_id),
        ledgers=ledgers.of_topic(connection, topic_id),
        cursor=cursors.find(connection, topic_id, COMPACTION_CURSOR),
        compacted=cursors.serving_compacted(connection, topic_id),
        last_run=runs.last(connection, topic_id),
        segments=segments.of_topic(connection, topic_id, segments.TAIL),
    )


def of_references(connection: Connection, topic_id: int, now: int) -> GcSnapshot:
    """What leads to objects, also trimmed ledgers until they are forgotten. Raises TopicNotFound.

    List the objects first and call this after: each attempt is known before its first object, so an object that was
    listed, that nothing here leads to, and whose attempt is finished or unknown here, is garbage forever.
    """
    return GcSnapshot(
        topic=topics.by_id(connection, topic_id),
        ledgers=ledgers.with_trimmed(connection, topic_id),
        compacted=pins.kept(connection, topic_id),
        attempts=attempts.of_topic(connection, topic_id),
        pins=pins.live(connection, topic_id, now),
    )
