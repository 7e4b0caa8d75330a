"""Positions in a topic as doors name them, and the mark-delete position of a cursor at a position.

A door parses its own texts and bodies into a position. A read begins at a start position (storage/positions.py):
earliest, latest, a message id, an offset, or a publish time. The position of a cursor is the first message that it
delivers: a start position, or the message after an id (`After`). Its mark-delete position is the message before that.
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import InvalidInput, OffsetOutOfRange
from storage.ledger.seek import seek_position_of
from storage.model import EARLIEST, LogPosition, MessageId
from storage.positions import StartOffset, StartPosition, StartTime
from storage.topic import Topic


@dataclass(frozen=True)
class After:
    """The position after a message id: the first message with a larger id."""

    message_id: MessageId


CursorPosition = StartPosition | After


def mark_delete_before(topic: Topic, position: CursorPosition) -> LogPosition | None:
    """Return the mark-delete position of a cursor that delivers the first message at or after `position`.

    That is the message before. If it does not exist any more, its id is the largest one before the id of the first
    message. None: no message is before `position`, or the message of `position` is trimmed. Raise InvalidInput for an
    offset after the end, SegmentNotLocal.
    """
    if isinstance(position, After):
        first = topic.first_at(position.message_id)
        if first is not None and first.message_id == position.message_id:
            return first
        position = position.message_id
    reader = topic.snapshot_reader()
    if isinstance(position, StartTime):
        last = reader.last_position()  # before the search: messages that are appended meanwhile are not older
        first = topic.first_at(position)
        if first is None:
            return last or reader.snapshot.horizon
        position, reader = StartOffset(first.offset), topic.snapshot_reader()
    if isinstance(position, StartOffset) and reader.is_start_after_end(position):
        raise InvalidInput(
            f"the offset {position.offset} of {topic.name} is after its end, which is {reader.end}", "use latest"
        )
    if position == EARLIEST or reader.is_before_first(seek_position_of(position)):
        return None
    first = topic.first_at(position)
    if first is None:
        # Where all raw messages are trimmed, the horizon is the last one of them.
        return reader.last_position() or reader.snapshot.horizon
    if first.offset == 0:
        return None
    before = topic.first_raw_at_or_after(first.offset - 1)
    if before is not None and before.offset == first.offset - 1:
        return before
    return LogPosition(first.offset - 1, _right_before(first.message_id))


def _right_before(message_id: MessageId) -> MessageId:
    """Return the largest message id before another one. Before the first entry of a ledger the entry id is -1."""
    if message_id.batch_index > 0:
        return MessageId(message_id.ledger_id, message_id.entry_id, message_id.partition, message_id.batch_index - 1)
    return MessageId(message_id.ledger_id, message_id.entry_id - 1, message_id.partition)


def check_not_after_end(topic: Topic, start: StartPosition) -> None:
    """Raise OffsetOutOfRange for a start position after the end of a topic: a reader would miss messages before it.

    The end itself is allowed: a reader waits there for messages. A publish time is never after the end. Raise
    SegmentNotLocal if the end is in another log directory.
    """
    if is_after_end(topic, start):
        start_text = f"the offset {start.offset}" if isinstance(start, StartOffset) else f"the message {start}"
        raise OffsetOutOfRange(
            f"{start_text} is after the end of {topic.name}, which is at offset {topic.snapshot_reader().end}",
            "read from an offset up to that one, from earliest or from latest",
        )


def is_after_end(topic: Topic, start: StartPosition) -> bool:
    """Return whether a start position is after the end of a topic, the position of the next message.

    Raise SegmentNotLocal.
    """
    return topic.read_snapshot(lambda reader: reader.is_start_after_end(start))
