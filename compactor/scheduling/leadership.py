"""Who leads: one service of those that share a database schedules and executes compactions.

Design as river's (internal/leadership): leadership is a lease with a term. The leader renews it every third of the
term, and trusts itself only until the start of its last successful attempt + term − skew, by its own clock: an answer
that took long to come, or a process that slept, finds its trust over before another may lead. Whatever is begun
carries the token of the leadership, which SQL checks in the transaction of the claim; so a leader that does not know
that it was overtaken begins nothing, even if its clock is wrong.

A leader that cannot reach the database stays one until its trust is over. One that ends resigns, and another may lead
at once; one that is killed is followed after a term.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from storage.clock import Clock
from storage.errors import CompactorError, Fenced
from storage.metadata.stores import ServiceStore

SKEW = 0.2
"""The share of a term by which clocks may differ, or a leader notice late."""
RENEWALS = 3
"""Attempts in a term."""

_log = logging.getLogger(__name__)


class Leadership:
    """One service's part in it. Safe to share between threads."""

    def __init__(self, services: ServiceStore, clock: Clock, name: str, term_ms: int) -> None:
        self._services = services
        self._clock = clock
        self._name = name
        self._term_ms = term_ms
        self._lock = threading.Lock()
        self._token: int | None = None
        self._trusted_until = 0
        self._resigned = False

    @property
    def token(self) -> int | None:
        """The token of a leadership that can be trusted now; None: this service does not lead."""
        with self._lock:
            return self._token if self._clock.now_ms() < self._trusted_until else None

    def required_token(self) -> int:
        """The token. Raises Fenced."""
        token = self.token
        if token is None:
            raise Fenced(f"{self._name} does not lead (any more)", "nothing was begun; the leader does it")
        return token

    def attempt(self) -> int | None:
        """Take or renew the leadership; the token, None if another leads. Called every `term / RENEWALS`, or later.

        Raises Unavailable, Misconfigured; then all is as it was.
        """
        with self._lock:
            token, resigned = self._token, self._resigned
        if resigned:
            return None
        started = self._clock.now_ms()
        taken: int | None = None
        if token is not None:
            try:
                self._services.renew(token, self._term_ms)
                taken = token
            except Fenced as error:
                _log.warning("leadership lost: %s", error.message)
        else:
            taken = self._services.lead(self._name, self._term_ms)
        with self._lock:
            late, taken = (taken, None) if self._resigned else (None, taken)
            if taken is not None and taken != self._token:
                _log.info("leading (token %d)", taken)
            self._token = taken
            self._trusted_until = started + round(self._term_ms * (1 - SKEW)) if taken is not None else 0
        if late is not None:
            self._release(late)
        return self.token

    def resign(self) -> None:
        """Lead no more, ever; another may at once. What goes wrong costs the others the rest of a term."""
        with self._lock:
            token, self._token, self._resigned = self._token, None, True
        if token is not None:
            self._release(token)

    def _release(self, token: int) -> None:
        with suppress(CompactorError):
            self._services.resign(token)
