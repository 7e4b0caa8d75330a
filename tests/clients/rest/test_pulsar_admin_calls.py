"""The calls of each command of `pulsar-admin` (tests/clients/java/pulsar-admin-calls.tsv), sent to this service.

No call is answered by a bare "Not Found" or by an error of the service: it is offered, or says that it is not.
"""

from __future__ import annotations

import json

import pytest

from api.app import ROUTERS
from tests.clients.java.recorder import recorded
from tests.serving import Served

TOPIC = "/admin/v2/persistent/public/default/x"
MAY_BE_ANSWERED_BY_A_DOCUMENT = {
    "/topics/persistent/{tenant}/{namespace}/{topic}",
    "/topics/persistent/{tenant}/{namespace}/{topic}/partitions/{partition}",
    *(
        f"/admin/v2/persistent/{{tenant}}/{{namespace}}/{{topic}}/{beyond}"
        for beyond in (
            "compaction",
            "mirror",
            "compaction/pause",
            "compaction/resume",
            "compaction/abort",
            "compaction/verify",
            "release-lease",
        )
    ),
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}/backlogSize",
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/analyzeBacklog",
    "/admin/v2/persistent/{tenant}/{namespace}/{topic}/trim",
    "/admin/v2/garbage",
    *(
        f"/admin/v2/schemas/{{tenant}}/{{namespace}}/{{topic}}/{call}"
        for call in ("schema", "version", "compatibility")
    ),
}
"""Changes that answer more than that they are done: beyond Pulsar, or where its clients want an answer."""


def _prepare(served: Served) -> None:
    """The topic of the recorded calls and its subscription, unless they are there."""
    assert served.ask("PUT", TOPIC).status_code in (204, 409)
    assert served.ask("PUT", f"{TOPIC}/subscription/s").status_code in (204, 409)


@pytest.mark.slow
def test_every_call_is_offered_or_says_that_it_is_not(served: Served) -> None:
    calls = recorded()
    assert len(calls) > 350
    wrong = []
    exists = False
    for call in calls:
        if not exists:
            _prepare(served)
        exists = call.verb != "DELETE"
        answer = served.ask(call.verb, call.path, call.body or None)
        reason = answer.json()["reason"] if answer.status_code >= 400 else ""
        if answer.status_code >= 500 or "there is no call" in reason or answer.status_code == 415:
            wrong.append(f"{call.command}: {call.verb} {call.path}: {answer.status_code} {reason}")
        if answer.status_code == 405 and "not offered here" not in reason:
            wrong.append(f"{call.command}: {call.verb} {call.path}: {reason}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "command",
    ["topics trim-topic persistent://public/default/x", "topics clear-backlog persistent://public/default/x"],
)
def test_a_call_that_pulsars_clients_expect_no_answer_from_has_none(served: Served, command: str) -> None:
    """They wait forever for the end of a call that answers a list."""
    _prepare(served)
    call = next(item for item in recorded() if item.command.startswith(command))
    answer = served.ask(call.verb, call.path, call.body or None)
    assert (answer.status_code, answer.content) == (204, b"")


def test_what_changes_something_answers_nothing_but_for_these() -> None:
    answering = {
        route.path
        for router in ROUTERS
        for route in router.routes
        if route.include_in_schema and route.status_code != 204 and not route.methods <= {"GET", "HEAD"}  # type: ignore[attr-defined]
    }
    refusing = {path for path in answering if "non-persistent" in path or "/brokers/configuration/" in path}
    assert answering - refusing == MAY_BE_ANSWERED_BY_A_DOCUMENT


def test_a_feature_without_a_value_has_none_and_takes_none(served: Served) -> None:
    _prepare(served)
    unset = served.ask("GET", f"{TOPIC}/persistence?applied=false")
    assert (unset.status_code, unset.text) == (200, "")
    refused = served.ask("POST", f"{TOPIC}/persistence", "{}")
    assert (refused.status_code, refused.headers["allow"]) == (405, "DELETE, GET")
    assert refused.json() == {"reason": "not offered here: BookKeeper: ledgers are in an object store"}
    assert served.ask("DELETE", f"{TOPIC}/persistence").status_code == 204
    values = {
        "/admin/v2/namespaces/public/default/properties": {},
        "/admin/v2/namespaces/public/default/isAllowAutoUpdateSchema": True,
        "/admin/v2/namespaces/public/default/replication": ["standalone"],
        "/admin/v2/clusters/standalone/failureDomains": {},
    }
    assert {path: served.ask("GET", path).json() for path in values} == values
    assert served.ask("GET", "/admin/v2/brokers/internal-configuration").status_code == 405


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (
            "/admin/v2/persistent/public/default/nosuch/persistence",
            "Topic persistent://public/default/nosuch not found",
        ),
        ("/admin/v2/namespaces/public/nosuch/persistence", "Namespace does not exist"),
        ("/admin/v2/clusters/nosuch/failureDomains", "Cluster does not exist"),
        ("/admin/v2/persistent/public/default/x/nosuch", "Not Found: there is no call GET "),
    ],
)
def test_what_is_missing_is_missing_first(served: Served, path: str, reason: str) -> None:
    _prepare(served)
    answer = served.ask("GET", path)
    assert answer.status_code == 404
    assert answer.json()["reason"].startswith(reason)


def test_a_shadow_topic_is_not_made_as_a_plain_one(served: Served) -> None:
    answer = served.ask("PUT", f"{TOPIC}-shadow", json.dumps({"PULSAR.SHADOW_SOURCE": "persistent://public/default/x"}))
    assert (answer.status_code, answer.json()) == (405, {"reason": "not offered here: shadow topics"})
    assert served.ask("GET", f"{TOPIC}-shadow/stats").status_code == 404
