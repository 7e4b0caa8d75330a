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
_NOTHING = memoryview(b"")
_COPIED_BYTES = 16 << 10
_TYPE_TAG = 0x08
"""The tag of BaseCommand's first field, its type."""
PADDING_BYTES = 10 << 10
"""The size of a frame besides the largest message, as in Pulsar (MESSAGE_SIZE_FRAME_PADDING)."""


class MalformedFrame(Exception):
    """The error of bytes that are not a frame of the protocol, or of a command out of order."""


class Frame(NamedTuple):
    """The number of a command's type, the bytes of the command, and the entry that follows it, if any."""

    kind: int
    command: bytes
    entry: bytes


FramePieces = tuple[bytes, bytes]
"""A frame to be written in two pieces. The second one is empty unless the entry is large."""


class FrameParser:
    """A parser that gets bytes in any pieces and returns complete frames.

    It reads frames where their bytes are received, so the bytes of an entry are copied once, into the frame. Bytes that
    are not taken are held: an incomplete frame, and frames that wait.
    """

    def __init__(self, max_frame_bytes: int, kinds: Container[int]) -> None:
        """`kinds`: the types of commands that are expected before CONNECT."""
        self._held = bytearray()
        self._piece = _NOTHING
        """Received bytes after those that are held. Empty unless what is held is nothing or one complete frame."""
        self._max_bytes = max_frame_bytes
        self._kinds = kinds
        self._unexpected = "before CONNECT"

    def accept_commands(self, max_frame_bytes: int, kinds: Container[int]) -> None:
        """Accept from now on frames up to `max_frame_bytes` with commands of the types `kinds`, after CONNECT."""
        self._max_bytes = max_frame_bytes
        self._kinds = kinds
        self._unexpected = "that a client does not send"

    def add_bytes(self, piece: memoryview) -> None:
        """Add received bytes. The caller must not change them before it calls `copy_unread_bytes`."""
        self._piece = piece[self._fill_held_frame(piece) :] if self._held else piece

    def copy_unread_bytes(self) -> None:
        """Copy the bytes that no frame has used yet, so that the caller may change its buffer."""
        self._held += self._piece
        self._piece = _NOTHING

    def clear(self) -> None:
        """Drop all received bytes."""
        self._held = bytearray()
        self._piece = _NOTHING

    def _fill_held_frame(self, piece: memoryview) -> int:
        """Append the bytes of a piece that complete the held frame, or all if more than a frame is held.

        Return the number of bytes that were appended.
        """
        held = self._held
        count = max(0, _SIZE.size - len(held))
        held += piece[:count]
        lacking = self._first_frame_size - len(held)
        if lacking >= 0:
            end = count + lacking
            held += piece[count:end]
            return end
        held += piece[count:]
        return len(piece)

    @property
    def has_complete_frame(self) -> bool:
        """Return whether `take_frame` would return a frame, or raise an error."""
        size = self._first_frame_size
        return bool(size) and (size <= len(self._held or self._piece) or size > _SIZE.size + self._max_bytes)

    @property
    def incomplete_frame_full_size(self) -> int:
        """Return the whole size of the first frame if it is incomplete; 0: it is complete, or its size is not known."""
        return 0 if self.has_complete_frame else self._first_frame_size

    @property
    def _first_frame_size(self) -> int:
        """Return the size of the first frame; 0: its size is not known yet."""
        front = self._held or self._piece
        return _SIZE.size + int(_SIZE.unpack_from(front)[0]) if len(front) >= _SIZE.size else 0

    def take_frame(self) -> Frame | None:
        """Remove and return the next frame; None: it is not complete yet. Raise MalformedFrame."""
        held = self._held
        front = held or self._piece
        end = self._first_frame_size
        if end and not _SIZE.size <= end - _SIZE.size <= self._max_bytes:
            raise MalformedFrame(f"a frame of {end - _SIZE.size} bytes: {_SIZE.size} to {self._max_bytes} are allowed")
        if len(front) >= _SIZES.size + 2:
            self._check_type(front[_SIZES.size], front[_SIZES.size + 1])
        if not end or end > len(front):
            return None
        if end < _SIZES.size + 2:
            raise MalformedFrame("a frame without a command")
        (size,) = _SIZE.unpack_from(front, _SIZE.size)
        command_end = _SIZES.size + size
        if size < 2 or command_end > end:
            raise MalformedFrame(f"a command of {size} bytes in a frame of {end - _SIZE.size}")
        with memoryview(front) as view:
            frame = Frame(front[_SIZES.size + 1], bytes(view[_SIZES.size : command_end]), bytes(view[command_end:end]))
        if held:
            del held[:end]
        else:
            self._piece = self._piece[end:]
        return frame

    def _check_type(self, tag: int, kind: int) -> None:
        """Raise MalformedFrame unless a command begins with its type, `tag` and `kind`, and that type is expected."""
        if tag != _TYPE_TAG:
            raise MalformedFrame("a frame whose command does not begin with its type")
        if kind not in self._kinds:
            raise MalformedFrame(f"a command of type {kind} {self._unexpected}")


def build_frame(command: bytes, entry: bytes = b"") -> FramePieces:
    """Return the frame of a command and an entry in two pieces.

    The second piece is empty unless the entry is large, which is not copied then.
    """
    head = _SIZES.pack(_SIZE.size + len(command) + len(entry), len(command)) + command
    return (head + entry, b"") if len(entry) < _COPIED_BYTES else (head, entry)
