"""Where a read begins, and where it continues, as values: what callers of `storage` give and get.

A read begins at a start position: `EARLIEST`, `LATEST` or another message id, an offset (`StartOffset`), or a publish
time (`StartTime`): at that message, or at the next one that still exists. Where that is before the topic's first
message, a raw read does as `OffsetReset` says (L3).

A continuation token is where the next page begins. Of a compacted read that has delivered something it also names the
compacted ledger that the read is in, so that the next page, in any process, keeps R7
(storage/reading/compacted_reader.py). As text:

    17              from offset 17 on. Any start (`earliest`, a message id, `@` and a time) is a token, too
    17~5h103        the read is in compacted ledger 5, and complete up to offset 103; `e`: 5 is in event-time order
    17~5r, 17~r     the read has left compacted ledger 5, or was in none, and continues raw
    17.29, 17.29~r  a chunked message that began at 17 was not complete; messages up to 29 were delivered already

A read that has delivered nothing holds no state that could be stale: its token is its start. Must not know: how other
starts are written; each door parses its own (`from_token`).
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
    """Begin at an offset, or at the next message that is left."""

    offset: int


@dataclass(frozen=True)
class StartTime:
    """Begin at the first message that was published then or later; milliseconds since the Unix epoch."""

    publish_time: int


StartPosition = MessageId | StartOffset | StartTime


class OffsetReset(StrEnum):
    """What a read does whose start is before the topic's first message."""

    EARLIEST = "earliest"
    LATEST = "latest"
    FAIL = "fail"


@dataclass(frozen=True)
class CompactedProgress:
    """What a compacted read must remember of what it has delivered (R7).

    `ledger_id`: the compacted ledger that it was in last; None: it was in none. `by_event`: whether that one is in
    event-time order. `is_raw`: the read has left it. `complete_to`: of each key that was delivered, the newest message
    up to this offset was delivered; None: up to the last offset that was delivered.
    """

    ledger_id: int | None = None
    by_event: bool = False
    is_raw: bool = False
    complete_to: int | None = None


@dataclass(frozen=True)
class ContinuationToken:
    """Where a read continues: at `start`. Messages up to the offset `delivered` are not delivered again.

    `compacted` None: a raw read, or a read that has delivered nothing.
    """

    start: StartPosition
    delivered: int = -1
    compacted: CompactedProgress | None = None

    @classmethod
    def from_token(cls, token: str, parse_start: Callable[[str], StartPosition]) -> ContinuationToken:
        """The inverse of `to_token`; what is no token of a page before is left to `parse_start`."""
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
        """The state as text: letters, digits and `.:-~@`."""
        text = _start_text(self.start) + (f".{self.delivered}" if self.delivered >= 0 else "")
        if self.compacted is None:
            return text
        state = self.compacted
        ledger_id = "" if state.ledger_id is None else str(state.ledger_id)
        complete_to = "" if state.complete_to is None else f"h{state.complete_to}"
        return f"{text}~{ledger_id}{complete_to}{'e' * state.by_event}{'r' * state.is_raw}"


def _start_text(start: StartPosition) -> str:
    if isinstance(start, StartOffset):
        return str(start.offset)
    if isinstance(start, StartTime):
        return f"@{start.publish_time}"
    return {EARLIEST: "earliest", LATEST: "latest"}.get(start) or str(start)
