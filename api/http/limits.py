"""Limits of requests: the size of a body, the rate of a caller, the number under way.

This middleware runs before any route.

- A request that may change something and has no valid token is refused before its body is read, so bodies of unknown
  callers take no memory: 401.
- A body is counted while it is read, so one without a length, or with a wrong one, is refused at the limit and never
  held as a whole: 413. All bodies together have a limit, too: 503.
- Requests a second are counted by role, or by address for callers without one, which also makes guessing tokens slow,
  in buckets of one second: 429 with Retry-After.
- Requests under way are counted for the whole process: 503. One role has half of them at most, so that its long polls
  leave room for others.

Logging in has limits of its own (`login_limits.py`). Probes (/livez, /readyz) always pass. `api/http/header_checks.py`
refuses requests that are malformed before their caller is known; `api/http/connections.py` limits connections.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.broker.shares import Shares
from api.http import login_limits
from api.http.access import PROBES, Caller, unauthenticated_error
from api.http.audit import CHANGING
from api.http.header_checks import HeaderRules
from api.http.problems import RestException, error_response
from api.settings.settings import Settings
from storage.clock import Clock

BODY_BYTES = 1 << 20
"""The largest body of a request that produces nothing."""
_BODY = "body"
MAX_BUCKETS = 10_000
_KIB = 1024


@dataclass
class _Bucket:
    tokens: float
    at_ms: int


class TokenBuckets:
    """Token buckets by name: each gets `rate` tokens a second and holds as many, at least 1. A rate of 0 is no limit.

    Beyond `buckets` buckets the least recently used bucket is dropped. Safe to share between threads.
    """

    def __init__(self, rate: float, clock: Clock, buckets: int = MAX_BUCKETS) -> None:
        self._rate = rate
        self._room = max(1.0, rate)
        self._clock = clock
        self._max_buckets = buckets
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def take_token(self, name: str) -> float:
        """Take a token from the bucket of a name, and return 0. If it has none, take nothing, and return the seconds
        until it has one."""
        if not self._rate:
            return 0.0
        now = self._clock.now_ms()
        with self._lock:
            bucket = self._buckets.setdefault(name, _Bucket(self._room, now))
            self._buckets.move_to_end(name)
            passed = max(0, now - bucket.at_ms) / 1000
            bucket.tokens, bucket.at_ms = min(self._room, bucket.tokens + passed * self._rate), now
            while len(self._buckets) > self._max_buckets:
                self._buckets.popitem(last=False)
            if bucket.tokens >= 1:
                bucket.tokens -= 1
                return 0.0
            return (1 - bucket.tokens) / self._rate


class RequestLimitMiddleware:
    """Middleware that refuses requests with malformed headers, too large bodies, or beyond the limits of their caller
    or of the process. It needs the caller in the request's state (`access.AuthenticationMiddleware`)."""

    def __init__(self, app: ASGIApp, settings: Settings, clock: Clock) -> None:
        self._app = app
        self._header_rules = HeaderRules.from_settings(settings)
        self._body = settings.limits_body_bytes
        self._at_once = settings.limits_requests_at_once
        self._buckets = TokenBuckets(settings.limits_requests_per_second, clock)
        self._bodies = max(settings.limits_bodies_bytes, settings.limits_body_bytes)
        self._logins = login_limits.PendingLogins()
        self._held = 0
        self._of_role = Shares[str | None]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        probes = scope["path"] in PROBES
        refusal = self._header_rules.refusal(scope, check_sites=not probes) or (
            None if probes else self._limit_refusal(scope)
        )
        if refusal is not None:
            await error_response(refusal.status_code, refusal.detail, refusal.headers)(scope, receive, send)
            return
        if probes:
            await self._app(scope, receive, send)
            return
        caller: Caller = scope["state"]["caller"]
        if _is_login_or_logout(scope):
            with self._logins.count_request(caller.address):
                await self._app(scope, login_limits.bounded_body(receive), send)
            return
        counted = scope["state"][_BODY] = _CountedBody(receive, self, self._body)
        with self._of_role.counting(caller.role):  # only the event loop's thread comes here
            try:
                await self._app(scope, counted, send)
            finally:
                self._held -= counted.taken

    def _limit_refusal(self, scope: Scope) -> RestException | None:
        """Return the error for a request that is beyond a limit or not authenticated; None: it may begin."""
        caller: Caller = scope["state"]["caller"]
        if _is_login_or_logout(scope):
            return self._logins.refusal(caller.address, _declared_body_length(scope)) or self._rate_refusal(caller)
        if self._of_role.total() >= self._at_once:
            return RestException(503, f"{self._at_once} requests are under way: try again", {"Retry-After": "1"})
        if caller.role and self._of_role[caller.role] >= max(1, self._at_once // 2):
            message = f"{self._of_role[caller.role]} requests of the role are under way, half of what may be: try again"
            return RestException(503, message, {"Retry-After": "1"})
        if refusal := self._rate_refusal(caller):
            return refusal
        if caller.refusal_reason and scope["method"] in CHANGING:
            return unauthenticated_error(caller)
        return self.body_too_large_error(self._body) if _declared_body_length(scope) > self._body else None

    def _rate_refusal(self, caller: Caller) -> RestException | None:
        """Count a request of the caller. Return the error (429) if it is beyond the rate; else None."""
        if seconds := self._buckets.take_token(f"role {caller.role}" if caller.role else f"address {caller.address}"):
            return RestException(429, "too many requests: slow down", {"Retry-After": str(math.ceil(seconds))})
        return None

    def count_body_bytes(self, counted_bytes: int, new_bytes: int, limit: int) -> None:
        """Count `new_bytes` more of a body, of which `counted_bytes` are counted already.

        Raise RestException: 413 for a body of more than `limit` bytes, 503 if all bodies together are beyond their
        limit.
        """
        if counted_bytes + new_bytes > limit:
            raise self.body_too_large_error(limit)
        if self._held + new_bytes > self._bodies:
            message = f"requests with {self._held // _KIB} KiB of bodies are under way: try again"
            raise RestException(503, message, {"Retry-After": "1", "Connection": "close"})
        self._held += new_bytes

    def body_too_large_error(self, limit: int) -> RestException:
        """Return the error (413) for a body of more than `limit` bytes."""
        remedy = ", or raise limits.body-bytes" if limit == self._body else ""
        return RestException(
            413,
            f"the body is larger than {limit // _KIB} KiB: send less at once{remedy}",
            {"Connection": "close"},
        )


def limit_body(scope: Scope, limit: int) -> None:
    """Lower the limit of a request's body to `limit` bytes. Raise RestException (413) if the declared length is larger;
    a larger body without a length raises it while it is read."""
    counted: _CountedBody | None = scope["state"].get(_BODY)
    if counted is not None:
        counted.lower_limit(limit, _declared_body_length(scope))


def _is_login_or_logout(scope: Scope) -> bool:
    return scope["method"] == "POST" and scope["path"] in login_limits.PATHS


def _declared_body_length(scope: Scope) -> int:
    """Return the declared length of a request's body; 0: none."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    return int(lengths[0][:20]) if lengths and lengths[0].isdigit() else 0


class _CountedBody:
    """A receiver of a request's body that counts the bytes, and raises RestException beyond the limit."""

    def __init__(self, receive: Receive, limits: RequestLimitMiddleware, limit: int) -> None:
        self._receive = receive
        self._limits = limits
        self._limit = limit
        self.taken = 0

    def lower_limit(self, limit: int, length: int) -> None:
        """Lower the limit of the body, never raise it. Raise RestException (413) if the declared `length` is larger."""
        self._limit = min(self._limit, limit)
        if length > self._limit:
            raise self._limits.body_too_large_error(self._limit)

    async def __call__(self) -> Message:
        message = await self._receive()
        more = len(message.get("body") or b"")
        self._limits.count_body_bytes(self.taken, more, self._limit)
        self.taken += more
        return message
