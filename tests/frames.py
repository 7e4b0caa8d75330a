"""Frames as a client of Pulsar's protocol writes and reads them: any command, without bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from api.pulsar.frames import build_frame
from api.pulsar.pulsar_api_pb2 import BaseCommand


def encoded(command: BaseCommand, entry: bytes = b"") -> tuple[bytes, bytes]:
    """Return a frame, in two pieces if its entry is large."""
    return build_frame(command.SerializeToString(), entry)


class Frame(NamedTuple):
    """A command and the entry that follows it, if any."""

    command: BaseCommand
    entry: bytes


class FrameParser:
    """Takes bytes in any pieces and returns the frames that are complete."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Return the frames that `data` completes."""
        self._pending += data
        while len(self._pending) >= 8:
            end = 4 + int.from_bytes(self._pending[:4], "big")
            if len(self._pending) < end:
                break
            frame, self._pending = self._pending[4:end], self._pending[end:]
            size = 4 + int.from_bytes(frame[:4], "big")
            yield Frame(BaseCommand.FromString(frame[4:size]), frame[size:])
