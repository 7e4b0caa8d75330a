"""The policies of a topic as its page shows them: each with its value, its origin and its meaning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from api.broker.broker import Broker
from api.reports import policies_document
from api.rest.policies.scopes import PolicyScope
from storage.model import TopicName
from storage.options.policies import POLICIES
from storage.options.resolution import PolicyOrigin, PolicyResolution


@dataclass(frozen=True)
class PolicyRow:
    """A policy that holds for the topic, and where it is set. `takes`: its values in words."""

    name: str
    value: str
    origin: str
    doc: str
    takes: str

    @property
    def is_here(self) -> bool:
        """Return whether the topic itself sets it."""
        return self.origin == PolicyOrigin.TOPIC


def policies_of(broker: Broker, name: TopicName) -> Sequence[PolicyRow]:
    """Return the policies of a topic, also of a partitioned one. Raises RestException: 404, 412 for a partition."""
    return policy_rows(PolicyScope(PolicyOrigin.TOPIC, topic=name).resolved(broker))


def policy_rows(resolved: PolicyResolution) -> Sequence[PolicyRow]:
    """Return the rows: policies that are set first, then the defaults, each sorted by name."""
    document = policies_document(resolved)
    rows = [
        PolicyRow(
            policy,
            json.dumps(item["value"]).strip('"'),
            str(item["origin"]),
            POLICIES[policy].doc,
            POLICIES[policy].kind.allowed,
        )
        for policy, item in document.items()
    ]
    return sorted(rows, key=lambda row: (row.origin == PolicyOrigin.DEFAULT, row.name))
