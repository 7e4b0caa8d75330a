"""Advice in the words of each door: commands for an operator, routes over HTTP, neither for Pulsar's clients."""

from __future__ import annotations

import pytest

from api.cli.kit.failures import describe_error
from api.http.problems import HTTP_WORDING
from api.observability.error_text import ADMIN, ADMIN_WORDING, DASHBOARD_WORDING, OPERATOR_WORDING, WORDING_HEADER
from api.pulsar.errors import refusal
from storage.advice import Advice, AdviceKind
from storage.errors import Conflict
from tests.asgi import TestClient, application

ARGUMENTS = {
    "meant": "did you mean a.b? ",
    "field": "key",
    "run_id": 7,
    "clients": "them",
    "ledger_id": 3,
    "topic": "persistent://public/default/t",
}


@pytest.mark.parametrize(
    ("kind", "command", "admin", "route"),
    [
        (
            AdviceKind.LIST_TOPICS,
            "see `compactor topics list`",
            "see `compactor-admin topics list TENANT/NAMESPACE`",
            "see GET /admin/v2/persistent/{tenant}/{namespace}",
        ),
        (
            AdviceKind.LIST_RUNS,
            "`compactor compactions list` shows those that do",
            "`compactor-admin compactions list` shows those that do",
            "GET …/{topic}/compactions shows those that do",
        ),
        (
            AdviceKind.WATCH_OR_CANCEL_RUN,
            "wait for it to finish; `compactor compactions show 7` shows its progress, `compactor compactions cancel "
            "7` ends it",
            "wait for it to finish; `compactor-admin compactions watch 7` shows its progress, `compactor-admin "
            "compactions cancel 7` ends it",
            "wait for it to finish; GET /admin/v2/compactions/7 shows its progress, DELETE /admin/v2/compactions/7 "
            "ends it",
        ),
        (
            AdviceKind.TRIM_COMPACTED,
            "set cleanup.policy to compact,delete, or leave out --before to trim what is compacted",
            "set cleanup.policy to compact,delete, or leave out --before to trim what is compacted",
            "set cleanup.policy to compact,delete, or leave out `before` to trim what is compacted",
        ),
        (
            AdviceKind.RESUME_COMPACTION,
            "resume it, as often as it was paused: `compactor-admin compactions resume`",
            "resume it, as often as it was paused: `compactor-admin compactions resume`",
            "resume it, as often as it was paused: `compactor-admin compactions resume`",
        ),
        (
            AdviceKind.REBUILD_COMPACTED,
            "raw reads still work (leave out --read-compacted); check that COMPACTOR_STORE is the store of this "
            "database; restore the object from a backup; without one, `compactor cursor delete "
            "persistent://public/default/t __compaction`: nothing is lost, since the next run reads all raw messages "
            "again",
            "raw reads still work (leave out --read-compacted); check that COMPACTOR_STORE is the store of this "
            "database; restore the object from a backup; without one, `compactor-admin topics unsubscribe "
            "persistent://public/default/t -s __compaction`: nothing is lost, since the next run reads all raw "
            "messages again",
            "raw reads still work (leave out readCompacted); restore the object from a backup; without one, DELETE "
            "…/{topic}/subscription/__compaction: nothing is lost, since the next run reads all raw messages again",
        ),
        (
            AdviceKind.GIVE_UP_COMPACTED,
            "raw reads still work (leave out --read-compacted); check that COMPACTOR_STORE is the store of this "
            "database; restore the object from a backup; only without one, `compactor cursor delete "
            "persistent://public/default/t __compaction --force`: the values whose raw messages are trimmed are then "
            "lost",
            "raw reads still work (leave out --read-compacted); check that COMPACTOR_STORE is the store of this "
            "database; restore the object from a backup; only without one, `compactor-admin topics unsubscribe "
            "persistent://public/default/t -s __compaction --force`: the values whose raw messages are trimmed are "
            "then lost",
            "raw reads still work (leave out readCompacted); restore the object from a backup; only without one, "
            "DELETE …/{topic}/subscription/__compaction?force=true: the values whose raw messages are trimmed are then "
            "lost",
        ),
    ],
    ids=str,
)
def test_each_door_has_its_own_words(kind: AdviceKind, command: str, admin: str, route: str) -> None:
    error = Conflict("it failed", Advice(kind, ARGUMENTS))
    assert describe_error(error) == f"compactor: it failed: {command}"
    app = application()

    @app.get("/failing")
    def fail() -> None:
        raise error

    client = TestClient(app)
    assert client.get("/failing").json() == {"reason": f"it failed: {route}"}
    assert client.get("/failing", headers={WORDING_HEADER: ADMIN}).json() == {"reason": f"it failed: {admin}"}


@pytest.mark.parametrize("kind", AdviceKind)
def test_no_advice_is_without_words_and_pulsars_clients_get_no_command_and_no_route(kind: AdviceKind) -> None:
    error = Conflict("it failed", Advice(kind, ARGUMENTS))
    assert kind in OPERATOR_WORDING
    assert kind in HTTP_WORDING
    assert "/admin" not in error.worded(ADMIN_WORDING)
    assert "{" not in error.worded(OPERATOR_WORDING)
    assert [part for part in ("`", "/admin", "--") if part in refusal(error).message] == []
    page = error.worded(DASHBOARD_WORDING)
    assert [part for part in ("`", "GET ", "DELETE ", "--", "base64", "readCompacted") if part in page] == []
