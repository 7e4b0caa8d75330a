"""Policies are set for a topic, or all its partitions, with all that belongs to them, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from api.rest.policies.backlog_quotas import BacklogQuota, OverQuotaAction, QuotaType, quota_values
from api.rest.policies.scopes import PolicyScope
from storage.errors import Unavailable
from storage.metadata import policy_store
from storage.model import TopicName
from storage.options.resolution import PolicyOrigin
from tests.workbench import Workbench

TOPIC = TopicName.parse("t")
SCOPE = PolicyScope(PolicyOrigin.TOPIC, TOPIC)
TTL = "message.ttl.seconds"
EVICTING = quota_values(QuotaType.SIZE, BacklogQuota.model_validate({"limit": 5, "policy": OverQuotaAction.EVICT}))


@pytest.mark.parametrize(
    ("writes", "call"),
    [
        ("_put", lambda broker: SCOPE.change(broker, EVICTING)),
        ("_put", lambda broker: SCOPE.change(broker, {TTL: 60})),
        ("_remove", lambda broker: SCOPE.change(broker, {}, EVICTING.keys())),
        ("_remove", lambda broker: SCOPE.change(broker, {}, [TTL])),
    ],
)
@pytest.mark.parametrize("written", range(1, 4))
def test_a_failure_between_two_writes_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: str, call: Callable[[Any], object], written: int
) -> None:
    metadata = Workbench.embedded(tmp_path).metadata
    metadata.partitions.create(TOPIC, 2, {})
    scopes = [policy_store.topic_scope(topic) for topic in metadata.topics.in_namespace("public/default")]
    quota = QuotaType.SIZE.policy
    metadata.policies.change(scopes, {TTL: 1, quota: 1000, f"{quota}.action": OverQuotaAction.HOLD.value})
    before = list(map(metadata.policies.of_scope, scopes))
    plain, remaining = getattr(policy_store, writes), [written]

    def write(*arguments: Any) -> Any:
        if not remaining[0]:
            raise Unavailable("the database is away", "try again")
        remaining[0] -= 1
        return plain(*arguments)

    monkeypatch.setattr(policy_store, writes, write)
    try:
        call(SimpleNamespace(environment=SimpleNamespace(metadata=metadata)))
    except Unavailable:
        assert list(map(metadata.policies.of_scope, scopes)) == before
    else:
        assert list(map(metadata.policies.of_scope, scopes)) != before
