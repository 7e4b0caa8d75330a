"""Raw ledgers: their ids, and appending them to a topic all at once.

Invariants: a ledger id is allocated once, over all topics, raw and compacted ledgers together; ledgers of one append
become visible together or never; see invariants.check_append for how they must follow each other. A ledger that was
trimmed is not listed; its row stays for a while (trimming.py). Ledgers of sealed segments come by sealing.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, insert, select, update

from storage.errors import Conflict
from storage.failpoints import Failpoint, failpoint
from storage.metadata import attempts, leases, queries, row_mapping, topics
from storage.metadata.invariants import check_append
from storage.metadata.queries import Store
from storage.metadata.records import Lease, SegmentState
from storage.metadata.tables import compacted_ledgers, ledgers, segments, sequences, topics as topics_table
from storage.model import LedgerRecord

LEDGER_SEQUENCE = "ledger"
"""The row of `sequences`; the first migration makes it."""
_OF_TOPIC = select(ledgers).where(ledgers.c.topic_id == bindparam("topic")).order_by(ledgers.c.first_offset)


class LedgerStore(Store):
    """Raw ledgers and their ids."""

    def allocate_ids(self, count: int) -> int:
        """The first of `count` consecutive ledger ids. No id is allocated twice; one that is not used is lost."""
        if count < 1:
            raise ValueError(f"{count} ledger ids cannot be allocated")
        with self._database.write() as connection:
            after = connection.execute(
                update(sequences)
                .where(sequences.c.name == LEDGER_SEQUENCE)
                .values(next_value=sequences.c.next_value + count)
                .returning(sequences.c.next_value)
            ).scalar_one()
            return int(after) - count

    def skip_ids(self, highest: int) -> None:
        """Allocate no id up to that one any more: files have them whose rows were lost."""
        with self._database.write() as connection:
            _skip_ids(connection, highest)

    def append(self, lease: Lease, new: Sequence[LedgerRecord]) -> None:
        """Make sealed ledgers part of the topic, all at once, and finish their attempts.

        Raises Fenced if the lease was overtaken (a mere expiry does no harm), the topic has moved on, or an attempt
        was finished as dead.
        """

        def append(connection: Connection) -> None:
            _append(connection, lease, new, self._clock.now_ms())
            failpoint(Failpoint.IMPORT_INSIDE_COMMIT)

        def happened(connection: Connection, _: None) -> bool:
            topics.locked(connection, lease.topic_id)
            ours = (ledgers.c.topic_id == lease.topic_id) & (ledgers.c.ledger_id == new[-1].ledger_id)
            return connection.execute(select(ledgers.c.ledger_id).where(ours)).first() is not None

        self._database.write_once(
            append,
            happened,
            f"whether ledger {new[-1].ledger_id if new else None} and those with it were appended",
        )

    def of_topic(self, topic_id: int) -> tuple[LedgerRecord, ...]:
        """Those that are not trimmed, in the order of offsets."""
        with self._database.read() as connection:
            return of_topic(connection, topic_id)


def take_id(connection: Connection, topic_id: int, ledger_id: int) -> None:
    """Use an id that was allocated before the database was restored; it is not allocated again.

    Raises Conflict if another ledger has it, or the topic has a higher one.
    """
    for table in (ledgers, segments, compacted_ledgers):
        if connection.execute(select(table.c.topic_id).where(table.c.ledger_id == ledger_id)).first() is not None:
            raise Conflict(f"its ledger id {ledger_id} was given to another ledger", "use another id")
    last = last_id(connection, topic_id)
    if last is not None and last >= ledger_id:
        raise Conflict(f"its ledger id {ledger_id} is below {last}, which the topic has reached", "use another id")
    _skip_ids(connection, ledger_id)


def _skip_ids(connection: Connection, highest: int) -> None:
    """Allocate no id up to that one any more."""
    connection.execute(
        update(sequences)
        .where(sequences.c.name == LEDGER_SEQUENCE, sequences.c.next_value <= highest)
        .values(next_value=highest + 1)
    )


def _append(connection: Connection, lease: Lease, new: Sequence[LedgerRecord], now: int) -> None:
    topic = leases.lock_topic(connection, lease)
    opened = select(segments).where(segments.c.topic_id == topic.id, segments.c.state == SegmentState.OPEN.value)
    open_segment = queries.find(connection, opened, row_mapping.segment)
    check_append(topic, last_id(connection, topic.id), open_segment, new)
    attempt_ids = {ledger.attempt_id for ledger in new}
    attempts.check_open(connection, attempt_ids)
    connection.execute(insert(ledgers), [row_mapping.ledger_values(topic.id, ledger) for ledger in new])
    queries.change(connection, topics_table, topic.id, next_offset=new[-1].last_offset + 1)
    attempts.finish(connection, attempt_ids, now)


def last_id(connection: Connection, topic_id: int) -> int | None:
    """The highest id of the topic's ledgers, also trimmed ones, and segments; None: it has none."""
    found = [
        connection.execute(select(func.max(table.c.ledger_id)).where(table.c.topic_id == topic_id)).scalar_one()
        for table in (ledgers, segments)
    ]
    return max((item for item in found if item is not None), default=None)


def of_topic(connection: Connection, topic_id: int) -> tuple[LedgerRecord, ...]:
    """Those that are not trimmed, in the order of offsets."""
    return tuple(ledger for ledger in with_trimmed(connection, topic_id) if ledger.deleted_at is None)


def with_trimmed(connection: Connection, topic_id: int) -> tuple[LedgerRecord, ...]:
    """Also those that are trimmed and not purged, in the order of offsets."""
    return tuple(queries.fetch(connection, _OF_TOPIC, row_mapping.ledger, {"topic": topic_id}))
