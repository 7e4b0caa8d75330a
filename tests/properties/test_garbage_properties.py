"""Random schedules of imports, runs, readers, dead attempts, time and garbage collection: properties 1, 6, 9 and R7.

At each collection: what is referred to, pinned, young or at work stays; twice is once; a dry run deletes nothing and
says what a run then does. And every reader, however slow, ends with the newest value of every key, or learns that its
state may be stale, when it may be. Each schedule is a seed, so that a failure names what brings it back; a step takes
tens of milliseconds, and the weights are such that readers are overtaken often. In some of them values expire, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from compactor.maintenance.garbage import GarbageCollector
from compactor.maintenance.retention import Retention
from compactor.run.plan import RunPolicies
from storage.errors import StateMayBeStale
from storage.ledger import names
from storage.ledger.manifest import read_manifest
from storage.metadata.policy_store import topic_scope
from storage.metadata.records import COMPACTION_CURSOR, AttemptKind
from storage.model import Message
from storage.reading.compacted_reader import PIN_TTL_MS
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.workbench import Workbench, content, raw, view

KEYS = [b"k%d" % number for number in range(8)]
VALUES = [None, b"1", b"2" * 40, b"3" * 90]
GRACE_MS = PIN_TTL_MS // 4
"""Shorter than a pin's term, so that a few steps are enough to outlive the one and not the other."""
TIMES = [GRACE_MS // 2, GRACE_MS, 2 * GRACE_MS, PIN_TTL_MS]
SCHEDULES, STEPS = 30, 30
FEW = 6
"""Schedules of CI; `make soak` runs the rest."""


@dataclass
class Reader:
    """One compacted read; `held`: it has had no pause as long as a pin's term since it began, and all raw is there."""

    messages: Iterator[Message]
    asked_at: int
    got: list[Message] = field(default_factory=list)
    held: bool = True


class Schedule:
    """One topic, and what happens to it by chance."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.random = random
        self.bench = Workbench.embedded(folder)
        self.topic: Topic = self.bench.topic()
        self.readers: list[Reader] = []
        self.policies = RunPolicies(key_ttl_ms=random.choice([None, None, 3 * GRACE_MS]))
        self.everything = self.bench.append(self.topic, [content(*((key, b"0" * 50) for key in KEYS))])

    def run(self) -> None:
        weights = {
            self.append: 2,
            self.append_and_compact: 2,
            self.replace_all_parts: 5,
            self.clear: 1,
            self.trim: 2,
            self.leave_garbage: 2,
            self.let_time_go_by: 2,
            self.open_reader: 4,
            self.read_on: 7,
            self.collect: 2,
        }
        for step in self.random.choices(list(weights), list(weights.values()), k=STEPS):
            step()
        for reader in list(self.readers):
            self.finish(reader)

    @property
    def clock(self) -> ManualClock:
        return self.bench.clock

    def listed(self) -> set[str]:
        return {info.name for info in self.bench.store.list(names.topic_prefix(self.topic.record.uid))}

    def append(self) -> None:
        changes = [(self.random.choice(KEYS), self.random.choice(VALUES)) for _ in range(self.random.randint(1, 8))]
        self.everything += self.bench.append(self.topic, [content(*changes)])

    def append_and_compact(self) -> None:
        self.append()
        self.compact()

    def compact(self) -> None:
        self.bench.compactor().compact(self.topic.name, self.policies)
        self.check(list(self.topic.messages(read_compacted=True)))

    def replace_all_parts(self) -> None:
        """Nothing of the generation before is kept, and soon only a pin holds it."""
        deleted = self.random.choice([None, *KEYS])
        changes = [(key, None if key == deleted else b"4" * 50) for key in KEYS]
        self.everything += self.bench.append(self.topic, [content(*changes)])
        self.compact()
        self.let_time_go_by()
        self.collect()

    def trim(self) -> None:
        """Trim by the policy `compact`. Readers of a deleted generation must then continue in a newer one."""
        scope = topic_scope(self.topic.record)
        self.bench.metadata.policies.change([scope], {"cleanup.policy": "compact"})
        Retention(replace(self.bench, clock=self.clock)).trim(self.topic.record)
        self.bench.metadata.policies.change([scope], {"cleanup.policy": ""})
        for reader in self.readers:
            reader.held = False

    def clear(self) -> None:
        if self.topic.snapshot().cursor is not None and len(raw(self.topic)) == len(self.everything):
            self.bench.metadata.cursors.delete(self.topic.record.id, COMPACTION_CURSOR)

    def leave_garbage(self) -> None:
        attempt = self.bench.metadata.attempts.begin(self.topic.record.id, AttemptKind.RUN, "dead")
        self.bench.store.put(names.part(self.topic.record.uid, attempt.attempt_id, 0), b"left behind")
        if self.random.random() < 0.5:
            self.bench.metadata.attempts.finish(attempt.attempt_id)

    def let_time_go_by(self) -> None:
        self.clock.advance(self.random.choice(TIMES))

    def open_reader(self) -> None:
        if len(self.readers) < 3:
            self.readers.append(Reader(self.topic.messages(read_compacted=True), self.clock.now_ms()))

    def read_on(self) -> None:
        if not self.readers:
            return
        reader = self.random.choice(self.readers)
        self.hold(reader)
        try:
            reader.got.append(next(reader.messages))
        except StopIteration:
            self.finish(reader)
        except StateMayBeStale:
            self.stale(reader)

    def collect(self) -> None:
        collector = GarbageCollector(replace(self.bench, clock=self.clock), GRACE_MS)
        before, needed = self.listed(), self.needed()
        answer = collector.collect(self.topic.record, dry_run=True).total
        assert self.listed() == before, "a dry run deletes nothing"
        result = collector.collect(self.topic.record).total
        after = self.listed()
        assert answer == result
        assert len(before - after) == result.count
        assert needed <= after
        assert collector.collect(self.topic.record).total.count == 0, "twice is once"
        assert self.listed() == after

    def needed(self) -> set[str]:
        """Return what is referred to, pinned, young or in progress: written apart from the collector."""
        snapshot, now = self.bench.metadata.pins.gc_snapshot(self.topic.record.id), self.clock.now_ms()
        delay = self.bench.metadata.policies.effective(self.topic.record).file_delete_delay_ms
        stays, goes = set[str](), set[str]()
        for ledger in snapshot.ledgers:
            trimmed = ledger.deleted_at is not None and ledger.deleted_at <= now - delay
            (goes if trimmed else stays).update((ledger.rows.name, ledger.index.name))
        needed = stays
        pinned = {pin.ledger_id for pin in snapshot.pins if pin.expires_at > now}
        for compacted in snapshot.compacted:
            retired_at = compacted.retired_at
            if retired_at is None or now - retired_at < GRACE_MS or compacted.ledger_id in pinned:
                needed |= {compacted.manifest.name} | read_manifest(self.bench.store, compacted.manifest).object_names
        ended = {attempt.attempt_id: attempt.finished_at for attempt in snapshot.attempts}
        for name in self.listed():
            parsed = names.parse(name)
            assert parsed is not None
            finished_at = ended[parsed.attempt_id]
            if finished_at is None or now - finished_at < GRACE_MS:
                needed.add(name)
        return needed - goes

    def hold(self, reader: Reader) -> None:
        now = self.clock.now_ms()
        reader.held = reader.held and now - reader.asked_at < PIN_TTL_MS
        reader.asked_at = now

    def finish(self, reader: Reader) -> None:
        """Read to the end, and then what came behind it: nothing was missed, nothing came twice."""
        self.readers.remove(reader)
        self.hold(reader)
        try:
            reader.got += list(reader.messages)
        except StateMayBeStale:
            self.stale(reader)
            return
        ids = [message.message_id for message in reader.got]
        assert ids == sorted(set(ids))
        rest = [message for message in self.everything if not ids or message.message_id > ids[-1]]
        self.check([*reader.got, *rest])

    def check(self, got: list[Message]) -> None:
        """The newest value of each key and no other, but for those whose time to live is over."""
        newest, held = view(self.everything), view(got)
        assert held.items() <= newest.items()
        if self.policies.key_ttl_ms is None:
            assert held == newest

    def stale(self, reader: Reader) -> None:
        """Only where the pin ran out or raw is trimmed, and only with something gone behind what the reader has."""
        if reader in self.readers:
            self.readers.remove(reader)
        assert not reader.held
        assert reader.got
        ttl, now = self.policies.key_ttl_ms, self.clock.now_ms()
        removable = [item for item in self.everything if item.is_tombstone or (ttl and item.publish_time + ttl <= now)]
        assert removable[-1].offset > reader.got[-1].offset


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(FEW), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(FEW, SCHEDULES))]
)
def test_nothing_that_is_needed_goes_and_no_reader_is_misled(seed: int, tmp_path: Path) -> None:
    schedule = Schedule(tmp_path, Random(seed))
    try:
        schedule.run()
    finally:
        schedule.bench.metadata.close()
