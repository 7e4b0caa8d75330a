"""A common part of actors that consume: one subscription at a time, which no other actor has meanwhile."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from tests.faults.engine.history import History, Subscription
from tests.faults.engine.report import Report

_PAUSE_SECONDS = 0.3


class Subscriber(ABC):
    """An actor that connects to one subscription for some seconds. `errors`: how its client says that it failed."""

    errors: ClassVar[tuple[type[Exception], ...]]
    role: ClassVar[str]
    """The name under which the report counts failures of its client."""

    def __init__(
        self,
        topics: Sequence[History],
        chance: random.Random,
        report: Report,
        ended: threading.Event,
        uses: Callable[[Subscription], bool],
    ) -> None:
        self._choices = [
            (topic, subscription)
            for topic in topics
            for subscription in topic.subscriptions.values()
            if uses(subscription)
        ]
        self._chance = chance
        self._report = report
        self._ended = ended

    def step(self) -> None:
        history, subscription = self._chance.choice(self._choices)
        if not subscription.lock.acquire(blocking=False):
            return
        try:
            self.consume(history, subscription)
        except self.errors as error:
            self._report.count(f"{self.role} ended: {type(error).__name__}")
            self.pause()
        finally:
            subscription.lock.release()

    def pause(self) -> None:
        """Wait a moment after a failure, unless the round has ended."""
        self._ended.wait(_PAUSE_SECONDS)

    @abstractmethod
    def consume(self, history: History, subscription: Subscription) -> None:
        """Connect, consume and disconnect."""
