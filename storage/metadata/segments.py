"""Unsealed segments: opened, rolled or dropped by the owner of the topic's lease, and listed.

Invariants: a topic has at most one OPEN segment (the database forbids a second one), and it begins where the topic
ends; rolling it moves the topic's end behind it in the same transaction, so offsets are dense and no other writer can
have appended in between. A segment's ledger id is above all before it, and stays its ledger's when it is sealed.
What must hold beforehand is in invariants.py; sealing is in sealing.py. Must not know: files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, select

from storage.errors import Fenced
from storage.failpoints import Failpoint, failpoint
from storage.metadata import leases, ledgers, queries, row_mapping, topics
from storage.metadata.invariants import check_open_segment, check_roll
from storage.metadata.liveness import LEASE_TTL_MS, expiring
from storage.metadata.queries import Store
from storage.metadata.records import Lease, SegmentContent, SegmentRecord, SegmentState, TopicActiveSegment, TopicRecord
from storage.metadata.tables import leases as leases_table, segments, topics as topics_table

TAIL = (SegmentState.OPEN, SegmentState.ROLLED)
"""The states of segments that no ledger replaces yet."""
_IS_OPEN = segments.c.state == SegmentState.OPEN.value
_OF_TOPIC = (
    select(segments)
    .where(segments.c.topic_id == bindparam("topic"), segments.c.state.in_(bindparam("states", expanding=True)))
    .order_by(segments.c.first_offset)
)


class SegmentStore(Store):
    """Segments. Changes are the lease owner's."""

    # Changes

    def open(self, lease: Lease, segment: SegmentRecord) -> None:
        """Make a segment, whose file exists, the topic's open one.

        Raises Fenced if the lease was overtaken or the topic has moved on.
        """
        self._write(lease, segment, _open, "opened")

    def take_up(self, lease: Lease, segment: SegmentRecord) -> None:
        """Make a segment, whose row was lost, the topic's open one again, under the id that its file has.

        Ids that are allocated later are above it. Raises Conflict if the id is another's, or below one of the topic's;
        Fenced as `open`.
        """
        self._write(lease, segment, _take_up, "taken up")

    def _write(
        self, lease: Lease, segment: SegmentRecord, write: Callable[[Connection, Lease, SegmentRecord], None], done: str
    ) -> None:

        def happened(connection: Connection, _: None) -> bool:
            topics.locked(connection, lease.topic_id)
            return find(connection, lease.topic_id, segment.ledger_id) is not None

        self._database.write_once(
            lambda connection: write(connection, lease, segment),
            happened,
            f"whether the segment of ledger {segment.ledger_id} was {done}",
        )

    def roll(self, lease: Lease, ledger_id: int, content: SegmentContent) -> SegmentRecord:
        """Close the open segment, which is flushed and holds `content`: the topic continues behind it. As it is then.

        A request to roll the topic is fulfilled. Again with the same content changes nothing. Raises Fenced.
        """

        def roll(connection: Connection) -> SegmentRecord:
            rolled = _roll(connection, lease, ledger_id, content, self._clock.now_ms())
            failpoint(Failpoint.ROLL_INSIDE_COMMIT)
            return rolled

        def happened(connection: Connection, _: SegmentRecord) -> bool:
            topics.locked(connection, lease.topic_id)
            found = find(connection, lease.topic_id, ledger_id)
            return found is not None and found.state is not SegmentState.OPEN

        return self._database.write_once(roll, happened, f"whether the segment of ledger {ledger_id} was rolled")

    def drop(self, lease: Lease, ledger_id: int) -> None:
        """Delete the row of an open segment that holds nothing, and fulfil a request to roll the topic.

        Nothing happens if the row is gone. Raises Fenced.
        """
        with self._database.write() as connection:
            topic = leases.lock_topic(connection, lease)
            only = "only an open segment that holds nothing may be dropped"
            remove(connection, topic, ledger_id, SegmentState.OPEN, only)
            _set_request(connection, topic.id, None)

    def request_roll(self, topic_id: int) -> None:
        """Ask the topic's writer to roll its open segment; of several requests the first counts. TopicNotFound."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            topic = topics.locked(connection, topic_id)
            if not _roll_requested(connection, topic.id):
                _set_request(connection, topic.id, now)

    def clear_roll_request(self, lease: Lease) -> None:
        """Fulfil a request to roll the topic when there is nothing to roll. Raises Fenced."""
        with self._database.write() as connection:
            _set_request(connection, leases.lock_topic(connection, lease).id, None)

    def check_open(self, lease: Lease, ledger_id: int | None) -> None:
        """Raises Fenced if the lease was overtaken, or the topic's open segment (None: it has none) is another one.

        For the process that has the lock on a segment's file and is about to write: it may have slept since it got the
        lease.
        """
        with self._database.write() as connection:
            leases.check(connection, lease)
            found = open_of(connection, lease.topic_id)
            if (found.ledger_id if found else None) != ledger_id:
                topic = topics.by_id(connection, lease.topic_id)
                there = f"the segment of ledger {found.ledger_id} is open" if found else "no segment is open"
                raise Fenced(
                    f"{topic.name} has moved on: {there}", "nothing was written; open the topic again to continue"
                )

    # Of topics

    def of_topic(self, topic_id: int) -> list[SegmentRecord]:
        """All that have a row, also sealed ones whose files wait to be removed; in the order of offsets."""
        with self._database.read() as connection:
            return list(of_topic(connection, topic_id))

    def find_open(self, topic_id: int) -> SegmentRecord | None:
        """The open segment of the topic."""
        with self._database.read() as connection:
            return open_of(connection, topic_id)

    def active_segments(self, topic_ids: Sequence[int]) -> list[TopicActiveSegment]:
        """The topics and their open segments, in a few statements; a topic that was deleted is left out."""
        with self._database.read() as connection:
            found: list[TopicActiveSegment] = []
            for ids in queries.batches(topic_ids):
                opened = select(segments).where(_IS_OPEN, segments.c.topic_id.in_(ids))
                by_topic = {row["topic_id"]: row_mapping.segment(row) for row in connection.execute(opened).mappings()}
                records = topics.by_ids(connection, ids).values()
                found += [TopicActiveSegment(topic, by_topic.get(topic.id)) for topic in records]
            return found

    def roll_requested(self, topic_id: int) -> bool:
        """Raises TopicNotFound."""
        with self._database.read() as connection:
            return _roll_requested(connection, topic_id)

    def roll_requests(self, topic_ids: Sequence[int]) -> dict[int, bool]:
        """`roll_requested` for many, some hundred a statement; a topic that was deleted is left out."""
        with self._database.read() as connection:
            found: dict[int, bool] = {}
            columns = (topics_table.c.id, topics_table.c.roll_requested_at)
            for ids in queries.batches(topic_ids):
                rows = connection.execute(select(*columns).where(topics_table.c.id.in_(ids)))
                found.update((topic_id, requested_at is not None) for topic_id, requested_at in rows)
            return found

    # Of log directories

    def topics_to_roll(self, log_uid: str) -> list[TopicRecord]:
        """The topics with an open segment in that log directory that are requested to roll, by name."""
        opened = select(segments.c.topic_id).where(_IS_OPEN, segments.c.log_uid == log_uid)
        requested = topics_table.c.roll_requested_at.is_not(None)
        with self._database.read() as connection:
            return topics.of_statement(connection, select(topics_table).where(requested, topics_table.c.id.in_(opened)))

    def topics_with(self, states: Collection[SegmentState], log_uid: str | None = None) -> list[TopicRecord]:
        """The topics that have a segment in one of those states, by name; with `log_uid`, in that log directory."""
        having = select(segments.c.topic_id).where(segments.c.state.in_([state.value for state in states]))
        if log_uid is not None:
            having = having.where(segments.c.log_uid == log_uid)
        with self._database.read() as connection:
            return topics.of_statement(connection, select(topics_table).where(topics_table.c.id.in_(having)))

    def first_offsets(self, log_uid: str) -> dict[str, set[int]]:
        """The first offsets of all segments in a log directory that have a row, by the uid of their topic."""
        columns = select(topics_table.c.uid, segments.c.first_offset)
        joined = columns.join(topics_table, topics_table.c.id == segments.c.topic_id)
        found: dict[str, set[int]] = {}
        with self._database.read() as connection:
            for uid, first in connection.execute(joined.where(segments.c.log_uid == log_uid)):
                found.setdefault(uid, set()).add(first)
        return found

    def rolled_bytes(self, log_uid: str) -> int:
        """The size of a log directory's segments that wait to be sealed."""
        statement = select(func.sum(segments.c.size)).where(
            segments.c.state == SegmentState.ROLLED.value, segments.c.log_uid == log_uid
        )
        with self._database.read() as connection:
            return int(connection.execute(statement).scalar_one() or 0)

    def open_without_writer(self, log_uid: str, created_until: int) -> list[tuple[TopicRecord, SegmentRecord]]:
        """The open segments of a log directory that no writer has a lease for, created at that time (ms) or before.

        With their topics, the oldest first.
        """
        with self._database.snapshot() as connection:
            alive = expiring(LEASE_TTL_MS, self._clock.now_ms()).where(leases_table.c.expires_at)
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
            return with_topics(connection, statement)


def find(connection: Connection, topic_id: int, ledger_id: int) -> SegmentRecord | None:
    """The topic's segment of that ledger id."""
    statement = select(segments).where(segments.c.topic_id == topic_id, segments.c.ledger_id == ledger_id)
    return queries.find(connection, statement, row_mapping.segment)


def remove(connection: Connection, topic: TopicRecord, ledger_id: int, state: SegmentState, only: str) -> None:
    """Delete the segment's row, if there is one. The topic is locked. AssertionError, with `only`: another state."""
    found = find(connection, topic.id, ledger_id)
    if found is not None and found.state is not state:
        raise AssertionError(f"the segment of ledger {ledger_id} of {topic.name} is {found.state.value}; {only}")
    ours = (segments.c.topic_id == topic.id) & (segments.c.ledger_id == ledger_id)
    connection.execute(delete(segments).where(ours))


def with_topics(connection: Connection, statement: Select[Any]) -> list[tuple[TopicRecord, SegmentRecord]]:
    """The segments that a statement selects, in its order, with their topics."""
    rows = connection.execute(statement).mappings().all()
    records = topics.by_ids(connection, {row["topic_id"] for row in rows})
    return [(records[row["topic_id"]], row_mapping.segment(row)) for row in rows]


def of_topic(
    connection: Connection, topic_id: int, states: Collection[SegmentState] = tuple(SegmentState)
) -> tuple[SegmentRecord, ...]:
    """The topic's segments in those states, in the order of offsets."""
    wanted = {"topic": topic_id, "states": [state.value for state in states]}
    return tuple(queries.fetch(connection, _OF_TOPIC, row_mapping.segment, wanted))


def open_of(connection: Connection, topic_id: int) -> SegmentRecord | None:
    return next(iter(of_topic(connection, topic_id, [SegmentState.OPEN])), None)


def _open(connection: Connection, lease: Lease, new: SegmentRecord) -> None:
    topic = leases.lock_topic(connection, lease)
    check_open_segment(topic, ledgers.last_id(connection, topic.id), open_of(connection, topic.id), new)
    connection.execute(insert(segments).values(**row_mapping.segment_values(topic.id, new)))


def _take_up(connection: Connection, lease: Lease, lost: SegmentRecord) -> None:
    leases.check(connection, lease)
    ledgers.take_id(connection, lease.topic_id, lost.ledger_id)
    _open(connection, lease, lost)


def _roll(connection: Connection, lease: Lease, ledger_id: int, content: SegmentContent, now: int) -> SegmentRecord:
    topic = leases.lock_topic(connection, lease)
    found = find(connection, topic.id, ledger_id)
    if found is None:
        raise Fenced(
            f"the segment of ledger {ledger_id} of {topic.name} does not exist (any more)",
            "nothing was changed; check the topic's segments again",
        )
    check_roll(topic, found, content)
    if found.state is not SegmentState.OPEN:
        return found
    values = {"state": SegmentState.ROLLED.value, "rolled_at": now, **row_mapping.content_values(content)}
    queries.change(connection, segments, ledger_id, **values)
    queries.change(connection, topics_table, topic.id, next_offset=content.last_offset + 1, roll_requested_at=None)
    rolled = find(connection, topic.id, ledger_id)
    assert rolled is not None
    return rolled


def _roll_requested(connection: Connection, topic_id: int) -> bool:
    statement = select(topics_table.c.roll_requested_at).where(topics_table.c.id == topic_id)
    row = connection.execute(statement).one_or_none()
    if row is None:
        topics.by_id(connection, topic_id)  # which raises TopicNotFound in the topic's words
    return row is not None and row[0] is not None


def _set_request(connection: Connection, topic_id: int, at: int | None) -> None:
    queries.change(connection, topics_table, topic_id, roll_requested_at=at)
