"""Advice in the words of each door: commands for an operator, routes over HTTP, neither for Pulsar's clients."""

from __future__ import annotations

import pytest

from api.cli.kit.failures import describe
from api.http.problems import HTTP_WORDS, public_reason
from api.observability.error_text import OPERATOR_WORDS
from api.pulsar.errors import refusal
from storage.advice import Advice, AdviceKind
from storage.errors import Conflict

ARGUMENTS = {"run_id": 7, "ledger_id": 3, "topic": "persistent://public/default/t"}


@pytest.mark.parametrize(
    ("kind", "command", "route"),
    [
        (
            AdviceKind.LIST_TOPICS,
            "see `compactor topics list`",
            "see GET /admin/v2/persistent/{tenant}/{namespace}",
        ),
        (
            AdviceKind.LIST_RUNS,
            "`compactor compactions list` shows those that do",
            "GET …/{topic}/compactions shows those that do",
        ),
        (
            AdviceKind.WATCH_OR_CANCEL_RUN,
            "wait for it to finish; `compactor compactions show 7` shows its progress, `compactor compactions cancel "
            "7` ends it",
            "wait for it to finish; GET /admin/v2/compactions/7 shows its progress, DELETE /admin/v2/compactions/7 "
            "ends it",
        ),
        (
            AdviceKind.TRIM_COMPACTED,
            "set cleanup.policy to compact,delete, or leave out --before to trim what is compacted",
            "set cleanup.policy to compact,delete, or leave out `before` to trim what is compacted",
        ),
        (
            AdviceKind.RESUME_COMPACTION,
            "resume it, as often as it was paused: `compactor-admin compactions resume`",
            "resume it, as often as it was paused: `compactor-admin compactions resume`",
        ),
    ],
    ids=str,
)
def test_each_door_has_its_own_words(kind: AdviceKind, command: str, route: str) -> None:
    error = Conflict("it failed", Advice(kind, ARGUMENTS))
    assert describe(error) == f"compactor: it failed: {command}"
    assert public_reason(error) == f"it failed: {route}"


@pytest.mark.parametrize("kind", AdviceKind)
def test_no_advice_is_without_words_and_pulsars_clients_get_no_command_and_no_route(kind: AdviceKind) -> None:
    error = Conflict("it failed", Advice(kind, ARGUMENTS))
    assert kind in OPERATOR_WORDS
    assert kind in HTTP_WORDS
    assert "{" not in error.worded(OPERATOR_WORDS)
    assert [part for part in ("`", "/admin", "--") if part in refusal(error).message] == []
