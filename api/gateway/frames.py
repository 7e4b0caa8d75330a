"""Frames of Pulsar's binary protocol: bytes from a socket become commands, commands become bytes.

    4 size of all that follows | 4 size of the command | BaseCommand [ | an entry, as it is stored ]

Numbers are big-endian. An entry (storage/entries/entry.py) follows SEND and MESSAGE only, and is not looked into here.
A frame that is larger than allowed, or is no command, ends the connection: what follows it cannot be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from api.gateway.pulsar_api_pb2 import BaseCommand

_SIZE = Struct(">I")
_SIZES = Struct(">II")
_COPIED_BYTES = 16 << 10
PADDING_BYTES = 10 << 10
"""What a frame may have besides the largest message, as in Pulsar (MESSAGE_SIZE_FRAME_PADDING)."""


_WITHOUT_TEXT = frozenset((BaseCommand.SEND, BaseCommand.ACK, BaseCommand.FLOW, BaseCommand.PING, BaseCommand.PONG))
"""Commands of which there are many, and that have no text."""


class MalformedFrame(Exception):
    """Bytes that are no frame of the protocol."""


class Frame(NamedTuple):
    """A command, and the entry behind it, if any."""

    command: BaseCommand
    entry: bytes


class FrameParser:
    """Takes bytes as they come, and gives the frames that are complete. Holds at most one frame, and what came last."""

    def __init__(self, max_message_bytes: int) -> None:
        self.allow(max_message_bytes)
        self._pending = bytearray()

    def allow(self, max_message_bytes: int) -> None:
        """Take messages up to that size from now on."""
        self._most = max_message_bytes + PADDING_BYTES

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that `data` completes. Raises MalformedFrame behind those before it."""
        pending = self._pending
        pending += data
        at = 0
        try:
            while len(pending) - at >= _SIZE.size:
                (size,) = _SIZE.unpack_from(pending, at)
                if not _SIZE.size <= size <= self._most:
                    raise MalformedFrame(f"a frame of {size} bytes: {_SIZE.size} to {self._most} are allowed")
                end = at + _SIZE.size + size
                if end > len(pending):
                    break
                with memoryview(pending) as view:
                    frame = _parsed(bytes(view[at + _SIZE.size : end]))
                at = end
                yield frame
        finally:
            del pending[:at]


def _parsed(data: bytes) -> Frame:
    (size,) = _SIZE.unpack_from(data)
    end = _SIZE.size + size
    if end > len(data):
        raise MalformedFrame(f"a command of {size} bytes in a frame of {len(data)}")
    try:
        command = BaseCommand.FromString(data[_SIZE.size : end])
    except DecodeError as error:
        raise MalformedFrame("a frame that holds no command") from error
    if not command.IsInitialized():
        raise MalformedFrame("a command that leaves out what it must hold")
    if command.type not in _WITHOUT_TEXT and not _is_text(command):
        raise MalformedFrame("a command with a text that is not UTF-8")
    return Frame(command, data[end:])


def _is_text(message: Message) -> bool:
    """Whether all texts of a command are UTF-8: protobuf gives others as bytes."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        if field.type == FieldDescriptor.TYPE_STRING:
            if not all(isinstance(item, str) for item in values):
                return False
        elif field.type == FieldDescriptor.TYPE_MESSAGE and not all(map(_is_text, values)):
            return False
    return True


def encoded(command: BaseCommand, entry: bytes = b"") -> tuple[bytes, bytes]:
    """A frame, in two pieces if its entry is large: it is not copied then."""
    described = command.SerializeToString()
    head = _SIZES.pack(_SIZE.size + len(described) + len(entry), len(described)) + described
    return (head + entry, b"") if len(entry) < _COPIED_BYTES else (head, entry)
