"""Lives of processes that write, seal and read one topic's tail, and are killed: `python -m tests.faults.tail_lives`.

This driver of the random engine is the parent: it forks writers, sealers and a reader, kills writers and sealers
(SIGKILL) at moments that chance picks from a seed, and forks others that continue in the same topic. It opens nothing
itself and has one thread, so each child opens its own database, store and log.

    writer    three threads append entries of one to three messages, and report each acknowledgement through a pipe;
              segments are so small that they roll all the time
    sealer    seals, sweeps, sometimes compacts, beside a writer or after its death
    reader    follows the topic through all lives, and reports each message
    checker   with all others dead, compares raw with the model (engine/history.py): what was acknowledged, and at most
              one entry more of each thread of a dead writer, its last

All share one clock: the machine's, and what the parent adds to it when a writer dies, so that its lease is over. One
line of figures is printed in the end, or an error, with exit code 1.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import select
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import NoReturn

from compactor.engines.engine import InProcessEngine
from storage.checksums import crc32c
from storage.entries.chunk_assembler import assemble_messages
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
from tests.entries import batch, single
from tests.faults.engine.checks import check_log, check_order, check_stored
from tests.faults.engine.history import History, ReadMessage, Sender, SentMessage, Traits
from tests.faults.engine.report import Report, Violation, line_of
from tests.faults.engine.schedule import choose
from tests.workbench import TINY, Workbench, view

THREADS = 3
KEYS = 20
SEGMENT_BYTES = 1 << 14
LONGEST_ENTRY = 3
WRITER_AND_SEALER = ("writer", "sealer")
VICTIMS: list[tuple[tuple[str, ...], float]] = [(("writer",), 65), (("sealer",), 25), (WRITER_AND_SEALER, 10)]
CHECK_EVERY = 25
HEARD_WITHIN_SECONDS = 120
ACK = struct.Struct("<IBIBqqqi")
"""Life, thread, number, messages; offset, ledger, entry, batch index of the first message."""
READ = struct.Struct("<qqqii")
"""Offset, ledger, entry, batch index, and CRC32C of the payload (as signed) of a message that the reader read."""


class SharedClock:
    """A clock with the machine's time, what the parent has added to it for all, and what this process has waited.

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
        """Add milliseconds to the time of all processes."""
        self._added[:8] = (int.from_bytes(self._added[:8], "little") + milliseconds).to_bytes(8, "little")


@dataclass(frozen=True)
class Entry:
    """The `number`th entry that one thread of one life appends; its contents follow from the three numbers."""

    life: int
    thread: int
    number: int

    @property
    def pairs(self) -> list[tuple[bytes | None, bytes | None]]:
        chance = random.Random(f"{self.life} {self.thread} {self.number}")
        return [(b"key-%d" % chance.randrange(KEYS), self._payload(chance, n)) for n in range(chance.choice([1, 1, 3]))]

    def _payload(self, chance: random.Random, index: int) -> bytes:
        return f"{self}.{index} ".encode() + chance.randbytes(chance.randrange(700))

    def encoded(self, now_ms: int) -> bytes:
        pairs = self.pairs
        return single(*pairs[0], now_ms) if len(pairs) == 1 else batch(*pairs, publish_time=now_ms)

    def __str__(self) -> str:
        return f"{self.life}.{self.thread}.{self.number}"


@dataclass
class Child:
    """A process that was forked, and the bytes that it reported through its pipe."""

    name: str
    pid: int
    pipe: int
    buffer: bytes = b""

    def drain(self) -> None:
        """Read what it has reported so far."""
        while select.select([self.pipe], [], [], 0)[0]:
            if not (more := os.read(self.pipe, 1 << 16)):
                return
            self.buffer += more

    def await_report(self) -> None:
        """Wait for its first report, or its end. Raises AssertionError if neither comes, however busy the machine."""
        if not self.buffer:
            ready, _, _ = select.select([self.pipe], [], [], HEARD_WITHIN_SECONDS)
            assert ready, f"a {self.name} was silent for {HEARD_WITHIN_SECONDS} s"
            self.drain()


@dataclass
class Parent:
    """Forks and kills the other processes. `history`: the model of the topic; `offsets`: of acknowledged messages."""

    folder: Path
    clock: SharedClock
    chance: random.Random
    history: History
    offsets: dict[str, int] = field(default_factory=dict)
    senders: dict[tuple[int, int], Sender] = field(default_factory=dict)
    lives: int = 0
    messages: int = 0
    living: set[int] = field(default_factory=set)

    @property
    def counts(self) -> Counter[str]:
        return self.history.report.counts

    def fork(self, name: str, live: Callable[[Workbench, int], object]) -> Child:
        """Fork a child that opens everything for itself and reports through a pipe."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            _live(self.folder, self.clock, live, writing)
        os.close(writing)
        self.living.add(pid)
        return Child(name, pid, reading)

    def end(self) -> None:
        """Kill every child that still lives."""
        for pid in self.living:
            os.kill(pid, signal.SIGKILL)

    def kill(self, child: Child) -> None:
        """Kill a child (SIGKILL), and note what it had reported. Raises AssertionError if it had ended by itself."""
        os.kill(child.pid, signal.SIGKILL)
        self.reap(child)
        self.counts["kills"] += 1
        self.history.note(f"{child.name} {self.lives} killed")
        if child.name == "writer":
            self.clock.add(LEASE_TTL_MS + 1)

    def reap(self, child: Child) -> bytes:
        """Wait for the end of a child; return what it had reported. Raises AssertionError if that was an error."""
        while more := os.read(child.pipe, 1 << 16):
            child.buffer += more
        os.close(child.pipe)
        _, status = os.waitpid(child.pid, 0)
        self.living.discard(child.pid)
        marker = child.buffer.find(b"error: ")
        assert marker < 0, f"a {child.name} failed: {child.buffer[marker:].decode(errors='replace')}"
        by_itself = os.WIFEXITED(status)
        assert not by_itself or child.name not in ("writer", "reader"), f"a {child.name} ended by itself"
        if child.name == "writer":
            self._note_acknowledgements(child.buffer)
        return child.buffer

    def _note_acknowledgements(self, report: bytes) -> None:
        """Add a dead writer's messages to the model: those acknowledged, and those of each thread's next entry."""
        following = dict.fromkeys(range(THREADS), 0)
        for at in range(0, len(report) - ACK.size + 1, ACK.size):
            life, thread, number, count, offset, ledger, entry, index = ACK.unpack_from(report, at)
            assert number == following[thread], "a thread's acknowledgements are not in the order of its appends"
            following[thread] += 1
            sent = self._sent(Entry(life, thread, number))
            assert count == len(sent)
            for n, message in enumerate(sent):
                self.offsets[message.serial] = offset + n
                self.history.acknowledge(message, MessageId(ledger, entry, -1, index + n))
            self.counts["entries"] += 1
        for thread, number in following.items():
            self._sent(Entry(self.lives, thread, number))

    def _sent(self, entry: Entry) -> list[SentMessage]:
        """Return an entry's messages, and add them to the model as sent."""
        sender = self.senders.setdefault((entry.life, entry.thread), Sender())
        messages = []
        for n, (key, payload) in enumerate(entry.pairs):
            number = entry.number * LONGEST_ENTRY + n
            message = SentMessage(f"{entry}.{n}", _text(key), _text(payload), sender, number, self.history.now(), 0.0)
            self.history.sent[message.serial] = message
            messages.append(message)
        return messages

    def writer(self) -> Child:
        self.lives += 1
        life = self.lives
        return self.fork("writer", lambda bench, pipe: write(bench, life, pipe))

    def sealer(self) -> Child:
        seed = self.chance.randrange(1 << 30)
        return self.fork("sealer", lambda bench, _: keep(bench, random.Random(seed)))

    def check(self, reads: list[tuple[int, ...]] | None = None) -> None:
        """Compare raw with the model, with writers and sealers dead. `reads`: of the reader, at the end of all."""
        checker = self.fork("checker", lambda bench, pipe: os.write(pipe, b"%d" % self._check(bench, reads)))
        self.messages = int(self.reap(checker))

    def _check(self, bench: Workbench, reads: list[tuple[int, ...]] | None) -> int:
        """Compare in a child, whose changes of the model do not last; return the number of messages."""
        history, topic = self.history, bench.topic()
        if reads is not None:
            list(topic.log_manager().seal(topic.record, retry_abandoned=True))
            topic.log_manager().roll_and_seal(topic.record)
        stored = list(assemble_messages(topic.read(StartOffset(0)), -1))
        since = history.now()
        raw = [_read(message) for message in stored]
        lengths: Counter[Entry] = Counter()
        for message in raw:
            history.check_read(message, since)
            offset = self.offsets.get(message.serial, message.offset)
            assert offset == message.offset, f"{message} was acknowledged at offset {offset}"
            lengths[Entry(*map(int, message.serial.split(".")[:3]))] += 1
        for entry, length in lengths.items():
            assert length == len(entry.pairs), f"{length} messages of entry {entry} are stored"
        ids = [message.id for message in raw]
        assert ids == sorted(set(ids)), "ids do not ascend"
        assert not raw or raw[0].offset == 0, "offsets do not begin with 0"
        check_log(history, "raw", raw, raw, None)
        check_stored(history, raw)
        check_order(history, {"raw": raw})
        assert not history.report.violations
        if reads is not None:
            assert reads == [_packed(message) for message in stored[: len(reads)]], "the reader read something else"
            bench.compact(topic)
            assert view(list(topic.messages(read_compacted=True))) == view(stored)
            assert all(item.state is SegmentState.SEALED for item in bench.metadata.segments.of_topic(topic.record.id))
        return len(raw)

    def run(self, kills: int) -> None:
        """Let processes live, and kill so many of them."""
        self.reap(self.fork("founder", create))
        reader = self.fork("reader", follow)
        writer, sealer = self.writer(), self.sealer()
        check_at = CHECK_EVERY
        while self.counts["kills"] < kills:
            time.sleep(self.chance.choice([0.02, 0.1, 0.2, 0.4]) * self.chance.random())
            writer.drain()
            reader.drain()
            victims = choose(self.chance, VICTIMS)
            checks = self.counts["kills"] >= check_at
            if checks:
                victims = WRITER_AND_SEALER
            if writer.name in victims:
                if self.chance.random() < 0.75:
                    writer.await_report()
                    self.counts["heard"] += 1
                self.kill(writer)
            if sealer.name in victims:
                self.kill(sealer)
            if checks:
                self.check()
                check_at = self.counts["kills"] + CHECK_EVERY
            if sealer.name in victims:
                sealer = self.sealer()
            if writer.name in victims:
                writer = self.writer()
        self.kill(writer)
        self.kill(sealer)
        self.check()
        reads = self._end_reader(reader)
        self.clock.add(5 * LEASE_TTL_MS)
        self.check(reads)
        self.counts.update(lives=self.lives, messages=self.messages, read=len(reads))

    def _end_reader(self, reader: Child) -> list[tuple[int, ...]]:
        """Wait until the reader has read all messages, and kill it; return them."""
        deadline = time.monotonic() + 30
        while len(reader.buffer) // READ.size < self.messages and time.monotonic() < deadline:
            select.select([reader.pipe], [], [], 1)
            reader.drain()
        os.kill(reader.pid, signal.SIGKILL)
        self.reap(reader)
        whole = len(reader.buffer) // READ.size * READ.size
        reads = list(READ.iter_unpack(reader.buffer[:whole]))
        assert len(reads) >= self.messages, "the reader does not come to the end"
        return reads


def create(bench: Workbench, _: int) -> None:
    """Create the topic, before the first writer."""
    bench.metadata.upgrade()
    record = bench.topic().record
    for name, value in {"segment.bytes": SEGMENT_BYTES, "file.delete.delay.ms": 1}.items():
        bench.metadata.policies.change([topic_scope(record)], {name: value})
    assert bench.log.uid


def write(bench: Workbench, life: int, pipe: int) -> None:
    """Append until killed."""
    failed: list[str] = []

    def append(thread: int) -> None:
        try:
            for number in range(1 << 30):
                entry = Entry(life, thread, number)
                answer = log.append(entry.encoded(bench.clock.now_ms()))
                where = answer.first.message_id
                at = (where.ledger_id, where.entry_id, where.batch_index)
                os.write(pipe, ACK.pack(life, thread, number, answer.messages, answer.first.offset, *at))
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
            list(topic.log_manager().seal(topic.record, retry_abandoned=True))
            topic.log_manager().remove_sealed_files()
            if chance.random() < 0.02:
                bench.compact(topic)
        time.sleep(0.01)


def follow(bench: Workbench, pipe: int) -> None:
    """Read the topic from its start until killed, and report each message."""
    topic = bench.topic()
    reader = topic.reader()
    while True:
        for page in reader.poll():
            for message in assemble_messages(iter([page]), -1):
                os.write(pipe, READ.pack(*_packed(message)))
        time.sleep(0.01)


def _packed(message: Message) -> tuple[int, ...]:
    at = message.message_id
    assert message.payload is not None
    checksum = crc32c(message.payload)
    signed = checksum - (1 << 32) if checksum >= 1 << 31 else checksum
    return message.offset, at.ledger_id, at.entry_id, at.batch_index, signed


def _read(message: Message) -> ReadMessage:
    """Return a message as the model compares it; its payload begins with its serial."""
    value = _text(message.payload)
    return ReadMessage(value.split(" ", 1)[0], message.message_id, _text(message.key), value, message.offset)


def _text(data: bytes | None) -> str:
    assert data is not None
    return data.decode("latin-1")


@contextmanager
def opened(folder: Path, clock: SharedClock) -> Iterator[Workbench]:
    metadata = MetadataStore(f"sqlite:///{folder / 'metadata.db'}", clock)
    try:
        store = open_store((folder / "objects").as_uri())
        yield Workbench(metadata, store, clock, LogDirectory(folder / "log"), InProcessEngine(), TINY)
    finally:
        metadata.close()


def _live(folder: Path, clock: SharedClock, live: Callable[[Workbench, int], object], pipe: int) -> NoReturn:
    """Carry out a child's work, report its error, and end its process."""
    try:
        topic_log.POLL_SECONDS = 0.02
        with opened(folder, clock) as bench:
            live(bench, pipe)
    except BaseException:
        os.write(pipe, f"error: {traceback.format_exc()}".encode())
    os._exit(0)


def main() -> int:
    """0 if everything held."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.tail_lives", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("folder", type=Path, help="an empty one")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="what chance begins with")
    arguments = parser.parse_args()
    clock = SharedClock(mmap.mmap(-1, mmap.PAGESIZE))
    replay = f"python -m tests.faults.tail_lives FOLDER --kills {arguments.kills} --seed {arguments.seed}"
    report = Report(replay)
    parent = Parent(arguments.folder, clock, random.Random(arguments.seed), History("tail", Traits(), report))
    try:
        parent.run(arguments.kills)
    except (AssertionError, Violation) as error:
        print(report.failure(str(error)), file=sys.stderr)
        return 1
    finally:
        parent.end()
    print(line_of(report.counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
