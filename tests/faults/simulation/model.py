"""The contents that a topic must have, known without a read: the imports, and the reference replayed run by run.

`everything` follows from the input of the imports. `states` has the reference's state of each compacted ledger that
ever served (`horizons` and `policies` what belongs to it), replayed over the messages between the horizons with the
policies, the clock and the cursor floor that the run froze, on top of the state that the run read. `check_publish` says
whether a publish may be at all (A1, A4, P2, S5, S8).

A `TopicModel` is one incarnation of a topic. What is trimmed, truncated or deleted stays in `everything`: readers may
have it. `first` and `start` say what of it is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from compactor import reference
from compactor.run.plan import RunPolicies
from storage.metadata.records import CursorRecord, RunRecord, RunState, TopicRecord, TopicSnapshot
from storage.model import EARLIEST, LedgerRecord, Message, MessageId
from storage.reading.snapshot_reader import BOTH
from tests.faults.engine.report import Violation


def require(condition: bool, what: str) -> None:
    """Raises Violation with `what` unless the condition holds."""
    if not condition:
        raise Violation(what)


@dataclass
class RunNotes:
    """The state of a topic when a run began: the snapshot that it took its end from, the first raw offset, how often
    the topic had been stopped; and the cursor floor, if the run asked for it."""

    snapshot: TopicSnapshot
    life: int
    first: int
    stops: int
    floor: int | None = None


@dataclass
class TopicModel:
    """`life` grows when the horizon is gone: the cursor `__compaction` was deleted, or the topic truncated. `by_event`:
    whether event-time order may ever rule. `cleanup`: the topic's cleanup policy."""

    record: TopicRecord
    by_event: bool
    cleanup: frozenset[str] = frozenset()
    everything: list[Message] = field(default_factory=list)
    first: int = 0
    """The offset of the first raw message that is not trimmed."""
    start: int = 0
    """The topic's start offset: of reads, and under `compact,delete` of compacted rows."""
    trimmed: dict[str, int] = field(default_factory=dict)
    """Names of objects of trimmed ledgers, and when these were trimmed."""
    forced: bool = False
    """Whether somebody trims by force now."""
    paused: int = 0
    stops: int = 0
    """How often compaction was paused or aborted: no run that continues then publishes (S5)."""
    deleted_at: int | None = None
    ledgers: list[LedgerRecord] = field(default_factory=list)
    maybe: list[tuple[bytes | None, bytes | None]] = field(default_factory=list)
    """Key and payload of what a dead writer left behind all that is known: there, or not, once it is recovered."""
    pending: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    imported: Counter[str] = field(default_factory=Counter)
    """By attempt, how many messages came of it."""
    states: dict[int, reference.ReferenceLedger] = field(default_factory=dict)
    horizons: dict[int, int] = field(default_factory=dict)
    policies: dict[int, RunPolicies] = field(default_factory=dict)
    serving: int | None = None
    generation: int = 0
    life: int = 0
    audited: int | None = None
    notes: dict[int, RunNotes] = field(default_factory=dict)
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> reference.ReferenceLedger:
        return self.states[self.serving] if self.serving is not None else reference.ReferenceLedger()

    @property
    def horizon(self) -> int:
        return self.horizons[self.serving] if self.serving is not None else -1

    @property
    def hides_compacted(self) -> bool:
        """Return whether compacted rows below the start are hidden (C2)."""
        return self.cleanup >= BOTH

    def absorb(
        self, topic: TopicRecord, ledgers: Sequence[LedgerRecord], cursors: Sequence[CursorRecord], now: int
    ) -> None:
        """Take in ledgers that have become visible: sealed segments, and whole imports in order, as they were given;
        and those that are gone, if they may be."""
        known = {ledger.ledger_id for ledger in self.ledgers}
        still = [ledger for ledger in ledgers if ledger.ledger_id in known]
        trimmed = [ledger for ledger in self.ledgers if ledger not in ledgers]
        require([*trimmed, *still] == self.ledgers, f"{self.record.name}: raw ledgers changed")
        if trimmed or topic.start_offset != self.start:
            self._trim(trimmed, topic.start_offset, cursors, now)
        for ledger in ledgers:
            if ledger.ledger_id in known:
                continue
            if ledger.attempt_id not in self.pending:
                self._check_sealed(ledger)
                continue
            rows = self.pending.get(ledger.attempt_id)
            require(rows is not None, f"ledger {ledger.ledger_id} is of no import that was going on")
            assert rows is not None
            require(ledger.first_offset == len(self.everything), f"ledger {ledger.ledger_id} leaves a gap of offsets")
            require(ledger.messages <= len(rows), f"ledger {ledger.ledger_id} has more than was imported")
            for number in range(ledger.messages):
                self.everything.append(_message(ledger, number, rows[number], self.record.name.partition))
            del rows[: ledger.messages]
            self.imported[ledger.attempt_id] += ledger.messages
        self.ledgers = list(ledgers)

    def _check_sealed(self, ledger: LedgerRecord) -> None:
        """A ledger that was not imported holds exactly the entries of one segment."""
        inside = self.everything[ledger.first_offset : ledger.last_offset + 1]
        message = f"ledger {ledger.ledger_id}"
        require(len(inside) == ledger.last_offset - ledger.first_offset + 1, f"{message} has more than was appended")
        require(
            {m.message_id.ledger_id for m in inside} == {ledger.ledger_id}, f"{message} is of no import and no segment"
        )

    def appended(self, messages: Sequence[Message]) -> None:
        """These have come, with the acknowledged ids and offsets, or that are read where a dead writer left some."""
        for message in messages:
            text = f"{self.record.name}: {message.message_id} at offset {message.offset}"
            require(message.offset == len(self.everything), f"{text}, not {len(self.everything)}")
            last = self.everything[-1].message_id if self.everything else None
            require(last is None or message.message_id > last, f"{text} is not above {last}")
            self.everything.append(message)

    def last_old_enough(
        self, snapshot: TopicSnapshot, policies: RunPolicies, now: int, horizon: int, first: int
    ) -> int:
        """P2, from the messages themselves: whole ledgers up to the first that holds one that is too young.

        And up to what is no ledger yet. `first`: where raw began at the snapshot.
        """
        end = horizon
        for ledger in snapshot.ledgers:
            if ledger.last_offset <= horizon:
                continue
            if ledger.first_offset > max(end + 1, first):
                break
            inside = self.everything[ledger.first_offset : ledger.last_offset + 1]
            times = [min(message.publish_time, ledger.created_at) for message in inside]  # clocks may go back
            if policies.min_lag_ms and max(times) > now - policies.min_lag_ms:
                break
            end = ledger.last_offset
        return end

    def check_publish(self, snapshot: TopicSnapshot, run: RunRecord) -> None:
        """A new compacted ledger serves: it may, and what it must hold is replayed. `run` is what published it."""
        compacted = snapshot.compacted
        assert compacted is not None
        message = f"{self.record.name}: run {run.run_id} published compacted ledger {compacted.ledger_id}"
        notes = self.notes.get(run.run_id)
        require(notes is not None, f"{message} and never took a snapshot")
        assert notes is not None
        require(run.state is RunState.SUCCESS, f"{message}, and is {run.state}")
        require(notes.life == self.life, f"{message} although its horizon was taken meanwhile (S8, C2)")
        require(notes.stops == self.stops, f"{message} although it was paused or aborted meanwhile (S5)")
        before = notes.snapshot.compacted
        base = before.ledger_id if before else None
        require(base == self.serving, f"{message} on top of {base}, but {self.serving} served (A1)")
        require(
            snapshot.topic.generation == self.generation + 1, f"{message} as generation {snapshot.topic.generation}"
        )
        require(
            compacted.generation == snapshot.topic.generation, f"{message} with another generation than the topic's"
        )
        policies = RunPolicies(**run.policies)
        horizon = self.horizon
        end = self.last_old_enough(notes.snapshot, policies, run.started_at, horizon, notes.first)
        require(
            compacted.horizon.offset == end,
            f"{message} with horizon {compacted.horizon.offset}, not {end} (P2, A1, A4)",
        )
        require(
            compacted.horizon.message_id == self.everything[end].message_id, f"{message}: the horizon's id is wrong"
        )
        floor = notes.floor if policies.tombstones_wait_for_cursors else None
        added = self.everything[horizon + 1 : end + 1]
        state = reference.run(self.state, added, policies, run.started_at, floor, raw_from=notes.first)
        self.states[compacted.ledger_id], self.horizons[compacted.ledger_id] = state, end
        self.policies[compacted.ledger_id] = policies
        self.serving, self.generation = compacted.ledger_id, compacted.generation

    def _trim(self, trimmed: Sequence[LedgerRecord], start: int, cursors: Sequence[CursorRecord], now: int) -> None:
        """Ledgers are gone, or the topic begins later: only messages that no reader needs (C1, C2, S9)."""
        message = (
            f"{self.record.name}: ledgers {[item.ledger_id for item in trimmed]} are trimmed, the start is {start}"
        )
        require(start >= self.start, f"{message}, and was {self.start}")
        end = max((ledger.last_offset + 1 for ledger in trimmed), default=start)
        compacted = [ledger for ledger in trimmed if ledger.last_offset >= start]
        require(not compacted or "compact" in self.cleanup, f"{message} under the cleanup policy {set(self.cleanup)}")
        require(
            all(item.last_offset <= self.horizon for item in compacted), f"{message} above the horizon {self.horizon}"
        )
        if not self.forced:
            needed = {cursor.name: cursor.mark_delete.offset + 1 if cursor.mark_delete else 0 for cursor in cursors}
            held = [name for name, offset in needed.items() if max(offset, self.start) < max(end, start)]
            require(not held, f"{message}, and {held} need them: {needed}")
            told_above = f"{message} above the horizon {self.horizon}, and it is compacted"
            require(self.serving is None or max(end, start) <= self.horizon + 1, told_above)
        self._mark_trimmed(trimmed, now)
        self.start, self.first = start, max(self.first, end, start)

    def _mark_trimmed(self, trimmed: Sequence[LedgerRecord], now: int) -> None:
        self.trimmed |= {name: now for ledger in trimmed for name in (ledger.rows.name, ledger.index.name)}

    def truncate(self, start: int, now: int) -> None:
        """Everything below the topic's end of that time is gone, raw and compacted; the cursor stays (C2)."""
        message = f"{self.record.name} was truncated up to {start}"
        require(start == len(self.everything), f"{message}, and its end was {len(self.everything)}")
        self._mark_trimmed(self.ledgers, now)
        self.ledgers = []
        self.start = self.first = start
        self.serving = None
        self.life += 1

    @property
    def raw(self) -> list[Message]:
        """Return the messages of a raw read."""
        return self.everything[self.first :]

    def readable(self, *, compacted: bool) -> list[Message]:
        """Return the messages of a read from the beginning."""
        ledger_id = self.serving if compacted else None
        return self.at_or_after(ledger_id, len(self.everything), EARLIEST, -1, self.first, self.start)

    def clear(self) -> None:
        """The cursor `__compaction` was deleted, and the compacted ledger with it."""
        self.serving = None
        self.life += 1
        self.properties.clear()

    def at_or_after(
        self, ledger_id: int | None, end: int, start: MessageId, behind: int = -1, first: int = 0, hidden_to: int = 0
    ) -> list[Message]:
        """Return a read of a compacted ledger (None: of raw) and the raw messages after it, up to the offset `end`.

        From `start`, and behind an offset; raw messages begin at the offset `first`, compacted ones at `hidden_to`.
        """
        horizon = self.horizons[ledger_id] if ledger_id is not None else -1
        kept = self.visible(ledger_id, hidden_to)
        tail = self.everything[max(horizon + 1, first) : end]
        return [m for m in (*kept, *tail) if m.message_id >= start and m.offset > behind]

    def visible(self, ledger_id: int | None, start: int) -> tuple[Message, ...]:
        """The messages of a compacted ledger that readers get while the topic begins at `start`."""
        kept = self.states[ledger_id].messages if ledger_id is not None else ()
        return tuple(item for item in kept if item.offset >= start) if self.hides_compacted else kept


def _message(ledger: LedgerRecord, number: int, row: dict[str, Any], partition: int) -> Message:
    return Message(
        message_id=MessageId(ledger.ledger_id, number, partition),
        offset=ledger.first_offset + number,
        key=row["key"],
        payload=row["payload"],
        publish_time=row["publish_time"],
        event_time=row["event_time"],
        properties=dict(row["properties"] or ()),
    )
