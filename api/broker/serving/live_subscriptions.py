"""Subscriptions that other doors move while clients are connected: threads act on the state of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import TimeoutError as LateError
from typing import Any, TypeVar

from api.broker.serving.subscription import Subscription
from api.broker.serving.topic import PersistentTopic
from storage.cursor import Cursor
from storage.errors import Fenced, NotFound, Unavailable
from storage.model import LogPosition

Result = TypeVar("Result")
_SECONDS = 30.0


class ServedSubscription:
    """A durable subscription that this service serves, for threads of other interfaces: each call runs on the event
    loop and blocks until it has ended (`connected_clients.LiveSubscription`)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, topic: PersistentTopic, subscription: Subscription, cursor: Cursor
    ) -> None:
        self._loop = loop
        self._topic = topic
        self._subscription = subscription
        self.cursor = cursor

    def note_log_end(self, end: int) -> None:
        self._run_on_loop(self._note_log_end(end))

    def store_caller_acknowledgements(self) -> None:
        try:
            self.cursor.flush()
        except (Fenced, NotFound):  # another process moved or deleted it: the next call acts on what is stored
            self._run_on_loop(self._subscription.replace_fenced_cursor(self.cursor))
            raise
        self._run_on_loop(self._remove_acknowledged_pending())

    def reset(self, mark_delete: LogPosition | None) -> None:
        self._run_on_loop(self._subscription.reset(mark_delete))

    def prepare_deletion(self, force: bool) -> None:
        self._run_on_loop(self._topic.prepare_subscription_deletion(self._subscription, force))

    async def _note_log_end(self, end: int) -> None:
        self._subscription.position.note_log_end(end)

    async def _remove_acknowledged_pending(self) -> None:
        self._subscription.remove_acknowledged_pending()

    def _run_on_loop(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the event loop, wait for it, and return its result. Raises Unavailable after
        `_SECONDS`."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(_SECONDS)
        except LateError as error:
            future.cancel()
            raise Unavailable(
                f"the subscription {self._subscription.name} has not answered within {_SECONDS:g} s", "try again"
            ) from error
