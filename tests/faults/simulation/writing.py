"""Imports, that succeed, fail or die, and cursors that move.

An import is one event; what comes between its steps are events of others. It is reported as done exactly if all of it
exists (L1); `TopicModel.absorb` sees to it that no part of one ever is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from storage.errors import CompactorError, DataLoss, Fenced, LeaseHeld, NotFound, TopicNotFound, Unavailable
from storage.log.bulk_append import INPUT_SCHEMA
from storage.metadata.records import COMPACTION_CURSOR, Attempt
from storage.model import LogPosition
from tests.faults.simulation.model import TopicModel, require
from tests.faults.simulation.process import Process
from tests.faults.simulation.world import World

KEYS = [b"", *(bytes([letter]) for letter in b"abcdefghijklmnopqrst")]
SLOW = ["slow", "slower"]


class _Unreadable(Exception):
    """The input of an import cannot be read to its end."""


class Writing:
    """Events that add messages, and that move cursors."""

    def __init__(self, world: World) -> None:
        self._world = world

    def import_some(self, model: TopicModel | None = None) -> None:
        """One import, mostly of a few messages, in one ledger or several."""
        world = self._world
        free = world.free("w")
        if not free:
            return
        process, model = world.random.choice(free), model or world.random.choice(world.topics)
        tables = [self._rows(model) for _ in range(world.random.randint(1, 3))]
        fails = world.random.random() < 0.08
        ledger_bytes = world.random.choice([30, 200, 600, 1 << 20])
        count = sum(map(len, tables))
        world.run_as(
            process,
            f"imports {count} messages into {model.record.name}{', which fails' if fails else ''}",
            lambda: self._import(process, model, tables, ledger_bytes, fails),
            faults=0.25,
        )

    def _import(
        self, process: Process, model: TopicModel, tables: list[list[dict[str, Any]]], size: int, fails: bool
    ) -> None:
        rows = [row for table in tables for row in table]
        attempt_ids: list[str] = []

        def expect(attempt: Attempt) -> None:
            attempt_ids.append(attempt.attempt_id)
            model.pending[attempt.attempt_id] = list(rows)

        process.on_attempt = expect
        before = process.faults
        error: Exception | None = None
        writer = self._world.topic(model, process).bulk_append(ledger_bytes=size, workers=1, wait_ms=0)
        try:
            writer.append(_given(tables, fails))
        except (CompactorError, _Unreadable) as raised:
            error = raised
        finally:
            process.on_attempt = None
        faulty = process.faults > before
        self._world.observe()
        result = sum(model.imported[attempt_id] for attempt_id in attempt_ids)
        message = f"{model.record.name}: an import of {len(rows)} messages"
        if error is None:
            require(result == len(rows), f"{message} was reported as done, and {result} exist")
            return
        self._world.note(f"  {type(error).__name__}: {error}"[:150])
        if isinstance(error, Unavailable | DataLoss):  # also of store.uid, which an import reads
            require(faulty, f"{message} failed without a fault: {error}")
            if "is not known" in error.message:
                return
        elif isinstance(error, _Unreadable):
            require(fails, f"{message} could not be read")
        else:
            over = isinstance(error, TopicNotFound) and model.deleted_at is not None
            require(over or isinstance(error, LeaseHeld | Fenced), f"{message} failed: {error!r}")
        require(result == 0, f"{message} was reported as failed ({error}), and {result} exist")

    def _rows(self, model: TopicModel) -> list[dict[str, Any]]:
        draw = self._world.random
        now = self._world.clock.now_ms()
        rows = []
        many = not model.everything or draw.random() < 0.1
        for _ in range(draw.randint(12, 25) if many else draw.randint(1, 5)):
            value = draw.random()
            payload = None if value < 0.2 else b"" if value < 0.25 else draw.randbytes(draw.choice([1, 12, 60, 300]))
            rows.append(
                {
                    "key": None if draw.random() < 0.1 else draw.choice(KEYS),
                    "payload": payload,
                    "publish_time": now - draw.choice([0, 0, 5, 50, 30_000, -20]),
                    "event_time": draw.choice([None, now, now - 30, now - 30, now + 10, now - 90_000]),
                    "properties": draw.choice([None, None, [("p", str(draw.randint(0, 9)))]]),
                }
            )
        return rows

    def move_cursor(self) -> None:
        """A cursor of a compacted reader is made, moves, or is deleted; or `__compaction` gets a property."""
        world = self._world
        model = world.random.choice(world.topics)
        name = world.random.choice(SLOW)
        metadata, topic_id = world.observer, model.record.id
        choice = world.random.random()
        if choice < 0.2:
            self._set_property(model)
        elif choice < 0.35:
            try:
                metadata.cursors.delete(topic_id, name)
                world.note(f"the cursor {name} of {model.record.name} is deleted")
            except NotFound:
                return
        elif model.everything:
            message = world.random.choice(model.everything)
            metadata.cursors.ensure(topic_id, name)
            metadata.cursors.set_properties(topic_id, name, {"readCompacted": "true"})
            metadata.cursors.reset(topic_id, name, LogPosition(message.offset, message.message_id))
            world.note(f"the cursor {name} of {model.record.name} is at offset {message.offset}")

    def _set_property(self, model: TopicModel) -> None:
        """A2: no other write of the cursor loses the pointer, and no publish loses this write."""
        if model.serving is None:
            return
        value = str(self._world.random.randint(0, 9))
        self._world.observer.cursors.set_properties(model.record.id, COMPACTION_CURSOR, {"owner": value})
        model.properties["owner"] = value
        self._world.note(f"the cursor {COMPACTION_CURSOR} of {model.record.name} belongs to {value}")


def _given(tables: list[list[dict[str, Any]]], fails: bool) -> Iterator[pa.Table]:
    for number, rows in enumerate(tables):
        if fails and number == len(tables) - 1:
            raise _Unreadable
        yield pa.Table.from_pylist(rows, schema=INPUT_SCHEMA)
