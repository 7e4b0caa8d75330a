"""Frames: what is sent comes out, however it is cut; what is no frame is said so, and nothing else."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, strategies

from api.pulsar.codec.decoding import REQUESTS, decode_request
from api.pulsar.codec.limits import LimitExceeded
from api.pulsar.codec.requests import Flow, Ping
from api.pulsar.frames import Frame, FrameParser, MalformedFrame
from api.pulsar.pulsar_api_pb2 import BaseCommand
from tests.frames import encoded

MOST = 100_000


def parser() -> FrameParser:
    return FrameParser(MOST, REQUESTS)


def frames(source: FrameParser, data: bytes) -> list[tuple[Any, bytes]]:
    """Return the requests and entries that are complete. The buffer of the bytes is used again afterwards."""
    buffer = bytearray(data)
    source.add_bytes(memoryview(buffer))
    taken = [(decode_request(frame), frame.entry) for frame in iter(source.take_frame, None)]
    source.copy_unread_bytes()
    buffer[:] = b"\xff" * len(buffer)
    return taken


def ping() -> BaseCommand:
    return BaseCommand(type=BaseCommand.PING, ping={})


def flow(permits: int) -> BaseCommand:
    return BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "message_permits": permits})


@given(
    strategies.lists(strategies.tuples(strategies.integers(0, 2**31 - 1), strategies.binary(max_size=40_000))),
    strategies.integers(1, 50_000),
)
def test_frames_come_out_as_they_went_in(sent: list[tuple[int, bytes]], size: int) -> None:
    data = b"".join(piece for permits, entry in sent for piece in encoded(flow(permits), entry))
    source = parser()
    received = [frame for at in range(0, len(data), size) for frame in frames(source, data[at : at + size])]
    assert received == [(Flow(1, permits), entry) for permits, entry in sent]


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        (MOST + 1).to_bytes(4, "big"),
        bytes(4),
        bytes((0, 0, 0, 4, 0, 0, 0, 1)),
        bytes((0, 0, 0, 6, 0, 0, 0, 2, 255, 255)),
        bytes((0, 0, 0, 4, 0, 0, 0, 0)),
    ],
)
def test_what_is_no_frame_is_said_so(data: bytes) -> None:
    source = parser()
    assert frames(source, b"".join(encoded(ping()))) == [(Ping(), b"")]
    with pytest.raises(MalformedFrame):
        frames(source, data)


@given(strategies.binary(max_size=200))
def test_any_bytes_are_frames_or_malformed(data: bytes) -> None:
    with suppress(MalformedFrame, LimitExceeded):
        frames(parser(), data)


def test_cut_and_changed_frames_are_frames_or_malformed() -> None:
    rng = random.Random(1)
    good = b"".join(encoded(flow(7), b"x" * 100))
    for _ in range(2_000):
        data = bytearray(good)
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            frames(parser(), bytes(data[: rng.randrange(len(data) + 1)]))
        except (MalformedFrame, LimitExceeded):
            continue


def test_a_type_that_is_not_expected_is_refused_before_its_content_arrives() -> None:
    source = FrameParser(MOST, (BaseCommand.CONNECT,))
    head = (50_000).to_bytes(4, "big") + (49_000).to_bytes(4, "big") + bytes((8, BaseCommand.SUBSCRIBE))
    source.add_bytes(memoryview(head))
    with pytest.raises(MalformedFrame, match="before CONNECT"):
        source.take_frame()


def test_the_size_of_a_frame_that_arrives_is_known() -> None:
    source = parser()
    data = b"".join(encoded(flow(7), b"x" * 20_000))
    source.add_bytes(memoryview(data)[:100])
    assert (source.take_frame(), source.incomplete_frame_full_size) == (None, len(data))
    source.copy_unread_bytes()
    source.add_bytes(memoryview(data)[100:])
    assert (source.has_complete_frame, source.incomplete_frame_full_size) == (True, 0)


def test_frames_that_wait_are_kept_in_their_order() -> None:
    source = parser()
    data = b"".join(piece for number in range(4) for piece in encoded(flow(number), bytes(100 * number)))
    for at in range(0, len(data), 150):
        source.add_bytes(memoryview(data)[at : at + 150])
        source.copy_unread_bytes()
    taken = [(decode_request(frame), frame.entry) for frame in iter(source.take_frame, None)]
    assert taken == [(Flow(1, number), bytes(100 * number)) for number in range(4)]


def test_a_second_type_does_not_replace_the_first_one() -> None:
    """Bounds are those of the first; protobuf takes the last."""
    data = ping().SerializeToString() + bytes((8, BaseCommand.PONG))
    with pytest.raises(MalformedFrame):
        decode_request(Frame(BaseCommand.PING, data, b""))
