"""Frames: what is sent comes out, however it is cut; what is no frame is said so, and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies

from api.gateway.frames import PADDING_BYTES, FrameParser, MalformedFrame, encoded
from api.gateway.pulsar_api_pb2 import BaseCommand

MOST = 100_000


def ping() -> BaseCommand:
    return BaseCommand(type=BaseCommand.PING, ping={})


def flow(permits: int) -> BaseCommand:
    return BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": 1, "message_permits": permits})


@given(
    strategies.lists(strategies.tuples(strategies.integers(0, 2**32 - 1), strategies.binary(max_size=40_000))),
    strategies.integers(1, 50_000),
)
def test_frames_come_out_as_they_went_in(sent: list[tuple[int, bytes]], size: int) -> None:
    data = b"".join(piece for permits, entry in sent for piece in encoded(flow(permits), entry))
    parser = FrameParser(MOST)
    found = [frame for at in range(0, len(data), size) for frame in parser.feed(data[at : at + size])]
    assert [(frame.command.flow.message_permits, frame.entry) for frame in found] == sent


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        (MOST + PADDING_BYTES + 1).to_bytes(4, "big"),
        bytes(4),
        bytes((0, 0, 0, 4, 0, 0, 0, 1)),
        bytes((0, 0, 0, 6, 0, 0, 0, 2, 255, 255)),
        bytes((0, 0, 0, 4, 0, 0, 0, 0)),
    ],
)
def test_what_is_no_frame_is_said_so(data: bytes) -> None:
    parser = FrameParser(MOST)
    (whole,) = parser.feed(b"".join(encoded(ping())))
    assert whole.command.type == BaseCommand.PING
    with pytest.raises(MalformedFrame):
        list(parser.feed(data))


@given(strategies.binary(max_size=200))
def test_any_bytes_are_frames_or_malformed(data: bytes) -> None:
    try:
        for frame in FrameParser(MOST).feed(data):
            assert frame.command.IsInitialized()
    except MalformedFrame:
        pass


def test_cut_and_changed_frames_are_frames_or_malformed() -> None:
    rng = random.Random(1)
    good = b"".join(encoded(flow(7), b"x" * 100))
    for _ in range(2_000):
        data = bytearray(good)
        data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            list(FrameParser(MOST).feed(bytes(data[: rng.randrange(len(data) + 1)])))
        except MalformedFrame:
            continue
