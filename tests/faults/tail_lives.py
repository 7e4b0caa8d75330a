"""Lives of processes that write, seal and read one topic's tail, and are killed: `python -m tests.faults.tail_lives`.

The process that is started is the parent: it forks writers, sealers and a reader, kills writers and sealers (SIGKILL)
at moments that chance picks from a seed, and forks others that continue in the same topic. It opens nothing itself and
has one thread, so each child opens its own database, store and log.

    writer    three threads append entries of one to three messages, each entry told through a pipe once it is
              acknowledged; segments are so small that they roll all the time
    sealer    seals, sweeps, sometimes compacts; all with the writer at work, or dead
    reader    follows the topic through all lives, and tells what it was given
    checker   now and then, when the others are dead: raw is what was acknowledged, and besides at most one entry of
              each thread of a dead writer, its last; ids ascend, offsets are dense

All share one clock: the machine's, and what the parent adds to it when a writer dies, so that its lease is over.
One line of JSON is printed in the end: kills, messages, segments; or an error, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import select
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import NoReturn

from compactor.engines.engine import InProcessEngine
from storage.checksums import crc32c
from storage.entries.chunk_assembler import messages
from storage.errors import CompactionRunning, Fenced, LeaseHeld, NotFound
from storage.log import topic_log
from storage.log.directory import LogDirectory
from storage.metadata.liveness import LEASE_TTL_MS
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import SegmentState
from storage.metadata.store import MetadataStore
from storage.model import Message, MessageId
from storage.objects.registry import open_store
from storage.positions import StartOffset
from tests.entries import batch, one
from tests.workbench import TINY, Workbench, view

THREADS = 3
KEYS = 20
SEGMENT_BYTES = 1 << 14
CHECK_EVERY = 25
HEARD_WITHIN_SECONDS = 120
ACK = struct.Struct("<IBIBqqqii")
"""Life, thread, number, messages; offset, ledger, entry, batch index; CRC32C of its payloads (as signed)."""
GIVEN = struct.Struct("<qqqii")
"""Offset, ledger, entry, batch index, CRC32C of the payload: what the reader was given."""


class SharedClock:
    """The machine's time, what the parent has added to it for all, and what this process has waited for.

    A wait takes a tenth of its time.
    """

    def __init__(self, added: mmap.mmap) -> None:
        self._added = added
        self._waited_ms = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int.from_bytes(self._added[:8], "little") + self._waited_ms

    def wait(self, seconds: float) -> None:
        time.sleep(seconds / 10)
        self._waited_ms += round(seconds * 900)

    def add(self, milliseconds: int) -> None:
        """For everybody."""
        self._added[:8] = (int.from_bytes(self._added[:8], "little") + milliseconds).to_bytes(8, "little")


@dataclass(frozen=True)
class Entry:
    """What one thread of one life appends as its `number`th; everything follows from that."""

    life: int
    thread: int
    number: int

    @property
    def pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        chance = random.Random(f"{self.life} {self.thread} {self.number}")
        return [(b"key-%d" % chance.randrange(KEYS), self._payload(chance, n)) for n in range(chance.choice([1, 1, 3]))]

    def _payload(self, chance: random.Random, index: int) -> bytes:
        return b"%d %d %d %d " % (self.life, self.thread, self.number, index) + chance.randbytes(chance.randrange(700))

    def encoded(self, now_ms: int) -> bytes:
        pairs = self.pairs
        return one(*pairs[0], now_ms) if len(pairs) == 1 else batch(*pairs, publish_time=now_ms)

    @classmethod
    def of(cls, message: Message) -> tuple[Entry, int]:
        """The entry that a message is of, and which of its messages it is."""
        assert message.payload is not None
        life, thread, number, index = map(int, message.payload.split(b" ", 4)[:4])
        return cls(life, thread, number), index


@dataclass(frozen=True)
class Acknowledged:
    """What a writer was told."""

    first: tuple[int, MessageId]
    messages: int
    checksum: int


@dataclass
class Child:
    """A process that was forked, and what it says."""

    name: str
    pid: int
    said: int
    buffer: bytes = b""
    ended: bool = False

    def drain(self) -> None:
        """Take what it has said so far."""
        while select.select([self.said], [], [], 0)[0]:
            if not (more := os.read(self.said, 1 << 16)):
                return
            self.buffer += more

    def hear(self) -> None:
        """Wait for its first message, or its end. Raises AssertionError if neither comes, however busy the machine."""
        if not self.buffer:
            heard, _, _ = select.select([self.said], [], [], HEARD_WITHIN_SECONDS)
            assert heard, f"a {self.name} was silent for {HEARD_WITHIN_SECONDS} s"
            self.drain()


@dataclass
class Parent:
    """Forks, kills, and keeps what was acknowledged."""

    folder: Path
    clock: SharedClock
    chance: random.Random
    acknowledged: dict[Entry, Acknowledged] = field(default_factory=dict)
    lives: int = 0
    kills: int = 0
    heard: int = 0
    checked_to: int = 0
    given: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    living: set[int] = field(default_factory=set)
    reader: Child | None = None

    def fork(self, name: str, live: Callable[[Workbench, int], object]) -> Child:
        """A child that opens everything for itself and says things through a pipe."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _live(self.folder, self.clock, live, writing)
        os.close(writing)
        self.living.add(pid)
        return Child(name, pid, reading)

    def end(self) -> None:
        """Nobody outlives the parent."""
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)

    def kill(self, child: Child) -> None:
        """SIGKILL, and what it had said. Raises AssertionError if it had ended by itself, with why."""
        os.kill(child.pid, signal.SIGKILL)
        self.reap(child)
        self.kills += 1
        if child.name == "writer":
            self.clock.add(LEASE_TTL_MS + 1)

    def reap(self, child: Child) -> bytes:
        """Wait for its end; what it had said. Raises AssertionError if that was an error."""
        while more := os.read(child.said, 1 << 16):
            child.buffer += more
        os.close(child.said)
        _, status = os.waitpid(child.pid, 0)
        self.living.discard(child.pid)
        marker = child.buffer.find(b"error: ")
        assert marker < 0, f"a {child.name} failed: {child.buffer[marker:].decode(errors='replace')}"
        by_itself = os.WIFEXITED(status)
        assert not by_itself or child.name not in ("writer", "reader"), f"a {child.name} ended by itself"
        if child.name == "writer":
            self._note(child.buffer)
        return child.buffer

    def _note(self, said: bytes) -> None:
        for at in range(0, len(said) - ACK.size + 1, ACK.size):
            life, thread, number, count, offset, ledger, entry, index, checksum = ACK.unpack_from(said, at)
            answer = Entry(life, thread, number)
            assert answer not in self.acknowledged
            self.acknowledged[answer] = Acknowledged((offset, MessageId(ledger, entry, -1, index)), count, checksum)

    def writer(self) -> Child:
        self.lives += 1
        life = self.lives
        return self.fork("writer", lambda bench, said: write(bench, life, said))

    def sealer(self) -> Child:
        seed = self.chance.randrange(1 << 30)
        return self.fork("sealer", lambda bench, said: keep(bench, random.Random(seed)))

    def check(self, *, over: bool = False) -> None:
        """With writers and sealers dead. `over`: from the beginning, and compacted, too."""
        first = 0 if over else self.checked_to
        answer = self.reap(
            self.fork("checker", lambda bench, said: os.write(said, b"%d" % self.checker(bench, first, over)))
        )
        self.checked_to = int(answer)

    def checker(self, bench: Workbench, first: int, over: bool) -> int:
        """In a child: compare what is read with what was acknowledged; the offset up to which it was."""
        topic = bench.topic()
        if over:
            list(topic.log_manager().seal(topic.record, again=True))
            topic.log_manager().roll_and_seal(topic.record)
        found = list(messages(topic.read(StartOffset(first)), -1)) if topic.snapshot_reader().end >= first else []
        assert [m.offset for m in found] == list(range(first, first + len(found))), "offsets are not dense"
        ids = [m.message_id for m in found]
        assert ids == sorted(set(ids)), "ids do not ascend"
        counts: dict[tuple[int, int], int] = {}
        for entry in self.acknowledged:
            counts[entry.life, entry.thread] = max(counts.get((entry.life, entry.thread), 0), entry.number + 1)
        assert len(self.acknowledged) == sum(counts.values()), "threads acknowledge one after the other"
        seen: set[Entry] = set()
        at = 0
        while at < len(found):
            entry, index = Entry.of(found[at])
            pairs = entry.pairs
            assert index == 0, f"{entry} begins in its middle"
            assert entry not in seen, f"{entry} is there twice"
            assert [(m.key, m.payload) for m in found[at : at + len(pairs)]] == pairs, f"{entry} is not what was sent"
            if (answer := self.acknowledged.get(entry)) is None:
                last = counts.get((entry.life, entry.thread), 0)
                assert entry.number == last, f"{entry} is there, and its thread had been told of {last} entries only"
            else:
                assert answer.first == (found[at].offset, found[at].message_id), f"{entry} is elsewhere than was told"
                assert answer.messages == len(pairs)
                assert answer.checksum == _checksum(pairs)
            seen.add(entry)
            at += len(pairs)
        lost = [e for e, answer in self.acknowledged.items() if answer.first[0] >= first and e not in seen]
        assert not lost, f"{len(lost)} entries were acknowledged and are lost, {lost[:3]}"
        if over:
            given = [_given(message) for message in found[: len(self.given)]]
            assert self.given == given, "the reader was given something else"
            bench.compact(topic)
            assert view(list(topic.messages(read_compacted=True))) == view(found)
            assert all(item.state is SegmentState.SEALED for item in bench.metadata.segments.of_topic(topic.record.id))
        return first + len(found)

    def run(self, kills: int) -> dict[str, int]:
        """So many kills, and what came of them."""
        self.reap(self.fork("founder", found))
        self.reader = self.fork("reader", follow)
        writer, sealer = self.writer(), self.sealer()
        check_at = CHECK_EVERY
        while self.kills < kills:
            time.sleep(self.chance.choice([0.02, 0.1, 0.2, 0.4]) * self.chance.random())
            writer.drain()
            self.reader.drain()
            who = self.chance.random()
            over = self.kills >= check_at
            if who < 0.75 or over:
                if self.chance.random() < 0.75:
                    writer.hear()
                    self.heard += 1
                self.kill(writer)
            if who >= 0.65 or over:
                self.kill(sealer)
                sealer = self.sealer() if not over else sealer
            if over:
                self.check()
                check_at = self.kills + CHECK_EVERY
                sealer = self.sealer()
            if who < 0.75 or over:
                writer = self.writer()
        self.kill(writer)
        self.kill(sealer)
        self.check()
        self._end_reader()
        self.clock.add(5 * LEASE_TTL_MS)
        self.check(over=True)
        return {
            "kills": self.kills,
            "lives": self.lives,
            "heard": self.heard,
            "entries": len(self.acknowledged),
            "messages": self.checked_to,
            "given": len(self.given),
        }

    def _end_reader(self) -> None:
        """When it has been given what there is."""
        assert self.reader is not None
        answer = self.reader
        deadline = time.monotonic() + 30
        while len(answer.buffer) // GIVEN.size < self.checked_to and time.monotonic() < deadline:
            select.select([answer.said], [], [], 1)
            answer.drain()
        os.kill(answer.pid, signal.SIGKILL)
        self.reap(answer)
        whole = len(answer.buffer) // GIVEN.size * GIVEN.size
        self.given = list(GIVEN.iter_unpack(answer.buffer[:whole]))
        assert len(self.given) >= self.checked_to, "the reader does not come to the end"


def found(bench: Workbench, _: int) -> None:
    """The topic, before anybody writes."""
    bench.metadata.upgrade()
    record = bench.topic().record
    for name, value in {"segment.bytes": SEGMENT_BYTES, "file.delete.delay.ms": 1}.items():
        bench.metadata.policies.set(topic_scope(record), name, value)
    assert bench.log.uid


def write(bench: Workbench, life: int, said: int) -> None:
    """Append until killed."""
    failed: list[str] = []

    def append(thread: int) -> None:
        try:
            for number in range(1 << 30):
                entry = Entry(life, thread, number)
                answer = log.append(entry.encoded(bench.clock.now_ms()))
                where = answer.first.message_id
                os.write(
                    said,
                    ACK.pack(
                        life,
                        thread,
                        number,
                        answer.messages,
                        answer.first.offset,
                        where.ledger_id,
                        where.entry_id,
                        where.batch_index,
                        _checksum(entry.pairs),
                    ),
                )
        except BaseException:
            failed.append(traceback.format_exc())

    with bench.topic().append_log(2 * LEASE_TTL_MS) as log:
        threads = [Thread(target=append, args=[thread]) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    raise AssertionError("\n".join(failed))


def keep(bench: Workbench, chance: random.Random) -> None:
    """Seal, sweep, and sometimes compact, until killed."""
    topic = bench.topic()
    while True:
        with suppress(Fenced, LeaseHeld, CompactionRunning, NotFound):
            # It is killed by chance, and not by its segment: that is sealed though it looks like a killer of sealers.
            list(topic.log_manager().seal(topic.record, again=True))
            topic.log_manager().sweep()
            if chance.random() < 0.02:
                bench.compact(topic)
        time.sleep(0.01)


def follow(bench: Workbench, said: int) -> None:
    """Read on and on until killed."""
    topic = bench.topic()
    reader = topic.reader()
    while True:
        for page in reader.poll():
            for message in messages(iter([page]), -1):
                os.write(said, GIVEN.pack(*_given(message)))
        time.sleep(0.01)


def _given(message: Message) -> tuple[int, int, int, int, int]:
    place = message.message_id
    assert message.payload is not None
    return message.offset, place.ledger_id, place.entry_id, place.batch_index, _signed(crc32c(message.payload))


def _checksum(pairs: list[tuple[bytes | None, bytes | None]]) -> int:
    return _signed(crc32c(b"".join(payload or b"" for _, payload in pairs)))


def _signed(checksum: int) -> int:
    return checksum - (1 << 32) if checksum >= 1 << 31 else checksum


@contextmanager
def opened(folder: Path, clock: SharedClock) -> Iterator[Workbench]:
    metadata = MetadataStore(f"sqlite:///{folder / 'metadata.db'}", clock)
    try:
        store = open_store((folder / "objects").as_uri())
        yield Workbench(metadata, store, clock, LogDirectory(folder / "log"), InProcessEngine(), TINY)
    finally:
        metadata.close()


def _live(folder: Path, clock: SharedClock, live: Callable[[Workbench, int], object], said: int) -> NoReturn:
    """A child's whole life."""
    try:
        topic_log.POLL_SECONDS = 0.02
        with opened(folder, clock) as bench:
            live(bench, said)
    except BaseException:
        os.write(said, f"error: {traceback.format_exc()}".encode())
    os._exit(0)


def main() -> int:
    """0 if everything held."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.tail_lives", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("folder", type=Path, help="an empty one")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="what chance begins with")
    given = parser.parse_args()
    clock = SharedClock(mmap.mmap(-1, mmap.PAGESIZE))
    parent = Parent(given.folder, clock, random.Random(given.seed))
    try:
        print(json.dumps(parent.run(given.kills)))
    finally:
        parent.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
