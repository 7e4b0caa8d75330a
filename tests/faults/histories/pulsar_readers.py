"""Readers with Pulsar's Python client that live over many compactions, kills and rounds, raw and compacted.

A reader receives ids in ascending order, skips none, and ends with the state of the topic (R7). Pulsar's C++ client
has one exception: after a reconnect it may ask for the last entry again, and then receives a batch twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pulsar

from storage.model import MessageId
from tests.faults.engine.checks import entry_of, fold, rank
from tests.faults.engine.history import History, ReadMessage
from tests.faults.engine.report import Kind, Report
from tests.faults.histories.pulsar_clients import ERRORS, ClientSource, Delivery, quietly_closed, received

_QUEUE = 50
_ENDS_WITHIN_SECONDS = 90
_SILENT_TRIES = 6


IsStale = Callable[["LivingReader"], bool]


@dataclass
class LivingReader:
    """One reader. `state`: by key, the newest message by the topic's order; `ids`: of all messages since it
    began, at the time `began` (UTC, ISO)."""

    history: History
    compacted: bool
    report: Report
    reader: pulsar.Reader | None = None
    delivery: Delivery | None = None
    last: MessageId | None = None
    state: dict[str, ReadMessage] = field(default_factory=dict)
    ids: list[MessageId] = field(default_factory=list)
    connections: int = 0
    began: str = ""

    @property
    def name(self) -> str:
        return f"a {'compacted' if self.compacted else 'raw'} reader"

    @property
    def was_cleared(self) -> bool:
        return self.delivery is not None and self.history.was_cleared_since(self.delivery.since)

    def end(self) -> None:
        """Close it; the next step begins again at the earliest message."""
        quietly_closed(self.reader)
        self.reader = self.delivery = self.last = None
        self.state, self.ids = {}, []

    def step(self, source: ClientSource, wait_ms: int = 300) -> bool:
        """Read one message; return False if none came. Raises Violation, and the client's errors."""
        if self.reader is None:
            self.end()
            self.connections += 1
            self.began = datetime.now(UTC).isoformat()
            self.delivery = Delivery(self.history, self.name, _QUEUE)
            self.reader = source.get().create_reader(
                self.history.full_name,
                pulsar.MessageId.earliest,
                is_read_compacted=self.compacted,
                receiver_queue_size=_QUEUE,
            )
        assert self.delivery is not None
        try:
            message = received(self.reader.read_next(wait_ms))
        except pulsar.Timeout:
            return False
        self.report.count("messages read by readers")
        last, self.last = self.last, max(message.id, self.last or message.id)
        self.ids.append(message.id)
        if message.key is not None:
            before = self.state.get(message.key)
            if before is None or rank(self.history, message) >= rank(self.history, before):
                self.state[message.key] = message
        self.delivery.take(message)
        if last is not None and message.id <= last and not self.was_cleared:
            if entry_of(message.id) != entry_of(last):
                text = f"{self.name} received {message} after {last}"
                raise self.history.violation(Kind.READER, text, f"{self.name} {message.serial}")
            self.report.count("batches that a reader received again")
        return True

    def check(self, raw: list[ReadMessage], view: list[ReadMessage], source: ClientSource, is_stale: IsStale) -> None:
        """Read to the end, without traffic: nothing was skipped, and the state is the one of `view`.

        `is_stale`: a service logged that the reader may have missed deletes. Raises Violation.
        """
        if self.reader is None or self.was_cleared:
            self.end()
            return
        ends = [messages[-1].id for messages in (raw, view) if messages]
        # A compaction may have dropped the newest message, a delete, while the client still holds it.
        ends += [message.id for message in self.history.must_be_stored() if message.id is not None]
        final = max(ends, default=None)
        if final is not None:
            self._read_to(final, source)
        self.report.count("readers checked")
        if self.reader is None:
            return
        traits = self.history.traits
        if not self.compacted and not traits.loses_raw:
            self._check_complete(raw)
        if traits.expires or (traits.loses_raw and not self.compacted) or traits.hides:
            return
        self.check_state(view, is_stale)

    def _read_to(self, final: MessageId, source: ClientSource) -> None:
        deadline, silent = time.monotonic() + _ENDS_WITHIN_SECONDS, 0
        try:
            while (self.last is None or self.last < final) and silent < _SILENT_TRIES and time.monotonic() < deadline:
                with self.report.collecting():
                    silent = 0 if self.step(source, 500) else silent + 1
        except ERRORS as error:
            self.report.count(f"readers ended: {type(error).__name__}")
            self.end()

    def _check_complete(self, raw: list[ReadMessage]) -> None:
        received_ids = set(self.ids)
        begin = min(self.ids, default=None)
        missed = [item for item in raw if item.id not in received_ids and begin is not None and item.id >= begin]
        if missed:
            text = f"{self.name} at {self.last} skipped {len(missed)} messages: {missed[:4]}"
            raise self.history.violation(Kind.READER, text, f"{self.name} {missed[0].serial}")

    def check_state(self, view: list[ReadMessage], is_stale: IsStale) -> None:
        expected = values(fold(self.history, view))
        actual = values(self.state)
        if expected == actual:
            return
        keys = sorted(key for key in expected.keys() | actual.keys() if expected.get(key) != actual.get(key))
        stale = is_stale(self)
        self.end()
        if stale and self.history.traits.loses_raw:
            self.report.count("readers with a stale state, logged")
            return
        text = f"{self.name} ends with other values of {keys}: " + "; ".join(
            f"{key}: {actual.get(key)} instead of {expected.get(key)}" for key in keys[:4]
        )
        raise self.history.violation(Kind.READER_STATE, text, f"{self.name} {self.connections}")


def values(state: dict[str, ReadMessage]) -> dict[str, str]:
    """Return the serial of each key that has a value."""
    return {key: message.serial for key, message in state.items() if message.value}


def reading(
    readers: list[LivingReader],
    choose: Callable[[list[LivingReader]], LivingReader],
    chance_of: Callable[[], float],
    source: ClientSource,
    ended: Callable[[], bool],
) -> Callable[[], None]:
    """Return a step that reads some messages with one of the readers."""

    def step() -> None:
        reader = choose(readers)
        try:
            for _ in range(200 if chance_of() < 0.3 else 20):
                if ended() or not reader.step(source):
                    break
        except ERRORS as error:
            reader.report.count(f"readers ended: {type(error).__name__}")
            reader.end()
        if chance_of() < 0.01:
            reader.end()

    return step
