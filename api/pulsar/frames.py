"""Frames of Pulsar's binary protocol: bytes from a socket become commands, commands become bytes.

    4 size of all that follows | 4 size of the command | BaseCommand [ | an entry, as it is stored ]

Numbers are big-endian. An entry (storage/entries/entry.py) follows SEND and MESSAGE only, and is not looked into here.
A command begins with its type, which decides whether and how far the rest is read (api/pulsar/codec/limits.py). A frame
that is larger than allowed, or is no command, ends the connection: the next one cannot be located.
"""

from __future__ import annotations

from collections.abc import Container
from struct import Struct
from typing import NamedTuple

_SIZE = Struct(">I")
_SIZES = Struct(">II")
_COPIED_BYTES = 16 << 10
_TYPE_TAG = 0x08
"""Of BaseCommand's first field, its type, of one byte."""
PADDING_BYTES = 10 << 10
"""What a frame may have besides the largest message, as in Pulsar (MESSAGE_SIZE_FRAME_PADDING)."""


class MalformedFrame(Exception):
    """Bytes that are no frame of the protocol."""


class Frame(NamedTuple):
    """A command of a client as it was sent, its type, and the entry that follows it, if any."""

    kind: int
    command: bytes
    entry: bytes


class FrameParser:
    """Takes bytes in any pieces and returns complete frames. Holds one incomplete frame and the last piece."""

    def __init__(self, max_frame_bytes: int, kinds: Container[int]) -> None:
        """`kinds`: the types of commands that are expected."""
        self._pending = bytearray()
        self._most = max_frame_bytes
        self._kinds = kinds
        self._unexpected = "before CONNECT"

    def allow(self, max_frame_bytes: int, kinds: Container[int]) -> None:
        """Accept frames up to that size, with commands of these types, from now on: the client is connected."""
        self._most = max_frame_bytes
        self._kinds = kinds
        self._unexpected = "that a client does not send"

    def put(self, data: bytes) -> None:
        """Add what a socket has received."""
        self._pending += data

    def clear(self) -> None:
        """Drop what was received."""
        self._pending = bytearray()

    @property
    def is_complete(self) -> bool:
        """Return whether `take` has something to return, or to refuse."""
        size = self._first_bytes
        return bool(size) and (size <= len(self._pending) or size > _SIZE.size + self._most)

    @property
    def incomplete_bytes(self) -> int:
        """The size of the frame that arrives; 0: it is complete, or its size is not known."""
        return 0 if self.is_complete else self._first_bytes

    @property
    def _first_bytes(self) -> int:
        """The size of the first frame; 0: it is not known."""
        return _SIZE.size + int(_SIZE.unpack_from(self._pending)[0]) if len(self._pending) >= _SIZE.size else 0

    def take(self) -> Frame | None:
        """Return the next frame, or None until it is complete. Raises MalformedFrame."""
        pending = self._pending
        end = self._first_bytes
        if end and not _SIZE.size <= end - _SIZE.size <= self._most:
            raise MalformedFrame(f"a frame of {end - _SIZE.size} bytes: {_SIZE.size} to {self._most} are allowed")
        if len(pending) >= _SIZES.size + 2:
            self._check_type()
        if not end or end > len(pending):
            return None
        if end < _SIZES.size + 2:
            raise MalformedFrame("a frame without a command")
        (size,) = _SIZE.unpack_from(pending, _SIZE.size)
        command_end = _SIZES.size + size
        if size < 2 or command_end > end:
            raise MalformedFrame(f"a command of {size} bytes in a frame of {end - _SIZE.size}")
        with memoryview(pending) as view:
            frame = Frame(
                pending[_SIZES.size + 1], bytes(view[_SIZES.size : command_end]), bytes(view[command_end:end])
            )
        del pending[:end]
        return frame

    def _check_type(self) -> None:
        """Raises MalformedFrame for a command that is not expected, before its content is complete."""
        tag, kind = self._pending[_SIZES.size : _SIZES.size + 2]
        if tag != _TYPE_TAG:
            raise MalformedFrame("a frame whose command does not begin with its type")
        if kind not in self._kinds:
            raise MalformedFrame(f"a command of type {kind} {self._unexpected}")


def framed(command: bytes, entry: bytes = b"") -> tuple[bytes, bytes]:
    """Return a frame, in two pieces if its entry is large: it is not copied then."""
    head = _SIZES.pack(_SIZE.size + len(command) + len(entry), len(command)) + command
    return (head + entry, b"") if len(entry) < _COPIED_BYTES else (head, entry)
