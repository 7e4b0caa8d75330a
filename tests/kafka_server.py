"""A broker of Kafka in a thread, as far as mirrors ask one: versions, metadata, offsets, batches as stored.

It speaks with the product's own descriptions of requests and answers, so it proves nothing about Kafka's protocol; the
tests with an unmodified broker do that.
"""

from __future__ import annotations

import asyncio
import io
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from api.broker.mirroring import protocol
from tests.kafka_batches import Batch, encode, marker

_VERSIONS, _METADATA, _OFFSETS, _FETCH = 18, 3, 2, 1
_OUT_OF_RANGE, _UNKNOWN_ID = 1, 100
_EMPTY: dict[int, bytes] = {}


@dataclass
class Log:
    """A partition: batches as bytes, each with its first and last offset."""

    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    start: int = 0
    aborted: list[tuple[int, int]] = field(default_factory=list)
    """Producer id and first offset."""
    error_code: int = 0
    """The answer to fetches, unless it is 0."""
    leader: int = 7
    epoch: int = 0
    """The leader's, for new batches."""

    def end_of_epoch(self, epoch: int) -> int:
        """The offset after the last record of an epoch."""
        later = (first for first, _, data in self.batches if int.from_bytes(data[12:16], "big") > epoch)
        return next(later, self.end)

    @property
    def end(self) -> int:
        return self.batches[-1][1] + 1 if self.batches else self.start


@dataclass
class FakeTopic:
    """The only topic."""

    name: str
    partitions: list[Log]
    topic_id: bytes = b"\x01" * 16
    cluster_id: str = "a-cluster"

    def append(self, partition: int, batch: Batch) -> None:
        """Append a batch with the offsets that it has."""
        last = batch.last_offset if batch.last_offset is not None else batch.records[-1].offset
        first = batch.first_offset if batch.first_offset is not None else batch.records[0].offset
        log = self.partitions[partition]
        data = encode(batch)
        log.batches.append((first, last, data[:12] + log.epoch.to_bytes(4, "big") + data[16:]))

    def abort(self, partition: int, producer_id: int, first_offset: int) -> None:
        """Append the marker of an aborted transaction."""
        log = self.partitions[partition]
        log.aborted.append((producer_id, first_offset))
        log.batches.append((log.end, log.end, marker(log.end, producer_id, 0)))


class FakeKafka:
    """The broker. Change `topic` at any time."""

    def __init__(self, topic: FakeTopic) -> None:
        self.topic = topic
        self.port = 0
        self.fetches: list[dict[int, int]] = []
        """The offsets of each fetch, by partition."""
        self.refusals = 0
        """The number of next connections that are closed at once."""
        self.waits: list[int] = []
        """The longest time of each fetch, in milliseconds."""
        self.batches_of_fetch: int | None = None
        """The most batches of a partition in an answer."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fake-kafka", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.address}/{self.topic.name}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        """Close the connections and end."""
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self) -> None:
        self._ended = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        for writer in list(self._writers):
            writer.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        is_refused = self.refusals > 0
        self.refusals -= is_refused
        try:
            while not is_refused:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answer = await self._answer(await reader.readexactly(size))
                writer.write(struct.pack(">i", len(answer)) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, data: bytes) -> bytes:
        key, _, number, name_size = struct.unpack_from(">hhih", data)
        correlation, body = struct.pack(">i", number), data[10 + name_size :]
        if key == _VERSIONS:
            versions = [(_VERSIONS, 0, 0), (_METADATA, 12, 12), (_OFFSETS, 6, 6), (_FETCH, 13, 13)]
            listed = b"".join(struct.pack(">hhh", *version) for version in versions)
            return correlation + struct.pack(">hi", 0, len(versions)) + listed
        request = io.BytesIO(body[1:])  # after the tags of the header
        if key == _METADATA:
            answer: Any = self._metadata(request)
        elif key == _OFFSETS:
            answer = self._offsets(request)
        else:
            answer = await self._fetch(request)
        return correlation + b"\0" + bytes(answer.encode())

    def _metadata(self, request: io.BytesIO) -> Any:
        topic = self.topic
        ((_, name, _),) = protocol.MetadataRequest.decode(request).topics
        partitions = [(0, number, log.leader, 0, [7], [7], [], _EMPTY) for number, log in enumerate(topic.partitions)]
        code, uid = (0, topic.topic_id) if name == topic.name else (3, bytes(16))
        described = (code, name, uid, False, partitions if not code else [], 0, _EMPTY)
        brokers = [(7, "127.0.0.1", self.port, None, _EMPTY)]
        return protocol.MetadataResponse(0, brokers, topic.cluster_id, 7, [described], _EMPTY)

    def _offsets(self, request: io.BytesIO) -> Any:
        ((name, ((number, _, time, _),), _),) = protocol.ListOffsetsRequest.decode(request).topics
        log = self.topic.partitions[number]
        offset = log.start if time == protocol.EARLIEST else log.end
        return protocol.ListOffsetsResponse(0, [(name, [(number, 0, -1, offset, 0, _EMPTY)], _EMPTY)], _EMPTY)

    async def _fetch(self, request: io.BytesIO) -> Any:
        fetch = protocol.FetchRequest.decode(request)
        ((topic_id, partitions, _),) = fetch.topics
        offsets = {number: offset for number, _, offset, *_ in partitions}
        epochs = {number: epoch for number, _, _, epoch, *_ in partitions}
        self.fetches.append(offsets)
        self.waits.append(fetch.max_wait_ms)
        answers = [self._fetched(topic_id, number, offset, epochs[number]) for number, offset in offsets.items()]
        if not any(answer[1] or answer[7] or answer[8] for answer in answers):
            with suppress(TimeoutError):
                async with asyncio.timeout(min(0.05, fetch.max_wait_ms / 1000)):
                    await self._ended.wait()
        return protocol.FetchResponse(0, 0, 0, [(topic_id, answers, _EMPTY)], _EMPTY)

    def _fetched(self, topic_id: bytes, number: int, offset: int, epoch: int) -> tuple[Any, ...]:
        log = self.topic.partitions[number]
        code = _UNKNOWN_ID if topic_id != self.topic.topic_id else log.error_code
        if not code and not log.start <= offset <= log.end:
            code = _OUT_OF_RANGE
        tags = {}
        if not code and epoch >= 0 and log.end_of_epoch(epoch) < offset:
            tags[0] = struct.pack(">iqb", epoch, log.end_of_epoch(epoch), 0)
        batches = [] if code or tags else [content for _, last, content in log.batches if last >= offset]
        data = b"".join(batches[: self.batches_of_fetch])
        aborted = [(producer, first, _EMPTY) for producer, first in log.aborted]
        return (number, code, log.end, log.end, log.start, aborted, -1, data, tags)


@contextmanager
def fake_kafka(topic: FakeTopic) -> Iterator[FakeKafka]:
    """Run a broker with one topic."""
    broker = FakeKafka(topic)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
