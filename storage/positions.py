"""Positions as values: the start of a read, and the state at which it continues.

A read begins at a start position: `EARLIEST`, `LATEST` or another message id, an offset (`StartOffset`), or a publish
time (`StartTime`): at that message, or at the next one that still exists. If the position is before the topic's first
message, a raw read does as `OffsetReset` says (L3).

A continuation token is the start of the next page. Of a compacted read that has delivered messages it also names the
compacted ledger of the read, so that the next page, in any process, keeps R7 (storage/reading/compacted_reader.py). As
text:

    17              from offset 17 on. Any start (`earliest`, a message id, `@` and a time) is a token, too
    17~5h103        the read is in compacted ledger 5, and complete up to offset 103; `e`: 5 is in event-time order
    17~5r, 17~r     the read has left compacted ledger 5, or was in none, and continues raw
    17.29, 17.29~r  a chunked message that began at 17 was not complete; messages up to 29 were delivered already

A read that has delivered nothing holds no state that could be stale: its token is its start. Must not know: other texts
of starts, which each door parses itself (`from_token`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from storage.model import EARLIEST, LATEST, MessageId

_TOKEN = re.compile(r"(\d{1,18})(?:\.(\d{1,18}))?(?:~(\d{0,18})(?:h(\d{1,18}))?(e?)(r?))?", re.ASCII)


@dataclass(frozen=True)
class StartOffset:
    """A start at an offset, or at the next message that still exists."""

    offset: int


@dataclass(frozen=True)
class StartTime:
    """A start at the first message that was published at a time or later, in milliseconds since the Unix epoch."""

    publish_time: int


StartPosition = MessageId | StartOffset | StartTime


class OffsetReset(StrEnum):
    """The behaviour of a read whose start is before the topic's first message: begin at an end of it, or fail."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


@dataclass(frozen=True)
class CompactedProgress:
    """The knowledge of a compacted read about the messages that it has delivered (R7).

    `ledger_id`: the last compacted ledger of the read; None: it has read none. `by_event`: that ledger is in event-time
    order. `is_raw`: the read has left it. `complete_to`: of each delivered key, the newest message up to this offset
    was delivered; None: up to the last delivered offset.
    """

    ledger_id: int | None = None
    by_event: bool = False
    is_raw: bool = False
    complete_to: int | None = None


@dataclass(frozen=True)
class ContinuationToken:
    """The state of a read, which continues at `start`. Messages up to the offset `delivered` are not delivered again.

    `compacted` None: a raw read, or a read that has delivered nothing.
    """

    start: StartPosition
    delivered: int = -1
    compacted: CompactedProgress | None = None

    @classmethod
    def from_token(cls, token: str, parse_start: Callable[[str], StartPosition]) -> ContinuationToken:
        """Return the state of a read from the text of a token, the inverse of `to_token`.

        `parse_start` parses a text of any other form as a start; its errors are raised.
        """
        match = _TOKEN.fullmatch(token)
        if match is None:
            return cls(parse_start(token))
        start, delivered, ledger_id, complete_to, by_event, raw = match.groups()
        compacted = None
        if ledger_id is not None:
            compacted = CompactedProgress(
                int(ledger_id) if ledger_id else None,
                bool(by_event),
                bool(raw),
                None if complete_to is None else int(complete_to),
            )
        return cls(StartOffset(int(start)), -1 if delivered is None else int(delivered), compacted)

    def to_token(self) -> str:
        """Return the state as the text of a continuation token: letters, digits and `.:-~@`."""
        text = _start_text(self.start) + (f".{self.delivered}" if self.delivered >= 0 else "")
        if self.compacted is None:
            return text
        state = self.compacted
        ledger_id = "" if state.ledger_id is None else str(state.ledger_id)
        is_after = state.complete_to is not None and not self._is_delivered(state.complete_to)
        complete_to = f"h{state.complete_to}" if is_after else ""
        return f"{text}~{ledger_id}{complete_to}{'e' * state.by_event}{'r' * state.is_raw}"

    def _is_delivered(self, offset: int) -> bool:
        return isinstance(self.start, StartOffset) and offset < self.start.offset


def _start_text(start: StartPosition) -> str:
    if isinstance(start, StartOffset):
        return str(start.offset)
    if isinstance(start, StartTime):
        return f"@{start.publish_time}"
    return {EARLIEST: "earliest", LATEST: "latest"}.get(start) or str(start)
