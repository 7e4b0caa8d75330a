"""Random lives of a cursor against plain sets: what is delivered again is what was not acknowledged and flushed.

One or two owners acknowledge one by one, in ranges and cumulatively, flush, skip, reset, die without a word and come
back. Offsets are around the border of two stretches, so that marks cross it. For each owner the model has a set of what
it knows; what is stored is a set too, to which a flush adds and which a reset replaces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from storage.ack_ranges import RANGE_OFFSETS
from storage.cursor import Cursor
from storage.errors import Fenced
from storage.metadata.records import TopicRecord
from storage.metadata.store import MetadataStore
from storage.model import LogPosition, MessageId, TopicName
from tests.budgets import IN_SOAK
from tests.clocks import ManualClock

LOW, HIGH = RANGE_OFFSETS - 25, RANGE_OFFSETS + 25
"""What happens, happens here; all below LOW is acknowledged from the beginning."""
LIVES, STEPS = 60 if IN_SOAK else 15, 60


def at(offset: int) -> LogPosition:
    return LogPosition(offset, MessageId(offset // 7, offset % 7))


@dataclass
class Owner:
    cursor: Cursor
    known: set[int]
    """Acknowledged, as far as this owner knows for sure."""
    fenced: bool = False


@dataclass
class Life:
    metadata: MetadataStore
    topic: TopicRecord
    random: Random
    lost: set[int]
    """Offsets whose messages cannot be found any more."""
    stored: set[int] = field(default_factory=set)
    floor: int = -1
    """Mark-delete of the last reset, or the highest since."""

    def locate(self, offset: int) -> LogPosition | None:
        return next((at(number) for number in range(offset, HIGH) if number not in self.lost), None)

    def open(self) -> Owner:
        cursor = Cursor(self.metadata, self.topic, "s", self.locate, lambda: HIGH + 1)
        self.check(cursor, self.stored)
        return Owner(cursor, set(self.stored))

    def check(self, cursor: Cursor, acknowledged: set[int]) -> None:
        """All views of a cursor say that exactly these are acknowledged."""
        expected = [offset for offset in range(LOW, HIGH) if offset not in acknowledged]
        gaps = list(cursor.unacknowledged(HIGH))
        assert [offset for gap in gaps for offset in gap] == expected
        assert all(gap.stop < next_one.start for gap, next_one in pairwise(gaps))
        assert [offset for offset in range(LOW, HIGH) if not cursor.is_acknowledged(offset)] == expected
        assert cursor.backlog(HIGH) == len(expected)
        mark = cursor.mark_delete
        assert mark is not None
        assert mark.message_id == at(mark.offset).message_id
        assert set(range(LOW, mark.offset + 1)) <= acknowledged

    def check_stored(self) -> None:
        mark = self.metadata.cursors.get(self.topic.id, "s").mark_delete
        assert mark is not None
        assert set(range(LOW, mark.offset + 1)) <= self.stored, "mark-delete passed what was acknowledged"
        assert mark.offset >= self.floor, "mark-delete went back"
        self.floor = mark.offset

    def run(self) -> None:
        self.reset_stored(LOW - 1)
        owners = [self.open(), self.open()]
        for _ in range(STEPS):
            number = self.random.randrange(2)
            if owners[number].fenced or self.random.random() < 0.08:
                owners[number] = self.open()  # the old one died, and with it what it had not flushed
                continue
            owner, other = owners[number], owners[1 - number]
            if self.random.random() < 0.03:
                offset = self.random.randrange(LOW - 1, HIGH)
                owner.cursor.reset(at(offset))
                self.reset_stored(offset)
                owner.known = set(self.stored)
                if not other.fenced:
                    other.cursor.acknowledge(at(HIGH))
                    other.fenced = True
                with pytest.raises(Fenced):
                    other.cursor.flush()
            else:
                self.act(owner)
            self.check_stored()
        self.check(self.open().cursor, self.stored)

    def reset_stored(self, offset: int) -> None:
        self.stored = set(range(LOW, offset + 1))
        self.floor = offset

    def act(self, owner: Owner) -> None:
        cursor, random = owner.cursor, self.random
        what = random.random()
        first = random.randrange(LOW, HIGH)
        if what < 0.5:
            cursor.acknowledge(at(first))
            owner.known.add(first)
        elif what < 0.6:
            last = random.randrange(first, min(first + 6, HIGH))
            cursor.acknowledge(at(last), first)
            owner.known.update(range(first, last + 1))
        elif what < 0.65:
            cursor.acknowledge_cumulative(at(first))
            owner.known.update(range(LOW, first + 1))
        elif what < 0.7:
            self.skip(owner)
        else:
            cursor.flush()
            self.stored |= owner.known
            # A flush may learn of the other's; how much is not promised, but never more than what is stored.
            learned = {offset for offset in range(LOW, HIGH) if cursor.is_acknowledged(offset)}
            assert owner.known <= learned <= self.stored
            owner.known = learned
        self.check(cursor, owner.known)

    def skip(self, owner: Owner) -> None:
        count = self.random.randrange(4)
        skipped = [offset for offset in range(LOW, HIGH) if offset not in owner.known][:count]
        assert owner.cursor.skip(count, HIGH) == len(skipped)
        owner.known.update(skipped)


@pytest.mark.slow
@pytest.mark.budgeted
def test_random_lives(tmp_path: Path) -> None:
    metadata = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}", ManualClock())
    metadata.upgrade()
    for seed in range(LIVES):
        random = Random(seed)
        topic = metadata.tenancy.ensure_topic(TopicName.parse(f"t{seed}"))
        metadata.cursors.create(topic.id, "s", at(LOW - 1), {})
        lost = set(random.sample(range(LOW, HIGH), random.choice([0, 0, 5, 40])))
        try:
            Life(metadata, topic, random, lost).run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    metadata.close()
