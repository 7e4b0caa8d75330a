"""Unsealed segments: opened, rolled or dropped by the owner of the topic's lease, and listed.

Invariants: a topic has at most one OPEN segment (the database forbids a second one), and it begins where the topic
ends; rolling it moves the topic's end behind it in the same transaction, so offsets are dense and no other writer can
have appended in between. A segment's ledger id is above all before it, and stays its ledger's when it is sealed.
What must hold beforehand is in invariants.py; sealing is in sealing.py. Must not know: files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, delete, insert, literal, select, union_all

from storage.errors import Fenced
from storage.failpoints import Failpoint, failpoint
from storage.metadata import leases, ledgers, queries, row_mapping, topic_work, topics
from storage.metadata.invariants import check_new_segment, check_roll
from storage.metadata.liveness import LEASE_TTL_MS, live_expiry_bounds
from storage.metadata.records import Lease, SegmentContent, SegmentRecord, SegmentState, TopicActiveSegment, TopicRecord
from storage.metadata.tables import deleted_topics, leases as leases_table, segments, topics as topics_table
from storage.metadata.transactions import Context
from storage.model import TopicName

TAIL = (SegmentState.OPEN, SegmentState.ROLLED)
"""The states of segments that no ledger replaces yet."""
_IS_OPEN = segments.c.state == SegmentState.OPEN.value
_OF_TOPIC = (
    select(segments)
    .where(segments.c.topic_id == bindparam("topic"), segments.c.state.in_(bindparam("states", expanding=True)))
    .order_by(segments.c.first_offset)
)
DELETED_MS = 2 * LEASE_TTL_MS
"""The age of deletions that a poll sees. Older ones were noticed before: the renewal of a lease sees that it is lost,
also in a process whose clock is wrong."""
_BY_LEDGER = select(segments).where(
    segments.c.topic_id == bindparam("topic"), segments.c.ledger_id == bindparam("ledger")
)
_ROLL_REQUESTS = union_all(
    select(topics_table.c.id, literal(0)).where(topics_table.c.roll_requested_at.is_not(None)),
    select(deleted_topics.c.topic_id, literal(1)).where(
        deleted_topics.c.collected_at.is_(None), deleted_topics.c.deleted_at >= bindparam("since")
    ),
)


class RollRequestsAndDeletions(NamedTuple):
    """The ids of topics whose writers must act.

    `roll_requested`: a roll of them is requested; `deleted`: they were deleted lately.
    """

    roll_requested: frozenset[int]
    deleted: frozenset[int]


# Changes by the lease owner


def open_segment(connection: Connection, _: Context, lease: Lease, segment: SegmentRecord) -> None:
    """Insert a segment, whose file exists, as the topic's open one.

    Raises Fenced if the lease was overtaken or the topic has moved on.
    """
    topic = leases.lock_topic(connection, lease)
    check_new_segment(topic, ledgers.last_id(connection, topic.id), find_open(connection, topic.id), segment)
    connection.execute(insert(segments).values(**row_mapping.segment_values(topic.id, segment)))


def restore(connection: Connection, context: Context, lease: Lease, segment: SegmentRecord) -> None:
    """Insert a segment, whose row was lost, as the topic's open one again, under the ledger id that its file has.

    Ids that are allocated later are higher. Raises Conflict if another ledger has the id, or the topic has a higher
    one; Fenced as `open_segment`.
    """
    leases.lock_and_check(connection, lease)
    ledgers.reserve_id(connection, lease.topic_id, segment.ledger_id)
    open_segment(connection, context, lease, segment)


def has_opened(connection: Connection, _: None, lease: Lease, segment: SegmentRecord) -> bool:
    """Return whether an `open_segment` or `restore` was committed."""
    topics.lock(connection, lease.topic_id)
    return find(connection, lease.topic_id, segment.ledger_id) is not None


def roll(
    connection: Connection, context: Context, lease: Lease, ledger_id: int, content: SegmentContent
) -> SegmentRecord:
    """Change a topic's open segment, which is flushed and holds `content`, to rolled: the topic continues after it.

    A request to roll the topic ends with this. Idempotent for the same content. Returns the segment afterwards. Raises
    Fenced.
    """
    topic = leases.lock_topic(connection, lease)
    segment = find(connection, topic.id, ledger_id)
    if segment is None:
        raise Fenced(
            f"the segment of ledger {ledger_id} of {topic.name} does not exist (any more)",
            "nothing was changed; check the topic's segments again",
        )
    check_roll(topic, segment, content)
    if segment.state is SegmentState.OPEN:
        values = {"state": SegmentState.ROLLED.value, "rolled_at": context.now, **row_mapping.content_values(content)}
        queries.change(connection, segments, ledger_id, **values)
        queries.change(connection, topics_table, topic.id, next_offset=content.last_offset + 1, roll_requested_at=None)
        topic_work.mark(connection, topic_work.WorkKind.COMPACT, [topic.id])
        segment = replace(segment, state=SegmentState.ROLLED, rolled_at=context.now, content=content)
    failpoint(Failpoint.ROLL_INSIDE_COMMIT)
    return segment


def has_rolled(connection: Connection, _: SegmentRecord, lease: Lease, ledger_id: int, content: SegmentContent) -> bool:
    """Return whether a `roll` was committed."""
    topics.lock(connection, lease.topic_id)
    segment = find(connection, lease.topic_id, ledger_id)
    return segment is not None and segment.state is not SegmentState.OPEN


def drop_empty(connection: Connection, lease: Lease, ledger_id: int) -> None:
    """Delete the row of a topic's open segment that holds no message, and the request to roll the topic.

    Idempotent. Raises Fenced.
    """
    topic = leases.lock_topic(connection, lease)
    only = "only an open segment that holds nothing may be dropped"
    remove(connection, topic, ledger_id, SegmentState.OPEN, only)
    _set_roll_requested_at(connection, topic.id, None)


def request_roll(connection: Connection, context: Context, topic_id: int) -> None:
    """Store a request to the topic's writer to roll its open segment; of several requests the first counts.

    Raises TopicNotFound.
    """
    topic = topics.lock(connection, topic_id)
    if not is_roll_requested(connection, topic.id):
        _set_roll_requested_at(connection, topic.id, context.now)


def clear_roll_request(connection: Connection, lease: Lease) -> None:
    """Delete the request to roll a topic, for a writer that has nothing to roll. Raises Fenced."""
    _set_roll_requested_at(connection, leases.lock_topic(connection, lease).id, None)


def check_open(connection: Connection, lease: Lease, ledger_id: int | None) -> None:
    """Raise Fenced if the lease was overtaken, or the topic's open segment is another than that of `ledger_id`.

    `ledger_id` None: the topic must have no open segment. For the process that has the lock on a segment's file and is
    about to write: it may have slept since it got the lease.
    """
    leases.lock_and_check(connection, lease)
    segment = find_open(connection, lease.topic_id)
    if (segment.ledger_id if segment else None) != ledger_id:
        topic = topics.by_id(connection, lease.topic_id)
        present = f"the segment of ledger {segment.ledger_id} is open" if segment else "no segment is open"
        raise Fenced(f"{topic.name} has moved on: {present}", "nothing was written; open the topic again to continue")


# Queries by topic


def of_topic(
    connection: Connection, topic_id: int, states: Collection[SegmentState] = tuple(SegmentState)
) -> list[SegmentRecord]:
    """Return the topic's segments in `states`, in the order of offsets.

    SEALED ones have a ledger already, and wait for their files to be removed.
    """
    parameters = {"topic": topic_id, "states": [state.value for state in states]}
    return queries.fetch(connection, _OF_TOPIC, row_mapping.segment, parameters)


def find(connection: Connection, topic_id: int, ledger_id: int) -> SegmentRecord | None:
    """Return the topic's segment of that ledger id, in any state; None: there is none."""
    return queries.find(connection, _BY_LEDGER, row_mapping.segment, {"topic": topic_id, "ledger": ledger_id})


def find_open(connection: Connection, topic_id: int) -> SegmentRecord | None:
    """Return the open segment of the topic; None: there is none."""
    return next(iter(of_topic(connection, topic_id, [SegmentState.OPEN])), None)


def active_segments(connection: Connection, topic_ids: Sequence[int]) -> list[TopicActiveSegment]:
    """Return topics, each with its open segment or None, in a few statements; deleted topics are left out."""
    active: list[TopicActiveSegment] = []
    for ids in queries.batches(topic_ids):
        opened = select(segments).where(_IS_OPEN, segments.c.topic_id.in_(ids))
        by_topic = {row["topic_id"]: row_mapping.segment(row) for row in connection.execute(opened).mappings()}
        records = topics.by_ids(connection, ids).values()
        active += [TopicActiveSegment(topic, by_topic.get(topic.id)) for topic in records]
    return active


def is_roll_requested(connection: Connection, topic_id: int) -> bool:
    """Return whether a roll of the topic is requested. Raises TopicNotFound."""
    return topics.value_of(connection, topic_id, topics_table.c.roll_requested_at) is not None


def roll_requests_and_deletions(connection: Connection, context: Context) -> RollRequestsAndDeletions:
    """Return the topics that are requested to roll, and those that were deleted in the last `DELETED_MS`.

    One statement, whose cost depends on these topics alone: writers poll.
    """
    rows = connection.execute(_ROLL_REQUESTS, {"since": context.now - DELETED_MS}).all()
    return RollRequestsAndDeletions(
        frozenset(topic_id for topic_id, is_deleted in rows if not is_deleted),
        frozenset(topic_id for topic_id, is_deleted in rows if is_deleted),
    )


# Queries by log directory


def topics_to_roll(connection: Connection, log_uid: str) -> list[TopicRecord]:
    """Return the topics with an open segment in that log directory that are requested to roll, by name."""
    opened = select(segments.c.topic_id).where(_IS_OPEN, segments.c.log_uid == log_uid)
    requested = topics_table.c.roll_requested_at.is_not(None)
    return topics.of_statement(connection, select(topics_table).where(requested, topics_table.c.id.in_(opened)))


def open_segments_in(connection: Connection, log_uid: str) -> list[tuple[TopicRecord, SegmentRecord]]:
    """Return the open segments of a log directory, with their topics."""
    return fetch_with_topics(connection, select(segments).where(_IS_OPEN, segments.c.log_uid == log_uid))


def topics_with_segments(
    connection: Connection, states: Collection[SegmentState], log_uid: str | None = None
) -> list[TopicRecord]:
    """Return the topics that have a segment in one of those states, by name; with `log_uid`, in that log directory."""
    having = select(segments.c.topic_id).where(segments.c.state.in_([state.value for state in states]))
    if log_uid is not None:
        having = having.where(segments.c.log_uid == log_uid)
    return topics.of_statement(connection, select(topics_table).where(topics_table.c.id.in_(having)))


def topics_unsealed_outside(connection: Connection, log_uids: Collection[str]) -> dict[str, list[TopicName]]:
    """Return the topics with unsealed segments in log directories other than `log_uids`.

    By the uid of the directory, ordered by name.
    """
    columns = select(segments.c.log_uid, topics_table.c.name).distinct()
    joined = columns.join(topics_table, topics_table.c.id == segments.c.topic_id)
    unsealed = segments.c.state.in_([state.value for state in TAIL])
    statement = joined.where(unsealed, segments.c.log_uid.not_in(log_uids)).order_by(topics_table.c.name)
    by_log: dict[str, list[TopicName]] = {}
    for log_uid, name in connection.execute(statement):
        by_log.setdefault(log_uid, []).append(TopicName.parse(name))
    return by_log


def first_offsets(connection: Connection, log_uid: str) -> dict[str, set[int]]:
    """Return the first offsets of all segments in a log directory that have a row, by the uid of their topic."""
    columns = select(topics_table.c.uid, segments.c.first_offset)
    joined = columns.join(topics_table, topics_table.c.id == segments.c.topic_id)
    by_uid: dict[str, set[int]] = {}
    for uid, first in connection.execute(joined.where(segments.c.log_uid == log_uid)):
        by_uid.setdefault(uid, set()).add(first)
    return by_uid


def rolled_bytes(connection: Connection, log_uid: str) -> int:
    """Return the total file size of a log directory's segments that wait to be sealed."""
    rolled = (segments.c.state == SegmentState.ROLLED.value) & (segments.c.log_uid == log_uid)
    return connection.execute(select(queries.total(segments.c.size)).where(rolled)).scalar_one()


def open_segments_without_writer(
    connection: Connection, context: Context, log_uid: str, created_until: int
) -> list[tuple[TopicRecord, SegmentRecord]]:
    """Return the open segments of a log directory without a live lease, created at `created_until` (ms) or before.

    With their topics, the oldest first.
    """
    alive = live_expiry_bounds(LEASE_TTL_MS, context.now).condition(leases_table.c.expires_at)
    leased = select(leases_table.c.topic_id).where(leases_table.c.holder.is_not(None), alive)
    statement = (
        select(segments)
        .where(
            _IS_OPEN,
            segments.c.log_uid == log_uid,
            segments.c.created_at <= created_until,
            segments.c.topic_id.not_in(leased),
        )
        .order_by(segments.c.created_at, segments.c.ledger_id)
    )
    return fetch_with_topics(connection, statement)


# Parts of other transactions


def remove(connection: Connection, topic: TopicRecord, ledger_id: int, state: SegmentState, refusal: str) -> None:
    """Delete the row of a segment, if there is one. The topic must be locked.

    Raises AssertionError, with the text `refusal`, if the segment is not in `state`.
    """
    segment = find(connection, topic.id, ledger_id)
    if segment is not None and segment.state is not state:
        raise AssertionError(f"the segment of ledger {ledger_id} of {topic.name} is {segment.state.value}; {refusal}")
    same = (segments.c.topic_id == topic.id) & (segments.c.ledger_id == ledger_id)
    connection.execute(delete(segments).where(same))


def fetch_with_topics(connection: Connection, statement: Select[Any]) -> list[tuple[TopicRecord, SegmentRecord]]:
    """Execute a statement that selects segments; return them in its order, with their topics."""
    rows = connection.execute(statement).mappings().all()
    records = topics.by_ids(connection, {row["topic_id"] for row in rows})
    return [(records[row["topic_id"]], row_mapping.segment(row)) for row in rows]


def _set_roll_requested_at(connection: Connection, topic_id: int, at: int | None) -> None:
    queries.change(connection, topics_table, topic_id, roll_requested_at=at)
