"""Fields of forms as a person enters them: offsets with the commas that pages show, and times. Pure."""

from __future__ import annotations

import re
from typing import Any

from api.formats.position_text import parse_cursor_position, parse_start
from storage.errors import InvalidInput, InvalidMessageId
from storage.model import MessageId
from storage.positions import StartOffset, StartPosition

_GROUPED = re.compile(r"[0-9]{1,3}(,[0-9]{3})+")
_TIMES = "give milliseconds since 1970, or a time like 2026-11-21T12:00:00Z"
_MESSAGES = "give its id as ledger:entry:partition, or its offset"


def without_commas(value: Any) -> Any:
    """Return a number without the commas between its thousands; any other value as it is, without blanks around it."""
    text = value.strip() if isinstance(value, str) else value
    return text.replace(",", "") if isinstance(text, str) and _GROUPED.fullmatch(text) else text


def parse_time(text: str) -> StartPosition:
    """Parse a time to a start position: the first message that was published at that time or later. Raise
    InvalidInput."""
    if not text.strip():
        raise InvalidInput("the field Time is empty", _TIMES)
    try:
        return parse_start("@" + text.strip())
    except InvalidInput as error:
        raise InvalidInput(error.message, _TIMES) from error


def parse_message(text: str) -> MessageId | StartOffset:
    """Parse the id or the offset of a message to its position. Raise InvalidMessageId."""
    if not text.strip():
        raise InvalidMessageId("the field Message is empty", _MESSAGES)
    try:
        return parse_cursor_position(without_commas(text))
    except InvalidMessageId as error:
        raise InvalidMessageId(error.message, _MESSAGES) from error
