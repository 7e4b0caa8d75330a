"""The model of the random histories sees each seeded defect: a history that held proves something."""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest import mock

import pytest

from tests.faults.histories.audit import Audit, check_order
from tests.faults.histories.history import History, ReadMessage, Sender, SentMessage, Traits, slot
from tests.faults.histories.report import Kind, Report, Violation

SENDER = Sender()


@pytest.fixture
def history() -> History:
    return History("topic", Traits(), Report("replay"))


def stored(history: History, key: str, value: str | None, entry: int) -> tuple[SentMessage, ReadMessage]:
    """Send and acknowledge a message; return it as sent and as a reader receives it."""
    sent = history.sending(key, value, 0.0, SENDER, entry)
    history.acknowledge(sent, slot(1, entry, -1))
    return sent, ReadMessage(sent.serial, slot(1, entry, -1), key, sent.value, entry)


def audit(history: History) -> Audit:
    unused = mock.Mock()
    return Audit([history], [], [], unused, [], unused, random.Random(1), history.report)


def lost(history: History) -> None:
    stored(history, "k", "a", 1)
    _, other = stored(history, "k", "b", 2)
    audit(history).check_stored(history, [other])


def moved(history: History) -> None:
    sent, read = stored(history, "k", "a", 1)
    sent.ids.add(slot(1, 9, -1))
    audit(history).check_stored(history, [ReadMessage(read.serial, slot(1, 9, -1), "k", read.value)])
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
    audit(history).check_log(history, "topic", raw, raw[:1], slot(1, 2, -1))


def sparse(history: History) -> None:
    raw = [stored(history, "k", "a", entry)[1] for entry in (1, 3)]
    audit(history).check_log(history, "topic", raw, raw, None)


def outdated(history: History) -> None:
    old, _ = stored(history, "k1", "a", 1)
    stored(history, "k1", None, 2)
    audit(history).check_state(history, {"k1": old.value}, "a view", keeps_gone=False)


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
    checks = audit(history)
    checks.check_stored(history, raw)
    checks.check_log(history, "topic", raw, raw[2:], slot(1, 3, -1))
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


def test_an_unanswered_message_may_be_stored_or_not(history: History) -> None:
    _, read = stored(history, "k", "a", 1)
    open_message = history.sending("k", "b", 0.0, SENDER, 2)
    assert history.acceptable("k") == {read.value, open_message.value}
    assert history.resolve([read], 1.0) == 1
    assert history.acceptable("k") == {read.value}
