"""The target of probes: a broker or this service, by its two URLs and the secret of its tokens."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import jwt

SECRET = b"the secret of tests/clients/behaviour, of 32 bytes at least"
SECRET_KEY = "data:;base64," + base64.b64encode(SECRET).decode()
SUPERUSER = "admin"
PROXY = "proxy"
PATIENCE = 30.0
"""Seconds that an expected answer may take."""
_COMPACTION_SECONDS = 120.0


def token_of(role: str) -> str:
    """Return a token of `role` that does not expire."""
    return jwt.encode({"sub": role}, SECRET, "HS256")


@dataclass(frozen=True)
class Endpoint:
    """The URLs of a broker or a service whose tokens are signed with `SECRET`."""

    url: str
    broker_service_url: str

    def ask(self, verb: str, path: str, body: object = None, **options: Any) -> httpx.Response:
        """Send one request as a superuser; a body is sent as JSON."""
        headers = {"Authorization": f"Bearer {token_of(SUPERUSER)}", "Content-Type": "application/json"}
        content = None if body is None else json.dumps(body)
        return httpx.request(verb, self.url + path, content=content, headers=headers, timeout=60, **options)

    def topic(self, verb: str, topic: str, below: str = "", body: object = None) -> httpx.Response:
        """Send one request below a topic's path."""
        return self.ask(verb, "/admin/v2/" + topic.replace("://", "/") + below, body)

    def stats(self, topic: str, query: str = "getPreciseBacklog=true") -> dict[str, Any]:
        """Return the statistics of a topic."""
        return dict(self.topic("GET", topic, f"/stats?{query}").json())

    def subscription(self, topic: str, name: str = "s") -> dict[str, Any]:
        """Return the statistics of a subscription."""
        return dict(self.stats(topic)["subscriptions"][name])

    def cursor(self, topic: str, name: str = "s") -> dict[str, Any]:
        """Return the internal statistics of a cursor."""
        return dict(self.topic("GET", topic, "/internalStats").json()["cursors"][name])

    def compact(self, topic: str) -> str:
        """Compact a topic and return the run's status."""
        status = self.topic("PUT", topic, "/compaction").status_code
        assert status == 204, status
        return str(
            settled(
                lambda: self.topic("GET", topic, "/compaction").json()["status"],
                "SUCCESS",
                "ERROR",
                seconds=_COMPACTION_SECONDS,
            )
        )


def settled(read: Callable[[], Any], *values: object, seconds: float = PATIENCE) -> Any:
    """Read until one of `values` comes, or the time is over; return the last value."""
    deadline = time.monotonic() + seconds
    while (value := read()) not in values and time.monotonic() < deadline:
        time.sleep(0.05)
    return value
