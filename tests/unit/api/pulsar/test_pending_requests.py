"""Requests under way: bounded in bytes, and refused one by one."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from api.pulsar.admission import Admission
from api.pulsar.codec.requests import Unsubscribe
from api.pulsar.codec.responses import Failure, Success
from api.pulsar.errors import Refused, ServerError
from api.pulsar.identity import Identity
from api.pulsar.pending_requests import MAX_REQUEST_BYTES, PendingRequests
from tests.event_loop import in_event_loop
from tests.unit.api.pulsar.test_session import RecordingChannel

REQUEST = Unsubscribe(1, 1, False)


class Channel(RecordingChannel):
    """Keeps the reasons for which it is held, too."""

    def __init__(self) -> None:
        super().__init__()
        self.holds: set[str] = set()

    def hold_requests(self, reason: str) -> None:
        self.holds.add(reason)

    def resume_requests(self, reason: str) -> None:
        self.holds.discard(reason)


def pending(channel: Channel) -> PendingRequests:
    admission = Admission({}, 1_000, max_lookups=2)
    return PendingRequests(channel, admission, Identity(cast(Any, None), admission, "host"))


@in_event_loop
async def test_large_requests_under_way_are_bounded() -> None:
    channel = Channel()
    requests = pending(channel)
    answered = asyncio.Event()

    async def work() -> Success:
        await answered.wait()
        return Success(1)

    requests.command_bytes = MAX_REQUEST_BYTES // 2
    assert requests.begin(REQUEST, work())
    assert not channel.holds
    assert requests.begin(REQUEST, work())
    assert channel.holds
    answered.set()
    while channel.holds:
        await asyncio.sleep(0)
    assert channel.sent == [Success(1)] * 2


@in_event_loop
async def test_an_error_refuses_its_request_alone() -> None:
    channel = Channel()
    requests = pending(channel)

    async def fail() -> Success:
        raise Refused(ServerError.MetadataError, "no")

    async def succeed() -> Success:
        return Success(2)

    requests.begin(REQUEST, fail())
    requests.begin(REQUEST, succeed())
    while len(channel.sent) < 2:
        await asyncio.sleep(0)
    assert channel.sent == [Failure(1, ServerError.MetadataError, "no", Unsubscribe), Success(2)]
