"""Acknowledgements of all subscriptions of a service, written together.

A cursor that has acknowledgements is noted here. Once a second the noted cursors are written in one transaction
(`storage.cursor.flush_together`), so a kill loses about a second of acknowledgements, however many topics are open. A
client that requests a receipt joins the next group, which begins when the present one is written. Some mark-deletes
need an id that only the topic knows: threads of the topic find it, so a store that hangs delays no group.

May go wrong: the database. Then the cursors stay noted and are written later, and receipts are refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from api.broker.threads import Workers
from api.observability.error_text import one_line
from storage.cursor import Cursor, flush_together
from storage.errors import CompactorError, Unavailable
from storage.metadata.store import MetadataStore

LOG = logging.getLogger(__name__)
GROUP_CURSORS = 500
"""Cursors that one transaction writes."""


class CursorOwner(Protocol):
    """The subscription of a cursor, as the writer of cursors calls it."""

    def on_write_failed(self, cursor: Cursor, error: CompactorError) -> None:
        """Replace a cursor that cannot be written any more, because another process has moved it (`error` is Fenced) or
        deleted it (NotFound)."""

    def start_mark_delete_search(self, cursor: Cursor) -> None:
        """Begin to search the topic for the id of the message that mark-delete has come to; do not wait for it."""


class CursorWriter:
    """The task that writes the acknowledgements of all cursors to SQL, in groups. For one event loop."""

    def __init__(self, metadata: MetadataStore, database: Workers, seconds: float = 1.0) -> None:
        """Make a writer of cursors. `database`: threads for the writes. `seconds`: the time between two groups of
        scheduled cursors."""
        self._metadata = metadata
        self._database = database
        self._seconds = seconds
        self._dirty: dict[Cursor, CursorOwner] = {}
        self._waiting: dict[Cursor, list[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None

    def schedule(self, cursor: Cursor, owner: CursorOwner) -> None:
        """Schedule the write of a cursor that has acknowledgements: with the next group, within about a second.

        `owner` is informed of a write that fails for good, or lacks the id of a message.
        """
        self._dirty[cursor] = owner

    def unschedule(self, cursor: Cursor) -> None:
        """Cancel the scheduled write of a cursor, which its subscription has replaced."""
        self._dirty.pop(cursor, None)

    async def flush(self, cursor: Cursor) -> None:
        """Write the acknowledgements of a cursor with the next group, and wait for it. Raises Fenced, NotFound,
        Unavailable; after Unavailable the writer tries again later."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(cursor, []).append(future)
        self._start_task()
        await future

    async def run(self) -> None:
        """Write the scheduled cursors once a second, until the task is cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            self.start_scheduled_writes()

    def start_scheduled_writes(self) -> None:
        """Begin to write the scheduled cursors, if any, and return without waiting for the writes."""
        if self._dirty:
            self._start_task()

    def _start_task(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all(), name="cursor writer")

    async def _write_all(self) -> None:
        """Write cursors in groups until no `flush` waits and those that were scheduled at the start are written."""
        dirty = list(self._dirty)
        while self._waiting or dirty:
            waiting, self._waiting = self._waiting, {}
            group = [*waiting, *(cursor for cursor in dirty if cursor not in waiting)]
            dirty = group[GROUP_CURSORS:]
            for cursor in group[GROUP_CURSORS:]:
                if cursor in waiting:
                    self._waiting[cursor] = waiting.pop(cursor) + self._waiting.get(cursor, [])
            await self._write_group(group[:GROUP_CURSORS], waiting)

    async def _write_group(self, group: list[Cursor], waiting: dict[Cursor, list[asyncio.Future[None]]]) -> None:
        """Write cursors in one transaction, and report the result to their owners and to the futures in `waiting`."""
        owners = {cursor: self._dirty.pop(cursor, None) for cursor in group}
        errors: dict[Cursor, CompactorError]
        try:
            errors = await self._database.run(flush_together, self._metadata, group)
        except CompactorError as error:
            errors = dict.fromkeys(group, error)
        except Exception as error:  # one damaged cursor must not delay the others
            LOG.warning("cursors cannot be written together (%s): each is written by itself", error)
            errors = await self._write_one_by_one(group)
        for cursor in group:
            self._report_result(cursor, owners[cursor], errors.get(cursor), waiting.get(cursor, ()))
        for reason in {one_line(error) for error in errors.values() if isinstance(error, Unavailable)}:
            LOG.warning("acknowledgements wait: %s", reason)

    def _report_result(
        self,
        cursor: Cursor,
        owner: CursorOwner | None,
        error: CompactorError | None,
        receipts: Sequence[asyncio.Future[None]],
    ) -> None:
        """Resolve `receipts` with the result of a cursor's write. Schedule the cursor again if the database was
        unavailable; report another error to its owner."""
        for future in receipts:
            if not future.done():
                future.set_result(None) if error is None else future.set_exception(error)
        if owner is None:
            return
        if isinstance(error, Unavailable):
            self._dirty.setdefault(cursor, owner)
        elif error is not None:
            owner.on_write_failed(cursor, error)
        elif cursor.lacks_mark_delete_id:
            owner.start_mark_delete_search(cursor)

    async def _write_one_by_one(self, group: list[Cursor]) -> dict[Cursor, CompactorError]:
        """Write each cursor in a transaction of its own. Return the errors of those that are not written."""
        errors: dict[Cursor, CompactorError] = {}
        for cursor in group:
            try:
                errors |= await self._database.run(flush_together, self._metadata, [cursor])
            except CompactorError as error:
                errors[cursor] = error
            except Exception:
                LOG.exception("the cursor %s cannot be written", cursor.name)
                errors[cursor] = Unavailable(f"the cursor {cursor.name} cannot be written", "see the service's log")
        return errors
