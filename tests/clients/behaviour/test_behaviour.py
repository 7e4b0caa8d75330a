"""This service answers all probes as a real broker did (`recorded.json`), but for the differences that are listed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.behaviour.differences import DIFFERENT
from tests.clients.behaviour.endpoint import PROXY, SECRET_KEY, SUPERUSER, Endpoint
from tests.clients.behaviour.table import PROBES, RECORDED, answers
from tests.servers.compactor_service import compactor_service

TRIES = 3
"""Number of times that a probe with another answer is asked: on a busy machine a message comes after its quiet time."""
CLIENTS_PAGE = Path(__file__).parents[3] / "docs" / "clients.md"


def _recorded() -> dict[str, Any]:
    return dict(json.loads(RECORDED.read_text())["answers"])


@pytest.mark.slow
def test_answers_are_those_of_a_broker(tmp_path: Path) -> None:
    """All probes in one test: they share a service and run at once. What a probe answers in some try counts."""
    access = {
        "COMPACTOR_AUTH_TOKEN_SECRET_KEY": SECRET_KEY,
        "COMPACTOR_AUTH_SUPERUSER_ROLES": f"{SUPERUSER},{PROXY}",
        "COMPACTOR_AUTH_PROXY_ROLES": PROXY,
        "COMPACTOR_LIMITS_REQUESTS_PER_SECOND": "0",
    }
    expected = {
        name: DIFFERENT[name].applied(each) if name in DIFFERENT else each for name, each in _recorded().items()
    }
    actual: dict[str, Any] = {}
    with compactor_service(tmp_path, **access) as service:
        for _ in range(TRIES):
            differing = [name for name, each in expected.items() if name not in actual or actual[name] != each]
            actual |= answers(Endpoint(service.url, service.broker_service_url), differing)
    errors = [line for line in service.log.read_text().splitlines() if '"level": "error"' in line]

    lines = [
        f"{name} {PROBES[name].findings}:\n  expected {json.dumps(each)}\n  actual   {json.dumps(actual[name])}"
        for name, each in expected.items()
        if actual[name] != each
    ]
    assert not lines, "\n".join(lines)
    assert not errors, "\n".join(errors)


def test_each_probe_has_the_answer_of_a_broker() -> None:
    recorded = _recorded()
    assert sorted(recorded) == sorted(PROBES), "record again: python -m tests.clients.behaviour --record"
    assert [name for name, each in recorded.items() if isinstance(each, dict) and "exception" in each] == []


def test_differences_are_of_probes_and_explained_in_the_docs() -> None:
    recorded, page = _recorded(), " ".join(CLIENTS_PAGE.read_text().split())
    assert [name for name in DIFFERENT if name not in recorded] == []
    assert [name for name, each in DIFFERENT.items() if each.applied(recorded[name]) == recorded[name]] == []
    assert [each.reason for each in DIFFERENT.values() if each.reason not in page] == []
