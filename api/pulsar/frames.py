"""Frames of Pulsar's binary protocol: the bytes of commands and entries on a connection.

    4 bytes: size of the rest | 4 bytes: size of the command | BaseCommand [ | an entry, as it is stored ]

Numbers are big-endian. An entry (storage/entries/entry.py) follows SEND and MESSAGE only; this module does not read it.
A command begins with its type, which decides whether the rest is read. A frame that is too large, or has no command,
ends the connection, because the next frame cannot be located. Must not know: protobuf.
"""

from __future__ import annotations

from collections.abc import Container
from struct import Struct
from typing import NamedTuple

_SIZE = Struct(">I")
_SIZES = Struct(">II")
_COPIED_BYTES = 16 << 10
_TYPE_TAG = 0x08
"""The tag of BaseCommand's first field, its type."""
PADDING_BYTES = 10 << 10
"""The size of a frame besides the largest message, as in Pulsar (MESSAGE_SIZE_FRAME_PADDING)."""


class MalformedFrame(Exception):
    """Bytes that are not a frame of the protocol, or a command out of order."""


class Frame(NamedTuple):
    """The number of a command's type, the bytes of the command, and the entry that follows it, if any."""

    kind: int
    command: bytes
    entry: bytes


FramePieces = tuple[bytes, bytes]
"""A frame to be written in two pieces. The second one is empty unless the entry is large."""


class FrameParser:
    """A parser that gets bytes in any pieces and returns complete frames. It holds one incomplete frame and the last
    piece."""

    def __init__(self, max_frame_bytes: int, kinds: Container[int]) -> None:
        """`kinds`: the types of commands that are expected before CONNECT."""
        self._pending = bytearray()
        self._max_bytes = max_frame_bytes
        self._kinds = kinds
        self._unexpected = "before CONNECT"

    def accept_commands(self, max_frame_bytes: int, kinds: Container[int]) -> None:
        """Accept frames up to that size with commands of these types: the client is connected."""
        self._max_bytes = max_frame_bytes
        self._kinds = kinds
        self._unexpected = "that a client does not send"

    def put(self, data: bytes) -> None:
        """Add received bytes."""
        self._pending += data

    def clear(self) -> None:
        """Drop all bytes."""
        self._pending = bytearray()

    @property
    def is_complete(self) -> bool:
        """Return whether `take` would return a frame, or raise an error."""
        size = self._first_bytes
        return bool(size) and (size <= len(self._pending) or size > _SIZE.size + self._max_bytes)

    @property
    def incomplete_bytes(self) -> int:
        """Return the size of an incomplete frame; 0: it is complete, or its size is not known yet."""
        return 0 if self.is_complete else self._first_bytes

    @property
    def _first_bytes(self) -> int:
        """Return the size of the first frame; 0: it is not known yet."""
        return _SIZE.size + int(_SIZE.unpack_from(self._pending)[0]) if len(self._pending) >= _SIZE.size else 0

    def take(self) -> Frame | None:
        """Return the next frame, or None until it is complete. Raise MalformedFrame."""
        pending = self._pending
        end = self._first_bytes
        if end and not _SIZE.size <= end - _SIZE.size <= self._max_bytes:
            raise MalformedFrame(f"a frame of {end - _SIZE.size} bytes: {_SIZE.size} to {self._max_bytes} are allowed")
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
        """Raise MalformedFrame for a command that is not expected, before its content is complete."""
        tag, kind = self._pending[_SIZES.size : _SIZES.size + 2]
        if tag != _TYPE_TAG:
            raise MalformedFrame("a frame whose command does not begin with its type")
        if kind not in self._kinds:
            raise MalformedFrame(f"a command of type {kind} {self._unexpected}")


def build_frame(command: bytes, entry: bytes = b"") -> FramePieces:
    """Return a frame in two pieces; the second is empty unless the entry is large: then the entry is not copied."""
    head = _SIZES.pack(_SIZE.size + len(command) + len(entry), len(command)) + command
    return (head + entry, b"") if len(entry) < _COPIED_BYTES else (head, entry)
