"""The model of the random histories sees each seeded defect: a history that held proves something."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast
from unittest.mock import Mock

import pulsar
import pytest

from tests.faults.engine.checks import check_log, check_order, check_state, check_stored
from tests.faults.engine.history import History, ReadMessage, Sender, SentMessage, Traits, slot
from tests.faults.engine.report import Kind, Report, Violation
from tests.faults.histories.pulsar_clients import ClientSource
from tests.faults.histories.pulsar_readers import LivingReader

SENDER = Sender()


@pytest.fixture
def history() -> History:
    return History("topic", Traits(), Report("replay"))


def stored(history: History, key: str, value: str | None, entry: int) -> tuple[SentMessage, ReadMessage]:
    """Send and acknowledge a message; return it as sent and as a reader receives it."""
    sent = history.sending(key, value, 0.0, SENDER, entry)
    history.acknowledge(sent, slot(1, entry, -1))
    return sent, ReadMessage(sent.serial, slot(1, entry, -1), key, sent.value, entry)


def lost(history: History) -> None:
    stored(history, "k", "a", 1)
    _, other = stored(history, "k", "b", 2)
    check_stored(history, [other])


def moved(history: History) -> None:
    sent, read = stored(history, "k", "a", 1)
    sent.ids.add(slot(1, 9, -1))
    check_stored(history, [ReadMessage(read.serial, slot(1, 9, -1), "k", read.value)])
    raise AssertionError(*history.report.violations)


def twice(history: History) -> None:
    _, read = stored(history, "k", "a", 1)
    history.check_read(ReadMessage(read.serial, slot(1, 2, -1), "k", read.value), history.now())


def reordered(history: History) -> None:
    _, first = stored(history, "k", "a", 1)
    later = history.sending("k", "b", 0.0, SENDER, 0)
    check_order(history, {"topic": [first, ReadMessage(later.serial, slot(1, 2, -1), "k", later.value)]})


def returned(history: History) -> None:
    _, read = stored(history, "k", "a", 1)
    with history.clearing():
        pass
    history.check_read(read, history.now())


def foreign(history: History) -> None:
    _, read = stored(history, "k", "a", 1)
    history.check_read(ReadMessage(read.serial, read.id, "k", "other"), history.now())


def folded(history: History) -> None:
    raw = [stored(history, "k", value, entry)[1] for entry, value in enumerate(["a", "b"], 1)]
    check_log(history, "topic", raw, raw[:1], slot(1, 2, -1))


def sparse(history: History) -> None:
    raw = [stored(history, "k", "a", entry)[1] for entry in (1, 3)]
    check_log(history, "topic", raw, raw, None)


def outdated(history: History) -> None:
    old, _ = stored(history, "k1", "a", 1)
    stored(history, "k1", None, 2)
    check_state(history, ["k1"], {"k1": old.value}, "a view", keeps_gone=False)


SEEDED: dict[Callable[[History], None], Kind] = {
    lost: Kind.LOST,
    twice: Kind.TWICE,
    reordered: Kind.ORDER,
    returned: Kind.RETURNED,
    foreign: Kind.FOREIGN,
    folded: Kind.VIEW,
    outdated: Kind.KEY,
    sparse: Kind.OFFSETS,
}


@pytest.mark.parametrize("defect", SEEDED, ids=lambda defect: defect.__name__)
def test_a_seeded_defect_is_a_violation(history: History, defect: Callable[[History], None]) -> None:
    with pytest.raises(Violation) as raised:
        defect(history)
    assert raised.value.kind is SEEDED[defect]


def test_a_message_at_another_id_is_reported(history: History) -> None:
    with pytest.raises(AssertionError, match=str(Kind.MOVED)):
        moved(history)


def test_without_a_defect_nothing_is_reported(history: History) -> None:
    raw = [stored(history, "k", value, entry)[1] for entry, value in enumerate(["a", None, "b"], 1)]
    check_stored(history, raw)
    check_log(history, "topic", raw, raw[2:], slot(1, 3, -1))
    check_order(history, {"topic": raw})
    assert history.acceptable("k") == {raw[2].value}
    assert not history.report.violations


def test_a_violation_is_reported_once_with_the_command_that_repeats_it(history: History) -> None:
    history.note("compaction: 204")
    for _ in range(2):
        with history.report.collecting():
            raise history.violation(Kind.LOST, "a message", "0.1")
    (text,) = history.report.violations
    assert "again: replay" in text
    assert "topic: compaction: 204" in text


@pytest.mark.parametrize("deletes", [True, False])
def test_a_message_without_a_receipt_may_be_stored_again_only_after_a_delete(history: History, deletes: bool) -> None:
    sent = history.sending("k", "a", 0.0, SENDER, 1)
    with history.clearing(deletes=deletes):
        history.check_read(ReadMessage(sent.serial, slot(1, 1, -1), "k", sent.value), history.now())
    if deletes:
        history.acknowledge(sent, slot(2, 0, -1))
    else:
        with pytest.raises(Violation) as raised:
            history.acknowledge(sent, slot(2, 0, -1))
        assert raised.value.kind is Kind.TWICE


def test_a_message_that_is_sent_after_a_delete_is_stored_once(history: History) -> None:
    with history.clearing(deletes=True):
        pass
    with pytest.raises(Violation) as raised:
        twice(history)
    assert raised.value.kind is Kind.TWICE


def test_an_unanswered_message_may_be_stored_or_not(history: History) -> None:
    _, read = stored(history, "k", "a", 1)
    open_message = history.sending("k", "b", 0.0, SENDER, 2)
    assert history.acceptable("k") == {read.value, open_message.value}
    assert history.resolve([read], 1.0) == 1
    assert history.acceptable("k") == {read.value}


class HoldingReader(LivingReader):
    """A reader whose client still holds `held`."""

    held: tuple[ReadMessage, ...] = ()

    def step(self, source: ClientSource, wait_ms: int = 300) -> bool:
        del source, wait_ms
        if not self.held:
            return False
        (message, *rest), self.held = self.held, ()
        self.held, self.last = tuple(rest), message.id
        self.state[str(message.key)] = message
        return True


@pytest.mark.parametrize("holds_delete", [True, False], ids=["held", "lost"])
def test_a_reader_is_checked_after_a_delete_that_only_its_client_holds(holds_delete: bool) -> None:
    """A compaction has dropped the delete, which was the newest message, and raw is trimmed."""
    history = History("topic", Traits({"cleanup.policy": ["compact"]}), Report("replay"))
    (_, value), (_, other), (_, delete) = (
        stored(history, key, text, entry) for entry, (key, text) in enumerate([("k", "a"), ("l", "b"), ("k", None)], 1)
    )
    reader = HoldingReader(history, True, history.report, Mock(spec=pulsar.Reader), last=other.id)
    reader.state = {"k": value, "l": other}
    reader.held = (delete,) if holds_delete else ()
    if holds_delete:
        reader.check([], [other], cast(ClientSource, None), lambda _: False)
        assert reader.last == delete.id
    else:
        with pytest.raises(Violation, match=r"other values of \['k'\]"):
            reader.check([], [other], cast(ClientSource, None), lambda _: False)
