"""A process that appends is killed, at any moment, again and again: nothing that it had acknowledged is lost (L1, L2).

After each kill the segment begins with its former content; each acknowledged entry exists, under its acknowledged id
and offset; each producer's entries are in its order, without gaps before the last acknowledged one. And a
power loss: only what was flushed is left for sure, of the rest any bytes may be there, zeros, or nonsense.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from storage.checksums import crc32c
from storage.entries.decode import StoredEntry
from storage.errors import ObjectDamaged
from storage.failpoints import Failpoint
from storage.log.segment import FlushPolicy
from tests.failpoint_listeners import observed
from tests.faults.log_writer import EACH, TASKS, THREADS, Acknowledged, Life, LogNursery, Order
from tests.segments import EVERY_APPEND, OneSegment, message

LIVES_A_SEGMENT = 25
SECTOR = 512


@pytest.fixture(scope="module")
def log_nursery() -> Iterator[LogNursery]:
    with LogNursery() as nursery:
        yield nursery


class Watched:
    """A segment over its lives: what of it was acknowledged, and what it was seen to hold."""

    def __init__(self, segment: OneSegment) -> None:
        self.segment = segment
        self.acknowledged: dict[int, Acknowledged] = {}
        self.held: list[StoredEntry] = []
        self.opened = False

    def take(self, life: Life) -> None:
        """Record the answers that a life gave to its callers."""
        assert life.error == ""
        self.opened = self.opened or life.opened
        for answer in life.acknowledged:
            assert self.acknowledged.setdefault(answer.entry_id, answer) == answer

    def check(self, entries: list[StoredEntry]) -> None:
        """`entries`: all entries that the segment holds now."""
        assert [(item.entry_id, item.data) for item in entries[: len(self.held)]] == [
            (item.entry_id, item.data) for item in self.held
        ]
        offset = self.segment.first_offset
        orders: dict[str, list[int]] = {}
        for entry_id, stored in enumerate(entries):
            assert (stored.entry_id, stored.offset) == (entry_id, offset)
            assert stored.header is not None
            answer = self.acknowledged.get(entry_id)
            if answer is not None:
                assert (answer.offset, answer.messages) == (offset, stored.header.messages)
                assert answer.checksum == crc32c(stored.data)
            offset += stored.header.messages
            orders.setdefault(stored.header.producer, []).append(stored.header.sequence_id)
        assert set(self.acknowledged) <= set(range(len(entries)))
        for numbers in orders.values():
            assert numbers == sorted(set(numbers))
            lives: dict[int, list[int]] = {}
            for number in numbers:
                lives.setdefault(number // EACH, []).append(number % EACH)
            assert all(of_one == list(range(len(of_one))) for of_one in lives.values())
        self.held = entries

    def recovered(self) -> int:
        """Recover it here, and check; the offset that comes next."""
        with self.segment.recover() as writer:
            self.check(list(self.segment.reader().entries()))
            assert writer.entries == len(self.held)
            return writer.next_offset

    def order(self, life: int, seed: int, **how: Any) -> Order:
        segment = self.segment
        folder = str(segment.folder)
        return Order(folder, segment.ledger_id, segment.first_offset, not self.opened, life, seed, **how)

    def live(self, nursery: LogNursery, order: Order) -> Life:
        """Lead a life, and check what it leaves, as readers see it."""
        life = nursery.run(order)
        self.take(life)
        if self.opened:
            self.check(list(self.segment.reader().entries()))
        return life


def killed_again_and_again(nursery: LogNursery, folder: Path, kills: int, seed: int, flush_messages: int | None) -> int:
    """Kill that many writers; how many entries they had acknowledged."""
    chance = random.Random(seed)
    watched, total, number = Watched(OneSegment(folder, 1, 0)), 0, 0
    while kills:
        records = chance.choice([0, 1, 2 + chance.randrange(20), 2 + chance.randrange(300)])
        order = watched.order(number, seed, records=records, flush_messages=flush_messages)
        life = watched.live(nursery, order)
        number += 1
        kills -= life.signal == signal.SIGKILL  # a quick one may get to its end
        total += len(life.acknowledged)
        if watched.opened and chance.random() < 0.5:  # else the next life is the one to recover it
            next_offset = watched.recovered()
            if number >= watched.segment.ledger_id * LIVES_A_SEGMENT:
                assert len(watched.held) > LIVES_A_SEGMENT
                watched = Watched(OneSegment(folder, watched.segment.ledger_id + 1, next_offset))
    return total


@pytest.mark.parametrize("flush_messages", [1, 7, None])
def test_nothing_acknowledged_is_lost_by_a_kill(
    log_nursery: LogNursery, tmp_path: Path, flush_messages: int | None
) -> None:
    """Not even what is acknowledged before it is flushed: what a process has written the kernel keeps."""
    assert killed_again_and_again(log_nursery, tmp_path, 14, 1, flush_messages) > 100


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_nothing_acknowledged_is_lost_by_many_kills(log_nursery: LogNursery, tmp_path: Path, seed: int) -> None:
    assert killed_again_and_again(log_nursery, tmp_path, 60, seed, 1) > 1000


@pytest.mark.parametrize("nth", [1, 2, 30])
@pytest.mark.parametrize("step", [Failpoint.SEGMENT_FILE_CREATED, Failpoint.ENTRIES_WRITTEN, Failpoint.ENTRIES_FLUSHED])
def test_killed_at_a_step(log_nursery: LogNursery, tmp_path: Path, step: Failpoint, nth: int) -> None:
    watched = Watched(OneSegment(tmp_path, 1, 0))
    if nth > 1 and step is Failpoint.SEGMENT_FILE_CREATED:
        watched.live(log_nursery, watched.order(0, 5, records=nth))
    life = watched.live(log_nursery, watched.order(1, 5, step=step.name, nth=nth))
    created = step is Failpoint.SEGMENT_FILE_CREATED
    assert life.signal == (0 if created and nth > 1 else signal.SIGKILL)
    assert life.opened == (not created or nth > 1)
    if step is Failpoint.ENTRIES_FLUSHED:
        before = len(watched.held)
        watched.recovered()
        assert len(watched.held) > before or before == 0  # flushed without an answer: it exists nevertheless
    last = watched.live(log_nursery, watched.order(2, 5))
    assert (last.signal, len(last.acknowledged)) == (0, EACH * (THREADS + TASKS))
    assert len(watched.held) >= EACH * (THREADS + TASKS)


@pytest.mark.slow
def test_the_watcher_sees_what_is_lost(log_nursery: LogNursery, tmp_path: Path) -> None:
    """And what is changed, out of order, or given twice: or its checks could pass by looking at nothing."""
    watched = Watched(OneSegment(tmp_path, 1, 0))
    life = watched.live(log_nursery, watched.order(0, 3, records=100))
    held = watched.held
    answer = max(item.entry_id for item in life.acknowledged)
    swapped = [*held[:5], replace(held[6], entry_id=5), replace(held[5], entry_id=6), *held[7:]]
    other = replace(held[3], data=message(3))
    for wrong in (held[:answer], swapped, [*held[:3], other, *held[4:]], held[1:]):
        with pytest.raises(AssertionError):
            watched.check(wrong)
        watched.held = []
        with pytest.raises(AssertionError):
            watched.check(wrong)
        watched.held = held
    twice = replace(life.acknowledged[0], checksum=1)
    with pytest.raises(AssertionError):
        watched.take(replace(life, acknowledged=[twice]))
    watched.check(held)


# Power loss


class Disk:
    """The durable bytes of a segment's files. `pretends`: fdatasync reports success and does nothing."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, pretends: bool = False) -> None:
        self.durable: dict[str, bytes] = {}
        self._folder = folder
        patch.setattr(os, "fsync", self._recorded(os.fsync))
        patch.setattr(os, "fdatasync", (lambda _: None) if pretends else self._recorded(os.fdatasync))

    def _recorded(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def flush(descriptor: int) -> None:
            real(descriptor)
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.parent == self._folder:
                self.durable[path.name] = path.read_bytes()

        return flush

    def image(self, segment: OneSegment, target: Path, chance: random.Random) -> OneSegment:
        """Return a segment as a power loss may leave it: bytes that were not durable are kept, zeros or nonsense."""
        target.mkdir()
        remaining = OneSegment(target, segment.ledger_id, segment.first_offset)
        for path in (segment.files.log, segment.files.high_watermark, segment.files.index):
            now = path.read_bytes() if path.exists() else b""
            kept = self.durable.get(path.name, b"")
            if path != segment.files.log and chance.random() < 0.5:
                kept = chance.choice([b"", now])  # none is flushed while it is appended to
            image = bytearray(kept)
            for at in range(len(kept), chance.randint(len(kept), max(len(kept), len(now))), SECTOR):
                sector = now[at : at + SECTOR]
                image += chance.choice([sector, sector, bytes(len(sector)), chance.randbytes(len(sector))])
            (target / path.name).write_bytes(image)
        return remaining


def losses(folder: Path, seed: int, policy: FlushPolicy = EVERY_APPEND, *, pretends: bool = False) -> list[str]:
    """Append with a power loss at every step and after each append; everything that was found wrong."""
    chance = random.Random(seed)
    segment = OneSegment(folder / "segment", 1, 0)
    submitted: list[bytes] = []
    acknowledged, opened, problems, images = 0, False, [], count()

    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(segment.folder, patch, pretends=pretends)

        def look(step: Failpoint | None) -> None:
            nonlocal opened
            if not opened:
                return
            opened = False  # what is done with an image comes by steps, too
            try:
                compare(step)
            finally:
                opened = True

        def compare(step: Failpoint | None) -> None:
            seen = len(segment.visible())
            remaining = disk.image(segment, folder / f"image-{next(images)}", chance)
            try:
                with remaining.recover() as writer:
                    held = remaining.visible()
                    writer.append(message(10**6))
            except ObjectDamaged as error:
                problems.append(f"{step}: {error}")
                return
            if held != submitted[: len(held)]:
                problems.append(f"{step}: it holds what was never appended")
            if policy == EVERY_APPEND and len(held) < max(acknowledged, seen):
                problems.append(f"{step}: {len(held)} entries, {acknowledged} acknowledged, {seen} seen")

        with observed(look), segment.create(policy, index_spacing=300) as writer:
            opened = True
            while len(submitted) < 25:
                group = [
                    message(len(submitted) + n, chance.choice([0, 100, 3000])) for n in range(chance.randint(1, 4))
                ]
                submitted += group
                for ticket in [writer.submit(data) for data in group]:
                    ticket.result()
                acknowledged = len(submitted)
                look(None)
    return problems


@pytest.mark.parametrize("seed", range(4))
def test_nothing_flushed_is_lost_by_a_power_loss(tmp_path: Path, seed: int) -> None:
    """Nor is anything seen by readers that a power loss takes back."""
    assert losses(tmp_path, seed) == []


@pytest.mark.parametrize("policy", [FlushPolicy(5), FlushPolicy(None)])
def test_a_power_loss_under_other_policies_leaves_a_log_that_goes_on(tmp_path: Path, policy: FlushPolicy) -> None:
    assert losses(tmp_path, 1, policy) == []


@pytest.mark.slow
def test_a_flush_left_out_is_noticed(tmp_path: Path) -> None:
    assert losses(tmp_path, 0, pretends=True)
