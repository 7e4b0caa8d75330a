"""Raw ledgers: their ids, and appending them to a topic all at once.

Invariants: a ledger id is allocated once, over all topics, raw and compacted ledgers together; the ledgers of one
append become visible together or never; invariants.check_append has the rules of their order. A ledger that was
trimmed is not listed; its row stays for a while (trimming.py). Ledgers of sealed segments are inserted by sealing.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, bindparam, func, insert, select, update

from storage.errors import Conflict
from storage.failpoints import Failpoint, failpoint
from storage.metadata import attempts, leases, queries, row_mapping, topic_work, topics
from storage.metadata.invariants import check_append
from storage.metadata.records import Lease, SegmentState
from storage.metadata.tables import compacted_ledgers, ledgers, segments, sequences, topics as topics_table
from storage.metadata.transactions import Context
from storage.model import LedgerRecord

LEDGER_SEQUENCE = "ledger"
"""The row of `sequences`; the first migration makes it."""
MOST_CLAIMED_ID = 1 << 48
"""Higher ids are not claimed: they would leave few to allocate."""
_OF_TOPIC = select(ledgers).where(ledgers.c.topic_id == bindparam("topic")).order_by(ledgers.c.first_offset)
_LAST_IDS = select(
    *(
        select(func.max(table.c.ledger_id)).where(table.c.topic_id == bindparam("topic")).scalar_subquery()
        for table in (ledgers, segments)
    )
)
_ALLOCATE = (
    update(sequences)
    .where(sequences.c.name == LEDGER_SEQUENCE)
    .values(next_value=sequences.c.next_value + bindparam("count"))
    .returning(sequences.c.next_value)
)


def allocate_ids(connection: Connection, count: int) -> int:
    """Return the first of `count` (1 or more) consecutive ledger ids. An id is allocated once; an unused id is lost."""
    if count < 1:
        raise ValueError(f"{count} ledger ids cannot be allocated")
    return int(connection.execute(_ALLOCATE, {"count": count}).scalar_one()) - count


def skip_ids(connection: Connection, highest: int) -> None:
    """Raise the next ledger id above `highest`: files whose rows were lost have ids up to it."""
    lower = (sequences.c.name == LEDGER_SEQUENCE) & (sequences.c.next_value <= highest)
    queries.change_where(connection, sequences, lower, next_value=highest + 1)


def claim_id(connection: Connection, ledger_id: int) -> bool:
    """Allocate the ledger id `ledger_id` if it and all ids above it are free; return whether it was allocated.

    Lower ids that were not allocated are lost.
    """
    if not 0 <= ledger_id < MOST_CLAIMED_ID:
        return False
    free = (sequences.c.name == LEDGER_SEQUENCE) & (sequences.c.next_value <= ledger_id)
    return queries.change_where(connection, sequences, free, next_value=ledger_id + 1) == 1


def append(connection: Connection, context: Context, lease: Lease, new: Sequence[LedgerRecord]) -> None:
    """Append sealed ledgers to the topic, all at once, and finish their attempts. `new`: in the order of offsets.

    Raises Fenced if the lease was taken by another owner (an expiry alone does no harm), the topic has moved on, or an
    attempt was finished as dead.
    """
    topic = leases.lock_topic(connection, lease)
    opened = select(segments).where(segments.c.topic_id == topic.id, segments.c.state == SegmentState.OPEN.value)
    open_segment = queries.find(connection, opened, row_mapping.segment)
    check_append(topic, last_id(connection, topic.id), open_segment, new)
    attempt_ids = {ledger.attempt_id for ledger in new}
    attempts.lock_and_check_unfinished(connection, attempt_ids)
    connection.execute(insert(ledgers), [row_mapping.ledger_values(topic.id, ledger) for ledger in new])
    queries.change(connection, topics_table, topic.id, next_offset=new[-1].last_offset + 1)
    attempts.finish_all(connection, attempt_ids, context.now)
    topic_work.mark(connection, topic_work.WorkKind.COMPACT, [topic.id])
    failpoint(Failpoint.IMPORT_INSIDE_COMMIT)


def has_appended(connection: Connection, _: None, lease: Lease, new: Sequence[LedgerRecord]) -> bool:
    """Return whether an `append` of these ledgers was committed."""
    topics.lock(connection, lease.topic_id)
    last = (ledgers.c.topic_id == lease.topic_id) & (ledgers.c.ledger_id == new[-1].ledger_id)
    return queries.exists(connection, ledgers, last)


def of_topic(connection: Connection, topic_id: int) -> tuple[LedgerRecord, ...]:
    """Return the topic's ledgers that are not trimmed, in the order of offsets."""
    return tuple(ledger for ledger in with_trimmed(connection, topic_id) if ledger.deleted_at is None)


def with_trimmed(connection: Connection, topic_id: int) -> tuple[LedgerRecord, ...]:
    """Return the topic's ledgers, also those that are trimmed and not purged, in the order of offsets."""
    return tuple(queries.fetch(connection, _OF_TOPIC, row_mapping.ledger, {"topic": topic_id}))


def last_id(connection: Connection, topic_id: int) -> int | None:
    """Return the highest id of the topic's ledgers, also trimmed ones, and segments; None: it has none."""
    highest = connection.execute(_LAST_IDS, {"topic": topic_id}).one()
    return max((ledger_id for ledger_id in highest if ledger_id is not None), default=None)


def reserve_id(connection: Connection, topic_id: int, ledger_id: int) -> None:
    """Reserve a ledger id that was allocated before the database was restored, so that it is not allocated again.

    Raises Conflict if another ledger has it, or the topic has an id that is not lower.
    """
    for table in (ledgers, segments, compacted_ledgers):
        if queries.exists(connection, table, table.c.ledger_id == ledger_id):
            raise Conflict(f"its ledger id {ledger_id} was given to another ledger", "use another id")
    last = last_id(connection, topic_id)
    if last is not None and last >= ledger_id:
        raise Conflict(f"its ledger id {ledger_id} is below {last}, which the topic has reached", "use another id")
    skip_ids(connection, ledger_id)
