"""Lines of the service's log: an error among the arguments of a message has its advice as commands."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from api.observability import logs
from api.settings.settings import Settings
from storage.advice import Advice, AdviceKind
from storage.errors import ErrorText, ObjectDamaged, WrongStore

LOG = logging.getLogger("storage.of_this_test")
DAMAGED = ObjectDamaged("5.log is damaged", Advice(AdviceKind.ACCEPT_LOSS_ROLLED, {"ledger_id": 5, "topic": "t"}))
COMMAND = "`compactor log seal t --accept-loss`"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logs.configure(Settings(), stream)
    yield stream
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("error", [DAMAGED, ErrorText.from_error(DAMAGED)], ids=["error", "text"])
def test_advice_is_logged_as_a_command(stream: io.StringIO, error: object) -> None:
    LOG.warning("%s of %d%%: %s", "sealing", 3, error)
    event = json.loads(stream.getvalue())["event"]
    assert event.startswith("sealing of 3%: 5.log is damaged: restore the file from a backup")
    assert event.endswith(COMMAND)
    assert COMMAND not in str(error)


def test_the_wrong_store_is_logged_with_the_command_that_adopts_it(stream: io.StringIO) -> None:
    LOG.error("nothing is sealed: %s", WrongStore("it is another one", "check it"))
    assert "`compactor store adopt`" in json.loads(stream.getvalue())["event"]


def test_messages_with_other_arguments_stay(stream: io.StringIO) -> None:
    LOG.warning("100% of it")
    LOG.warning("%(name)s", {"name": "n"})
    LOG.warning(ValueError("no text"))
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["100% of it", "n", "no text"]
