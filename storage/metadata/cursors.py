"""Cursors, and the guard around `__compaction`.

Invariants: the mark-delete position of `__compaction` and its property `CompactedTopicLedger` are written by
`publishing` alone. Here they are never moved, changed or lost (A2, A4): other properties are merged beside them.
Deleting the cursor takes the compacted ledger out of service and raises the epoch, so a run that is still at work
cannot publish into the next incarnation (S8). The ranges of a cursor go with it, and also at a reset
(cursor_ranges.py).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, bindparam, delete, insert, select

from storage.errors import (
    CompactionCursorProtected,
    CompactorError,
    Conflict,
    CursorExists,
    CursorNotFound,
    Fenced,
    InvalidInput,
    NotFound,
)
from storage.metadata import cursor_ranges, ledgers, queries, row_mapping, topic_work, topics
from storage.metadata.cursor_ranges import CursorState, CursorUpdate, MergeResult, RangesSummary
from storage.metadata.records import (
    COMPACTED_LEDGER_PROPERTY,
    COMPACTION_CURSOR,
    READ_COMPACTED_PROPERTY,
    CompactedLedgerRecord,
    CursorRecord,
    TopicRecord,
)
from storage.metadata.tables import compacted_ledgers, cursors, topics as topics_table
from storage.metadata.transactions import Context
from storage.model import LogPosition

MAX_NAME_BYTES = 255
MAX_PROPERTIES_BYTES = 4 << 10
"""Keys and values of a cursor's properties, in UTF-8, all together: statistics of a topic have those of all cursors."""
_OF_TOPIC = select(cursors).where(cursors.c.topic_id == bindparam("topic"))
_FIND = _OF_TOPIC.where(cursors.c.name == bindparam("name"))
_SERVING = select(compacted_ledgers).where(
    compacted_ledgers.c.topic_id == bindparam("topic"), compacted_ledgers.c.retired_at.is_(None)
)


def create(
    connection: Connection,
    topic_id: int,
    name: str,
    mark_delete: LogPosition | None,
    properties: Mapping[str, str],
) -> CursorRecord:
    """Insert a new cursor, with its position and properties from the first moment.

    `mark_delete` None: nothing acknowledged. Raises CursorExists, TopicNotFound; InvalidInput for `__compaction`, an
    invalid name and properties that are too large.
    """
    topic = topics.lock(connection, topic_id)
    if name == COMPACTION_CURSOR:
        raise InvalidInput(
            f"the cursor {COMPACTION_CURSOR} of {topic.name} is made by compactions: it is their horizon",
            "compact the topic",
        )
    fault = _name_fault(name)
    if fault:
        raise InvalidInput(f"the cursor name {name[:64]!r} {fault}", "choose another one")
    _check_properties_size(name, properties)
    if find(connection, topic_id, name) is not None:
        raise CursorExists(topic.name, name)
    return _insert(connection, topic_id, CursorRecord(name, mark_delete, properties))


def _name_fault(name: str) -> str:
    """Return the reason why a new cursor cannot have a name, as a predicate; empty: it can."""
    if not name:
        return "is empty"
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        return "holds a control character"
    return f"is longer than {MAX_NAME_BYTES} bytes" if len(name.encode()) > MAX_NAME_BYTES else ""


def ensure(connection: Connection, topic_id: int, name: str) -> CursorRecord:
    """Return the cursor of that name, inserted with nothing acknowledged if it does not exist. Raises TopicNotFound."""
    topics.lock(connection, topic_id)
    existing = find(connection, topic_id, name)
    if existing is not None:
        return existing
    return _insert(connection, topic_id, CursorRecord(name, None, {}))


def ensure_all(connection: Connection, topic_ids: Collection[int], name: str) -> None:
    """Insert the cursor of that name, with nothing acknowledged, in those of the topics that do not have it."""
    locked = [topic.id for topic in topics.lock_all(connection, topic_ids)]
    of_name = select(cursors.c.topic_id).where(cursors.c.name == name)
    existing = {
        topic_id
        for batch in queries.batches(locked)
        for topic_id in connection.execute(of_name.where(cursors.c.topic_id.in_(batch))).scalars()
    }
    rows = [_row(topic_id, CursorRecord(name, None, {})) for topic_id in locked if topic_id not in existing]
    if rows:
        connection.execute(insert(cursors), rows)


def get(connection: Connection, topic_id: int, name: str) -> CursorRecord:
    """Return a cursor. Raises NotFound, TopicNotFound."""
    return _get(connection, topics.by_id(connection, topic_id), name)


def find(connection: Connection, topic_id: int, name: str) -> CursorRecord | None:
    """Return a cursor; None: the topic has none of that name, or does not exist."""
    return queries.find(connection, _FIND, row_mapping.cursor, {"topic": topic_id, "name": name})


def of_topic(connection: Connection, topic_id: int) -> list[CursorRecord]:
    """Return the topic's cursors by name, in the order of code points."""
    records = queries.fetch(connection, _OF_TOPIC, row_mapping.cursor, {"topic": topic_id})
    return sorted(records, key=lambda cursor: cursor.name)


def reset(connection: Connection, topic_id: int, name: str, position: LogPosition | None) -> CursorRecord:
    """Set the position of a cursor, in a new incarnation, which fences its owners. Returns the cursor.

    `position`: the last acknowledged message; None: none. Nothing after it is acknowledged then. Raises
    CompactionCursorProtected (A4), NotFound.
    """
    topic = topics.lock(connection, topic_id)
    if name == COMPACTION_CURSOR:
        raise CompactionCursorProtected(topic.name)
    cursor = _get(connection, topic, name)
    values = row_mapping.position_values("mark_delete", position)
    _update(connection, topic_id, name, **values, life=cursor_ranges.new_incarnation())
    cursor_ranges.delete_ranges(connection, topic_id, name)
    return CursorRecord(name, position, cursor.properties)


def set_properties(connection: Connection, topic_id: int, name: str, updates: Mapping[str, str]) -> CursorRecord:
    """Merge `updates` into a cursor's properties; return the cursor afterwards.

    Raises InvalidInput for a change of `CompactedTopicLedger` (A2) and for properties that are too large, NotFound.
    """
    topic = topics.lock(connection, topic_id)
    cursor = _get(connection, topic, name)
    merged = {**cursor.properties, **updates}
    if not updates.keys() <= {COMPACTED_LEDGER_PROPERTY, READ_COMPACTED_PROPERTY}:
        _check_properties_size(name, merged)
    pointer = cursor.properties.get(COMPACTED_LEDGER_PROPERTY)
    if name == COMPACTION_CURSOR:
        _check_compacted_ledger_unchanged(topic, pointer, merged.get(COMPACTED_LEDGER_PROPERTY))
    _update(connection, topic_id, name, properties=merged)
    return CursorRecord(name, cursor.mark_delete, merged)


def replace_properties(connection: Connection, topic_id: int, name: str, properties: Mapping[str, str]) -> CursorRecord:
    """Replace all properties of a cursor but `CompactedTopicLedger` (A2); return the cursor.

    Raises NotFound; InvalidInput for a change of `CompactedTopicLedger`, and for properties that are too large.
    """
    topic = topics.lock(connection, topic_id)
    cursor = _get(connection, topic, name)
    pointer = cursor.properties.get(COMPACTED_LEDGER_PROPERTY)
    if name == COMPACTION_CURSOR:
        _check_compacted_ledger_unchanged(topic, pointer, properties.get(COMPACTED_LEDGER_PROPERTY, pointer))
        properties = dict(properties) if pointer is None else {**properties, COMPACTED_LEDGER_PROPERTY: pointer}
    _check_properties_size(name, properties)
    _update(connection, topic_id, name, properties=dict(properties))
    return CursorRecord(name, cursor.mark_delete, properties)


def delete_cursor(connection: Connection, context: Context, topic_id: int, name: str, force: bool = False) -> None:
    """Delete a cursor. With `__compaction` the compacted ledger is taken out of service, and the topic's run is fenced.

    Raises NotFound; Conflict, unless `force`, if raw no longer has messages that only the compacted ledger keeps (R8).
    """
    if not force:
        _check_removal(connection, topic_id, name)
    remove(connection, topic_id, name, context.now)


def slowest_compacted_reader_offset(connection: Connection, topic_id: int) -> int | None:
    """Return the offset that the slowest cursor of a compacted reader has acknowledged (T1); None: there is none.

    -1: that cursor has acknowledged nothing. Such a cursor has the property `readCompacted` = "true"; `__compaction`,
    the compactor's own, does not count.
    """
    readers = [
        cursor
        for cursor in of_topic(connection, topic_id)
        if cursor.name != COMPACTION_CURSOR and cursor.properties.get(READ_COMPACTED_PROPERTY) == "true"
    ]
    return min((cursor.mark_delete_offset for cursor in readers), default=None)


# Acknowledgements (cursor_ranges.py)


def load(connection: Connection, topic_id: int, name: str, max_bytes: int) -> CursorState:
    """Return a cursor with at most `max_bytes` of bitmaps, those of the lowest ranges.

    Raises NotFound, CompactionCursorProtected, ObjectDamaged.
    """
    return cursor_ranges.load(connection, topics.by_id(connection, topic_id), name, max_bytes)


def merge(connection: Connection, updates: Sequence[CursorUpdate]) -> list[MergeResult | CompactorError]:
    """Merge owners' acknowledgements into the stored ones: mark-delete never goes back, nothing is lost.

    Returns a result for each update, in order: a MergeResult, or the error of that update, which leaves the others as
    they are: NotFound; Fenced if the cursor is not in the incarnation that the owner opened. Raises
    CompactionCursorProtected for `__compaction`, ObjectDamaged; then nothing is written.
    """
    results: dict[int, MergeResult | CompactorError] = {}
    # In one order, so that two services that write the same cursors never wait for each other.
    for number in sorted(range(len(updates)), key=lambda item: (updates[item].topic_id, updates[item].name)):
        change = updates[number]
        try:
            topic = topics.lock_against_deletion(connection, change.topic_id)
            results[number] = cursor_ranges.merge(connection, topic, change)
        except (NotFound, Fenced) as error:
            results[number] = error
    return [results[number] for number in range(len(updates))]


def summaries(connection: Connection, topic_id: int) -> list[tuple[CursorRecord, RangesSummary]]:
    """Return all cursors of the topic, by name, with the totals of their acknowledgements above mark-delete."""
    topic = topics.by_id(connection, topic_id)
    records = of_topic(connection, topic_id)
    totals = cursor_ranges.summaries(connection, topic, records)
    return [(record, totals[record.name]) for record in records]


def summary(connection: Connection, topic_id: int, name: str) -> tuple[CursorRecord, RangesSummary]:
    """Return a cursor with the totals of its acknowledgements above mark-delete. Raises NotFound."""
    topic = topics.by_id(connection, topic_id)
    record = _get(connection, topic, name)
    return record, cursor_ranges.summaries(connection, topic, [record])[name]


# Parts of other transactions


def remove(connection: Connection, topic_id: int, name: str, now: int) -> None:
    """Delete a cursor. With `__compaction` the compacted ledger is taken out of service, and the topic's run is fenced.

    Raises NotFound, TopicNotFound.
    """
    topic = topics.lock(connection, topic_id)
    _get(connection, topic, name)
    connection.execute(delete(cursors).where(cursors.c.topic_id == topic_id, cursors.c.name == name))
    cursor_ranges.delete_ranges(connection, topic_id, name)
    if name == COMPACTION_CURSOR:
        queries.change(connection, topics_table, topic_id, epoch=topics_table.c.epoch + 1)
        retire_compacted_ledger(connection, topic_id, now)
        topic_work.mark(connection, topic_work.WorkKind.COMPACT, [topic_id])


def serving_compacted_ledger(connection: Connection, topic_id: int) -> CompactedLedgerRecord | None:
    """Return the compacted ledger that compacted reads use now; None: never compacted, or cleared."""
    return queries.find(connection, _SERVING, row_mapping.compacted_ledger, {"topic": topic_id})


def retire_compacted_ledger(connection: Connection, topic_id: int, now: int) -> None:
    """Take the compacted ledger that serves, if any, out of service; its objects stay for a grace time (A3)."""
    serving = (compacted_ledgers.c.topic_id == topic_id) & compacted_ledgers.c.retired_at.is_(None)
    if queries.change_where(connection, compacted_ledgers, serving, retired_at=now):
        topic_work.mark(connection, topic_work.WorkKind.COLLECT, [topic_id])


def move_horizon(connection: Connection, topic_id: int, horizon: LogPosition, compacted_ledger_id: int) -> None:
    """Set the mark-delete position of `__compaction` and its property with the compacted ledger's id (A1, A2).

    All other properties stay.
    """
    cursor = ensure(connection, topic_id, COMPACTION_CURSOR)
    _update(
        connection,
        topic_id,
        COMPACTION_CURSOR,
        **row_mapping.position_values("mark_delete", horizon),
        properties={**cursor.properties, COMPACTED_LEDGER_PROPERTY: str(compacted_ledger_id)},
    )


def _get(connection: Connection, topic: TopicRecord, name: str) -> CursorRecord:
    cursor = find(connection, topic.id, name)
    if cursor is None:
        raise CursorNotFound(topic.name, name)
    return cursor


def _check_properties_size(name: str, properties: Mapping[str, str]) -> None:
    size = sum(len(text.encode(errors="surrogatepass")) for pair in properties.items() for text in pair)
    if size > MAX_PROPERTIES_BYTES:
        raise InvalidInput(
            f"the properties of the cursor {name} have {size} bytes, and at most {MAX_PROPERTIES_BYTES} are allowed",
            "keep what is large elsewhere, and name its place in a property",
        )


def _check_removal(connection: Connection, topic_id: int, name: str) -> None:
    """Raise Conflict if deleting the cursor would lose data that the next run cannot find in raw (R8).

    A compacted ledger without messages holds data, too: which keys were deleted or have expired, which counts against
    late values in event-time order (P9), and up to where a reader may have missed deletions (R7).
    """
    if name != COMPACTION_CURSOR:
        return
    topic = topics.lock(connection, topic_id)
    compacted = serving_compacted_ledger(connection, topic_id)
    # Segments need no check: what is not sealed is above the horizon.
    first_raw = min(
        (ledger.first_offset for ledger in ledgers.of_topic(connection, topic_id)), default=topic.next_offset
    )
    first_raw = max(first_raw, topic.start_offset)  # it may be within a ledger
    if compacted is None or first_raw == 0:
        return
    last = min(first_raw - 1, compacted.horizon.offset)
    raise Conflict(
        f"raw messages of {topic.name} are gone up to offset {last}: what is left of offsets 0 to {last} is only in "
        f"compacted ledger {compacted.ledger_id} ({compacted.messages} messages up to offset "
        f"{compacted.horizon.offset}), with what it remembers of deleted keys; it goes with the cursor "
        f"{COMPACTION_CURSOR}",
        "keep the cursor, or force it to give this up forever",
    )


def _check_compacted_ledger_unchanged(topic: TopicRecord, pointer: str | None, requested: str | None) -> None:
    if requested != pointer:
        raise InvalidInput(
            f"the property {COMPACTED_LEDGER_PROPERTY} of {topic.name} cannot be set by hand: it names the compacted "
            "ledger that serves",
            "leave it out; a compaction sets it",
        )


def _update(connection: Connection, topic_id: int, name: str, **values: object) -> None:
    queries.change_where(connection, cursors, (cursors.c.topic_id == topic_id) & (cursors.c.name == name), **values)


def _insert(connection: Connection, topic_id: int, new: CursorRecord) -> CursorRecord:
    connection.execute(insert(cursors), _row(topic_id, new))
    return new


def _row(topic_id: int, new: CursorRecord) -> dict[str, object]:
    position = row_mapping.position_values("mark_delete", new.mark_delete)
    values = {"properties": dict(new.properties), "life": cursor_ranges.new_incarnation()}
    return {"topic_id": topic_id, "name": new.name, **position, **values}
