"""Processes that append to a segment until they are killed.

`python -m tests.faults.log_writer` is a nursery (forks.py). The child recovers the segment, or makes it, and appends
through one SegmentWriter in every way that there is: threads that wait, a thread that submits, tasks of an event loop.
Of each acknowledgement it writes a record into a pipe, right after it got it, and one before all when the segment is
open; the nursery counts them and kills it.

An order is an `Order`, an answer a `Life`.
"""

from __future__ import annotations

import asyncio
import base64
import math
import os
import random
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Any

from storage.checksums import crc32c
from storage.clock import SystemClock
from storage.failpoints import Failpoint
from storage.log.group_commit import AppendOutcome
from storage.log.segment import AppendResult, FlushPolicy
from tests.failpoint_listeners import observed
from tests.faults.forks import Forks, live_in_child, serve
from tests.pulsar_entries import entry, metadata
from tests.segments import OneSegment, SteppedWriter

THREADS, TASKS = 3, 4
EACH = 60
"""Entries of each thread and task in a life without a kill."""
_RECORD = Struct(">QQII")


@dataclass(frozen=True)
class Order:
    """A life to lead. `create`: no row names the segment yet. Killed after that many records, or when `step` is reached
    for the `nth` time.
    """

    folder: str
    ledger_id: int
    first_offset: int
    create: bool
    life: int
    seed: int
    records: int | None = None
    step: str | None = None
    nth: int = 1
    flush_messages: int | None = 1

    @property
    def segment(self) -> OneSegment:
        return OneSegment(Path(self.folder), self.ledger_id, self.first_offset, clock=SystemClock())


@dataclass(frozen=True)
class Acknowledged:
    """The answer that a caller got for an entry, and the CRC32C of the appended bytes."""

    entry_id: int
    offset: int
    messages: int
    checksum: int


_OPENED = Acknowledged(0, 0, 0, 0)


@dataclass(frozen=True)
class Life:
    """The end of a writer's process (`signal` 0: by itself), and its acknowledged entries.

    It also holds whether the process had opened the segment (and would have committed its row), and the traceback of a
    failure, or "".
    """

    signal: int
    opened: bool
    acknowledged: list[Acknowledged]
    error: str


class LogNursery(Forks):
    """The forking process, seen from the tests. Use it in a `with` statement."""

    def __init__(self) -> None:
        super().__init__("tests.faults.log_writer")

    def run(self, order: Order) -> Life:
        """Lead a life, to its end."""
        answer = self.ask(asdict(order))
        records = base64.b64decode(answer["acknowledged"])
        whole = records[: len(records) - len(records) % _RECORD.size]
        positions = [Acknowledged(*record) for record in _RECORD.iter_unpack(whole)]
        return Life(answer["signal"], positions[:1] == [_OPENED], positions[1:], answer["error"])


def _raise_child(ordered: dict[str, Any]) -> dict[str, Any]:
    order = Order(**ordered)
    killed_after = math.inf if order.records is None else order.records * _RECORD.size
    number, written, error = live_in_child(lambda writing: _live(order, writing), killed_after)
    return {"signal": number, "acknowledged": base64.b64encode(written).decode(), "error": error}


def _live(order: Order, writing: int) -> None:
    with observed(_killer(order)):
        segment, policy = order.segment, FlushPolicy(order.flush_messages)
        with segment.create(policy) if order.create else segment.recover(policy) as writer:
            os.write(writing, _RECORD.pack(0, 0, 0, 0))
            _Appending(writer, order, writing).run()


def _killer(order: Order) -> Callable[[Failpoint], None]:
    remaining = [order.nth]
    lock = threading.Lock()

    def failpoint(step: Failpoint) -> None:
        if step.name == order.step:
            with lock:  # held while dying
                remaining[0] -= 1
                if remaining[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

    return failpoint


class _Appending:
    """Appends from many sides at once."""

    def __init__(self, writer: SteppedWriter, order: Order, writing: int) -> None:
        self._writer = writer
        self._order = order
        self._writing = writing
        self._failures: list[str] = []

    def run(self) -> None:
        sides = [lambda n=number: self._waiting(n) for number in range(THREADS - 1)]  # type: ignore[misc]
        sides += [lambda: self._submitting(THREADS - 1), lambda: asyncio.run(self._tasks())]
        threads = [threading.Thread(target=self._guarded, args=(side,)) for side in sides]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise AssertionError("\n".join(self._failures))

    def _guarded(self, side: Callable[[], object]) -> None:
        try:
            side()
        except BaseException:
            self._failures.append(traceback.format_exc())

    def _entries(self, side: int) -> list[bytes]:
        """Return the entries that a side appends in this life: sequence ids ascend over all lives."""
        chance = random.Random(f"{self._order.seed} {self._order.life} {side}")
        return [self._entry(chance, side, self._order.life * EACH + n) for n in range(EACH)]

    def _entry(self, chance: random.Random, side: int, sequence_id: int) -> bytes:
        size = chance.choice([0, 30, 1000, 5000]) if chance.random() < 0.97 else 200_000
        messages = chance.choice([None, 1, 3])
        described = metadata(producer_name=f"side-{side}", sequence_id=sequence_id)
        if messages is not None:
            described.num_messages_in_batch = messages
            size += 6 * messages
        return entry(described, chance.randbytes(size))

    def _waiting(self, side: int) -> None:
        for data in self._entries(side):
            self._report(data, self._writer.append(data))

    def _submitting(self, side: int) -> None:
        for data in self._entries(side):
            self._writer.submit(data, lambda answer, data=data: self._report(data, answer))  # type: ignore[misc]

    async def _tasks(self) -> None:
        loop = asyncio.get_running_loop()

        async def append_side(side: int) -> None:
            for data in self._entries(side):
                answered: asyncio.Future[AppendOutcome] = loop.create_future()
                self._writer.submit(data, partial(loop.call_soon_threadsafe, answered.set_result))
                self._report(data, await answered)

        await asyncio.gather(*(append_side(THREADS + number) for number in range(TASKS)))

    def _report(self, data: bytes, answer: AppendOutcome) -> None:
        assert isinstance(answer, AppendResult), answer
        first = answer.first
        os.write(self._writing, _RECORD.pack(first.message_id.entry_id, first.offset, answer.messages, crc32c(data)))


if __name__ == "__main__":
    serve(_raise_child)
