"""Leadership: one of the services that share a database schedules and executes compactions.

Design as river's (internal/leadership): leadership is a lease with a TTL. The leader renews it every third of the TTL.
It trusts its lease only until the start of its last successful attempt + TTL − skew, by its own clock. So after a slow
answer, or a pause of the process, its trust ends before another service may lead. Every claim of a run carries the
token of the leadership, which SQL checks in the transaction of the claim. So a leader that lost its lease without
noticing begins no run, even if its clock is wrong.

A leader that cannot reach the database leads until its trust ends. A leader that ends resigns, and another service may
lead at once; after a killed leader another service leads one TTL later.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from storage.clock import Clock
from storage.errors import CompactorError, Fenced
from storage.metadata.stores import ServiceStore

SKEW = 0.2
"""Share of the TTL that covers differences between clocks and delays of the leader."""
RENEWALS = 3
"""Attempts per TTL."""

_log = logging.getLogger(__name__)


class Leadership:
    """The leadership of one service: a lease in the database, with a fencing token. Thread-safe."""

    def __init__(self, services: ServiceStore, clock: Clock, name: str, ttl_ms: int) -> None:
        self._services = services
        self._clock = clock
        self._name = name
        self._ttl_ms = ttl_ms
        self._lock = threading.Lock()
        self._token: int | None = None
        self._trusted_until = 0
        self._resigned = False

    @property
    def token(self) -> int | None:
        """The token of a leadership that is trusted now; None: this service does not lead."""
        with self._lock:
            return self._token if self._clock.now_ms() < self._trusted_until else None

    def required_token(self) -> int:
        """Return the token of the leadership. Raises Fenced if this service does not lead."""
        token = self.token
        if token is None:
            raise Fenced(f"the service {self._name} is not the leader", "the leader executes the request")
        return token

    def acquire_or_renew(self) -> int | None:
        """Take or renew the leadership. Return the token; None: this service does not lead. Call it `RENEWALS` times a
        TTL.

        Raises Unavailable, Misconfigured; then nothing changes.
        """
        with self._lock:
            token, resigned = self._token, self._resigned
        if resigned:
            return None
        started = self._clock.now_ms()
        acquired: int | None = None
        if token is not None:
            try:
                self._services.renew_leadership(token, self._ttl_ms)
                acquired = token
            except Fenced as error:
                if not self._resigned:
                    _log.warning("leadership lost: %s", error)
        else:
            acquired = self._services.acquire_leadership(self._name, self._ttl_ms)
        with self._lock:
            late, acquired = (acquired, None) if self._resigned else (None, acquired)
            if acquired is not None and acquired != self._token:
                _log.info("leading (token %d)", acquired)
            self._token = acquired
            self._trusted_until = started + round(self._ttl_ms * (1 - SKEW)) if acquired is not None else 0
        if late is not None:
            self._release(late)
        return self.token

    def resign(self) -> None:
        """Release the leadership, so that another service may lead at once, and lead never again. Raises no
        CompactorError: after an error the lease expires."""
        with self._lock:
            token, self._token, self._resigned = self._token, None, True
        if token is not None:
            self._release(token)

    def _release(self, token: int) -> None:
        with suppress(CompactorError):
            self._services.resign(token)
