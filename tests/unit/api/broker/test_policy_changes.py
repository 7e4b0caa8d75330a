"""Policies are set for a topic, or all its partitions, with all that belongs to them, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import event

from api.broker import policies
from api.broker.policies import PolicyScope
from api.broker.pulsar_policies import PULSAR_POLICIES, QuotaType
from storage.environment import Environment
from storage.errors import InvalidInput, Unavailable
from storage.metadata import policy_store
from storage.model import TopicName
from storage.options.policies import EVICT, HOLD
from storage.options.resolution import PolicyOrigin
from tests.workbench import Workbench

TOPIC = TopicName.parse("t")
SCOPE = PolicyScope(PolicyOrigin.TOPIC, TOPIC)
TTL = "message.ttl.seconds"
SIZE = QuotaType.SIZE
(QUOTAS,) = (policy for policy in PULSAR_POLICIES if SIZE.policy_names[0] in policy.names)
EVICTING = {SIZE: {"limit": 5, "limitSize": None, "limitTime": None, "policy": EVICT}}


@pytest.mark.parametrize(
    "call",
    [
        lambda environment: policies.set_wire_value(environment, SCOPE, QUOTAS, EVICTING),
        lambda environment: policies.change(environment, SCOPE, {TTL: 60}),
        lambda environment: policies.change(environment, SCOPE, {}, SIZE.policy_names),
        lambda environment: policies.change(environment, SCOPE, {}, [TTL]),
    ],
)
@pytest.mark.parametrize("written", range(1, 4))
def test_a_failure_between_two_writes_changes_nothing(
    tmp_path: Path, call: Callable[[Environment], object], written: int
) -> None:
    bench = Workbench.embedded(tmp_path)
    metadata = bench.metadata
    metadata.partitions.create(TOPIC, 2, {})
    scopes = [policy_store.topic_scope(topic) for topic in metadata.topics.in_namespace("public/default")]
    metadata.policies.change(scopes, {TTL: 1, **dict(zip(SIZE.policy_names, (1000, HOLD), strict=True))})
    before = list(map(metadata.policies.readable_of_scope, scopes))
    writes = itertools.count()

    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(("INSERT INTO policies", "DELETE FROM policies")) and next(writes) == written:
            raise Unavailable("the database is away", "try again")

    event.listen(metadata.database.engine, "before_cursor_execute", fail)
    try:
        call(bench)
    except Unavailable:
        assert list(map(metadata.policies.readable_of_scope, scopes)) == before
    else:
        assert list(map(metadata.policies.readable_of_scope, scopes)) != before
        assert 0 < next(writes) <= written


@pytest.mark.parametrize(
    ("values", "removed"), [({"no.such.policy": 1}, ()), ({TTL: "a while"}, ()), ({}, ["no.such.policy"])]
)
def test_a_refused_policy_does_not_wait_for_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: dict[str, object], removed: list[str]
) -> None:
    bench = Workbench.embedded(tmp_path)
    monkeypatch.setattr(bench.metadata.database, "write", None)
    with pytest.raises(InvalidInput):
        policies.change(bench, PolicyScope(PolicyOrigin.BROKER), values, removed)
