"""Texts of positions in a topic, as the command lines and REST accept them.

The doors parse them here, and pass typed positions to operations (storage/positions.py, api/broker/positions.py).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from storage.errors import InvalidInput, InvalidMessageId
from storage.model import EARLIEST, LATEST, MessageId, SourcePosition
from storage.positions import StartOffset, StartPosition, StartTime

PLACES = "earliest|latest|MESSAGE_ID|OFFSET"
"""The positions of a cursor, as the metavar of an option."""
_STARTS = "earliest, latest, an offset, @ and a time, or a message id as ledger:entry"
_NAMED = {"earliest": EARLIEST, "latest": LATEST}


def parse_start(text: str) -> StartPosition:
    """Return the start of a read: `earliest`, `latest`, an offset, `@` and a publish time, or a message id.

    The time is milliseconds since 1970 or ISO 8601, UTC without a zone. Raise InvalidMessageId, or InvalidInput for a
    time.
    """
    if text.startswith("@"):
        return StartTime(_parse_time(text[1:]))
    return _parse_message_or_offset(text, "is not a start of a read", _STARTS)


def parse_cursor_position(text: str) -> MessageId | StartOffset:
    """Return the position of a cursor: `earliest`, `latest`, a message id, or an offset. Raise InvalidMessageId."""
    return _parse_message_or_offset(text, "is no place in a topic", PLACES)


def _parse_message_or_offset(text: str, problem: str, choices: str) -> MessageId | StartOffset:
    if re.fullmatch(r"[0-9]{1,18}", text):
        return StartOffset(int(text))
    named = _NAMED.get(text)
    if named is None and ":" not in text:
        raise InvalidMessageId(f"{text!r} {problem}", f"use {choices}")
    return named or MessageId.parse(text)


def parse_trim_position(text: str) -> int | MessageId:
    """Return the position before which to trim: an offset, or a message id. Raise InvalidMessageId."""
    if re.fullmatch(r"[0-9]{1,19}", text, re.ASCII):
        return int(text)
    try:
        return MessageId.parse(text)
    except InvalidMessageId as error:
        raise InvalidMessageId(f"{text!r} is neither an offset nor a message id", error.remedy) from error


def parse_source_position(text: str) -> SourcePosition:
    """Return a position of a source cluster, `ledger:entry`; entry -1: before the ledger. Raise InvalidMessageId."""
    match = re.fullmatch(r"([0-9]{1,18}):(-1|[0-9]{1,18})", text, re.ASCII)
    if match is None:
        raise InvalidMessageId(f"{text[:100]!r} is no position of a source", "use ledger:entry")
    return SourcePosition(int(match[1]), int(match[2]))


def _parse_time(text: str) -> int:
    """Return milliseconds since the Unix epoch, from a number of them or an ISO 8601 time (UTC without a zone).

    An `@` before it, as the error shows, may come from a field for a time alone, and is left out.
    """
    text = text.removeprefix("@")
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{text!r} is not a time", "give milliseconds since 1970, or an ISO time: @2026-11-21T12:00:00Z"
        ) from error
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
