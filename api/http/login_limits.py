"""Limits of logging in and out of the dashboard, the only requests whose bodies are read from unknown callers.

They have places of their own, so they use neither the places of other requests nor the memory for bodies. A body must
be small and arrive within seconds. One address has a part of the places, so that other addresses can log in. For the
event loop, whose clock is used.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager

from starlette.types import Message, Receive

from api.broker.shares import Shares
from api.http.access import LOGIN, LOGOUT
from api.http.problems import RestException

PATHS = (LOGIN, LOGOUT)
BODY_BYTES = 16 << 10
"""The size of a form: a token and the path of a page."""
BODY_SECONDS = 5.0
PLACES = 64
"""The number of requests at once, which hold 1 MiB of bodies together."""
PLACES_OF_ADDRESS = 16
_CLOSE = {"Connection": "close"}
_LATER = {"Retry-After": "1", **_CLOSE}


class PendingLogins:
    """The number of requests to log in or out that are under way, by address, with limits."""

    def __init__(self) -> None:
        self._of_address = Shares[str]()

    def refusal(self, address: str, length: int) -> RestException | None:
        """Return the error for a request from `address` with a declared body length of `length` bytes: 413 for a larger
        body, 503 if too many are under way; None: it may begin."""
        if length > BODY_BYTES:
            return _form_too_large_error()
        if self._of_address[address] >= PLACES_OF_ADDRESS or self._of_address.total() >= PLACES:
            return RestException(503, "too many requests log in at once: try again", _LATER)
        return None

    def count_request(self, address: str) -> AbstractContextManager[None]:
        """Return a context that counts a request while it is under way."""
        return self._of_address.counting(address)


def bounded_body(receive: Receive, seconds: float = BODY_SECONDS) -> Receive:
    """Return a receiver that wraps `receive`, and raises RestException for a body that is too large (413) or not
    complete after `seconds` (408). Call this in the event loop when the request begins."""
    deadline = asyncio.get_running_loop().time() + seconds
    size, is_complete = 0, False

    async def next_message() -> Message:
        nonlocal size, is_complete
        if is_complete:  # the next message is the end of the connection
            return await receive()
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise RestException(408, f"the form took longer than {seconds:g} s to arrive", _CLOSE) from None
        size += len(message.get("body") or b"")
        if size > BODY_BYTES:
            raise _form_too_large_error()
        is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return next_message


def _form_too_large_error() -> RestException:
    return RestException(413, f"the form is larger than {BODY_BYTES >> 10} KiB: send the token alone", _CLOSE)
