"""Positions in a topic as text, and cursors as plain values: the words of CLI and REST.

A read begins at a start; a cursor is moved to the first message that it shall deliver, and what is kept is the message
before that, as mark-delete.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from storage.errors import InvalidInput, InvalidMessageId, ObjectMissing, OffsetOutOfRange, SegmentNotLocal
from storage.model import EARLIEST, LATEST, LogPosition, MessageId

if TYPE_CHECKING:
    from storage.metadata.cursor_ranges import RangesSummary
    from storage.metadata.records import CursorRecord
    from storage.positions import StartPosition
    from storage.reading.snapshot_reader import SnapshotReader
    from storage.topic import Topic

PLACES = "earliest|latest|MESSAGE_ID|OFFSET"
_NAMED = {"earliest": EARLIEST, "latest": LATEST}
STARTS = "earliest, latest, an offset, @ and a time, or a message id as ledger:entry"


def parse_start(text: str) -> StartPosition:
    """`earliest`, `latest`, an offset, `@` and a publish time, or a message id. Raises InvalidMessageId."""
    from storage.positions import StartOffset, StartTime

    if text.isascii() and text.isdigit() and len(text) < 19:
        return StartOffset(int(text))
    if text.startswith("@"):
        return StartTime(parse_time(text[1:]))
    named = _NAMED.get(text)
    if named is None and ":" not in text:
        raise InvalidMessageId(f"{text!r} is not a start of a read", f"use {STARTS}")
    return named or MessageId.parse(text)


def parse_time(text: str) -> int:
    """Milliseconds since the Unix epoch, from a number of them or an ISO 8601 time (UTC if it says nothing else)."""
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is not a time", "give milliseconds since 1970, or an ISO time: @2026-11-21T12:00:00Z"
        ) from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_place(text: str) -> MessageId | int:
    """`earliest`, `latest`, a message id, or an offset. Raises InvalidMessageId."""
    if re.fullmatch(r"[0-9]{1,18}", text):
        return int(text)
    named = _NAMED.get(text)
    if named is not None:
        return named
    if ":" not in text:
        raise InvalidMessageId(f"{text!r} is no place in a topic", f"use {PLACES}")
    return MessageId.parse(text)


def mark_delete_before(topic: Topic, place: MessageId | int) -> LogPosition | None:
    """The message before the first one at or after `place`; None: nothing is before that, or `place` itself is gone.

    Where that message is gone, or a slot without a message, its id is the one right before the next message's. Raises
    InvalidInput for an offset behind the end.
    """
    from storage.ledger.seek import seek_position_of
    from storage.positions import StartOffset
    from storage.reading.raw_reader import is_below

    reader = topic.snapshot_reader()
    start = StartOffset(place) if isinstance(place, int) else place
    if isinstance(place, int) and not _is_known(reader, start) and place > end_of(reader):
        raise InvalidInput(
            f"the offset {place} of {topic.name} is behind its end, which is {end_of(reader)}", "use latest"
        )
    if place == EARLIEST or is_below(seek_position_of(start), reader):
        return None
    found = first_at(topic, start)
    if found is None:
        # Where no raw message is left, the horizon is the last one that there was.
        return reader.last_position() or topic.snapshot().horizon
    if found.offset == 0:
        return None
    before = topic.locate(found.offset - 1)
    if before is not None and before.offset == found.offset - 1:
        return before
    return LogPosition(found.offset - 1, _right_before(found.message_id))


def check_begins(topic: Topic, start: StartPosition) -> None:
    """Raises OffsetOutOfRange for a start behind the end: a reader that waits there misses all that comes before it.

    Right at the end is where one waits; a time is never behind it.
    """
    if is_behind_end(topic, start):
        what = f"the offset {start.offset}" if hasattr(start, "offset") else f"the message {start}"
        raise OffsetOutOfRange(
            f"{what} is behind the end of {topic.name}, which is at offset {end_of(topic.snapshot_reader())}",
            "read from a place that is there, from earliest or from latest",
        )


def is_behind_end(topic: Topic, start: StartPosition) -> bool:
    """Whether a start is behind where the next message comes."""
    from storage.positions import StartOffset, StartTime

    if isinstance(start, StartTime):
        return False
    while True:
        reader = topic.snapshot_reader()
        if _is_known(reader, start):
            return False
        try:
            return start.offset > reader.end if isinstance(start, StartOffset) else _is_unknown_id(reader, start)
        except ObjectMissing:  # it was sealed, or trimmed, between the check and the read
            if topic.snapshot().extents == reader.extents:
                raise


def _is_known(reader: SnapshotReader, start: StartPosition) -> bool:
    """Whether a start is before the end of what is sealed or rolled: rows tell that, and no segment is read."""
    from storage.reading.snapshot_reader import last_of, may_come_to

    return any(last_of(extent) is not None and may_come_to(start, extent) for extent in reader.extents)


def _is_unknown_id(reader: SnapshotReader, asked: MessageId) -> bool:
    """Whether an id is larger than that of the next message can be."""
    if asked in (EARLIEST, LATEST):
        return False
    last, compacted = reader.last_position(), reader.snapshot.compacted
    known = [last.message_id] if last else []
    known += [compacted.horizon.message_id] if compacted else []
    if known and asked.ledger_id <= max(known).ledger_id:
        return asked.ledger_id == max(known).ledger_id and asked.entry_id > max(known).entry_id + 1
    if asked.ledger_id in {extent.ledger_id for extent in reader.extents}:  # of a segment that is empty yet
        return asked.entry_id > 0
    newest = max((extent.ledger_id for extent in reader.extents), default=None)
    if known or newest is not None:
        return newest is None or asked.ledger_id > newest
    return reader.end == 0  # of what was truncated no id is known any more


def first_at(topic: Topic, start: StartPosition, read_compacted: bool = False) -> LogPosition | None:
    """The first message, or chunk of one, from a start on; None: there is none."""
    from storage.ledger.rows import message_id

    for batch in topic.read(start, read_compacted, max_messages=1):
        return LogPosition(batch.column("offset")[0].as_py(), message_id(batch, 0, topic.name.partition))
    return None


def end_of(reader: SnapshotReader) -> int:
    """The offset that the next message gets."""
    last = reader.last_position()
    return last.offset + 1 if last is not None else reader.first_offset


def described(reader: SnapshotReader, record: CursorRecord, summary: RangesSummary) -> dict[str, Any]:
    """A cursor as plain values. `backlog`: messages that are left and not acknowledged; None: the end is not known,
    since messages that are not sealed yet are in a log directory that is not here."""
    mark = record.mark_delete
    behind = max(mark.offset + 1 if mark else 0, reader.first_offset)
    try:
        backlog = max(end_of(reader) - behind - summary.messages, 0)
    except SegmentNotLocal:
        backlog = None
    return {
        "cursor": record.name,
        "mark_delete": str(mark.message_id) if mark else None,
        "mark_delete_offset": mark.offset if mark else None,
        "backlog": backlog,
        "ranges": summary.ranges,
        "acknowledged_above": summary.messages,
        "stored_bytes": summary.stored_bytes,
        "properties": dict(record.properties),
    }


def _right_before(message_id: MessageId) -> MessageId:
    """An id that is before this one and behind all others that do (Pulsar's position before a first entry: -1)."""
    if message_id.batch_index > 0:
        return MessageId(message_id.ledger_id, message_id.entry_id, message_id.partition, message_id.batch_index - 1)
    return MessageId(message_id.ledger_id, message_id.entry_id - 1, message_id.partition)


def parse_trim_place(text: str) -> int | MessageId:
    """An offset, or a message id. Raises InvalidMessageId."""
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        return int(text)
    try:
        return MessageId.parse(text)
    except InvalidMessageId as error:
        raise InvalidMessageId(f"{text!r} is neither an offset nor a message id", error.remedy) from error
