"""Rows of the table of policies on a topic's page: value, origin and meaning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from api.broker import policies
from api.broker.policies import PolicyScope
from api.reports import policies_document
from storage.environment import Environment
from storage.model import TopicName
from storage.options.policies import POLICIES
from storage.options.resolution import PolicyOrigin, PolicyResolution

PolicyRow: TypeAlias = dict[str, Any]


def policies_of(environment: Environment, name: TopicName) -> Sequence[PolicyRow]:
    """Return the policies of a topic, also of a partitioned one. Raises TopicNotFound, PartitionPolicyRefused."""
    return policy_rows(policies.resolved(environment, PolicyScope(PolicyOrigin.TOPIC, topic=name)))


def policy_rows(resolved: PolicyResolution) -> Sequence[PolicyRow]:
    """Return a row of each policy: its `option`, effective `value` and `origin`.

    Policies that are set come first, then the defaults, each sorted by name.
    """
    rows = [
        {"option": POLICIES[name], "origin": item["origin"], "value": json.dumps(item["value"]).strip('"')}
        for name, item in policies_document(resolved).items()
    ]
    return sorted(rows, key=lambda row: (row["origin"] == PolicyOrigin.DEFAULT, row["option"].name))
