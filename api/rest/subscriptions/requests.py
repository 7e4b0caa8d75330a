"""Parts of requests on subscriptions: their path, positions as Pulsar's clients send them, a permission."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Path, Request
from pydantic import AfterValidator, BeforeValidator, Field

from api.broker.positions import After, CursorPosition
from api.broker.threads import WaitsFor
from api.http.access import AuthAction, require_permission
from api.http.dependencies import broker_of
from api.http.paths import TOPIC_PATH, decode_path_part
from api.rest.models import INT, LONG, PulsarBody, TextByName
from storage.metadata.records import COMPACTION_CURSOR
from storage.model import EARLIEST, LATEST, MessageId

CURSOR_PATH = TOPIC_PATH + "/subscription/{subscription}"

Subscription = Annotated[
    str,
    Path(description="Name of the subscription; __compaction is the compaction cursor."),
    AfterValidator(decode_path_part),
]


class ResetCursorData(PulsarBody):
    """A message id, as Pulsar's clients send it. `excluded`: the position is the message after it. `properties`: those
    of a new subscription."""

    ledger_id: int = Field(ge=-1, le=LONG)
    entry_id: int = Field(ge=-1, le=LONG)
    partition_index: int = -1
    batch_index: int = Field(-1, ge=-1, le=INT)
    batch_size: int = 0
    excluded: bool = False
    is_excluded: bool = False
    properties: TextByName | None = None
    first_chunk_message_id: dict[str, Any] | None = None
    ack_set: dict[str, Any] | None = None

    @property
    def message_id(self) -> MessageId:
        """The message id that the body names. Ledger id -1: earliest; the greatest ledger id: latest; entry id -1: the
        first entry of the ledger."""
        if self.ledger_id == -1:
            return EARLIEST
        if self.ledger_id == LONG:
            return LATEST
        return MessageId(self.ledger_id, self.entry_id, self.partition_index, self.batch_index)

    @property
    def position(self) -> CursorPosition:
        """The position of the first message to deliver: the message with the id; with `excluded`, the message after
        it."""
        excluded = (self.excluded or self.is_excluded) and self.message_id not in (EARLIEST, LATEST)
        return After(self.message_id) if excluded else self.message_id


_NAMED = {"earliest": {"ledgerId": -1, "entryId": -1}, "latest": {"ledgerId": LONG, "entryId": LONG}}


def _resolve_named_position(value: object) -> object:
    """Return the message id for the text `earliest` or `latest`; a value that is no text unchanged. Raise ValueError
    for another text."""
    if isinstance(value, str) and value not in _NAMED:
        raise ValueError(f"{value[:40]!r} is no place: give a message id, earliest or latest")
    return _NAMED[value] if isinstance(value, str) else value


PositionBody = Annotated[
    ResetCursorData | None,
    BeforeValidator(_resolve_named_position, json_schema_input_type=ResetCursorData | str | None),
    Body(description='A message id, "earliest" or "latest".'),
]


def position_of(body: ResetCursorData | None) -> CursorPosition:
    """Return the position of a subscription that the body of a request names; latest without a body."""
    return LATEST if body is None else body.position


async def check_compaction_cursor_permission(request: Request, subscription: Subscription, force: bool = False) -> None:
    """Raise RestException (403) for a change of `__compaction` without the permission for it.

    A dependency of a route after `permission_check(AuthAction.CONSUME)`. Changes of `__compaction` need the action
    `compact`. A forced deletion needs `admin`: the compacted ledger is deleted, and with it the keys whose raw messages
    are trimmed.
    """
    if subscription == COMPACTION_CURSOR:
        action = AuthAction.ADMIN if force else AuthAction.COMPACT
        await broker_of(request).pools[WaitsFor.DATABASE].run(require_permission, request, action)
