"""A client that sends Pulsar's commands one by one, in ways that no library does."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from api.pulsar.pulsar_api_pb2 import BaseCommand
from tests.frames import FrameParser, encoded
from tests.servers.compactor_service import RunningService


class FrameClient:
    """A connection that sends commands and waits for the next that comes."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._parser = FrameParser()
        self._received: list[BaseCommand] = []

    def send(self, entry: bytes = b"", **command: object) -> None:
        self._socket.sendall(b"".join(encoded(BaseCommand(**command), entry)))

    def next(self) -> BaseCommand:
        while not self._received:
            data = self._socket.recv(1 << 16)
            assert data, "the service has closed the connection"
            self._received += [frame.command for frame in self._parser.feed(data)]
        return self._received.pop(0)

    def reset(self) -> None:
        """End the connection as a lost network does: nothing that is under way is waited for."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def ask(self, **command: object) -> BaseCommand:
        self.send(**command)
        return self.next()


@contextmanager
def frame_client(service: RunningService) -> Iterator[FrameClient]:
    url = urlsplit(service.broker_service_url)
    with socket.create_connection((str(url.hostname), int(url.port or 0)), 20) as opened:
        client = FrameClient(opened)
        connect = {"client_version": "test", "protocol_version": 20}
        assert client.ask(type=BaseCommand.CONNECT, connect=connect).type == BaseCommand.CONNECTED
        yield client
