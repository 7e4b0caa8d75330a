"""Policies of a topic, a namespace or the broker: get, set and remove them.

The policies of a partitioned topic are stored with each of its partitions; a single partition has no policies of its
own, as in Pulsar. Several policies are changed in one transaction, or none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from api.broker import names
from storage.metadata.policy_store import BROKER, namespace_scope, topic_scope
from storage.options.resolution import PolicyOrigin

if TYPE_CHECKING:
    from api.broker.pulsar_policies import PulsarPolicy
    from storage.environment import Environment
    from storage.model import TopicName
    from storage.options.resolution import PolicyResolution


@dataclass(frozen=True)
class PolicyScope:
    """The scope for which policies are set: a topic, a namespace or the broker. It need not exist. `origin`: the level.
    `topic`: of a topic or partitioned topic. `namespace`: `tenant/namespace`. Without both, the scope is the broker."""

    origin: PolicyOrigin
    topic: TopicName | None = None
    namespace: str | None = None


def policy_store_keys(environment: Environment, scope: PolicyScope) -> list[str]:
    """Return the keys under which the policies of a scope are stored: one, or one for each partition.

    Raise TopicNotFound, PartitionPolicyRefused, MissingNamespace; InvalidInput for a name that is no namespace's.
    """
    if scope.topic is not None:
        return list(map(topic_scope, names.topics_holding_policies_of(environment, scope.topic)))
    if scope.namespace is None:
        return [BROKER]
    key = namespace_scope(scope.namespace)
    names.namespace(environment, scope.namespace)
    return [key]


def resolved(environment: Environment, scope: PolicyScope) -> PolicyResolution:
    """Return the effective policies of a topic with their origins; of a wider scope, those that its topics inherit.

    Raise the errors of `policy_store_keys`.
    """
    store = environment.metadata.policies
    if scope.topic is not None:
        return store.resolve_policies(names.topics_holding_policies_of(environment, scope.topic)[0])
    return store.policies_inherited_from(policy_store_keys(environment, scope)[0])


def own_policies(environment: Environment, scope: PolicyScope) -> dict[str, object]:
    """Return the policies that a scope itself sets, by name; an UnreadableStoredValue for one that cannot be read.

    Raise the errors of `policy_store_keys`.
    """
    return environment.metadata.policies.of_scope(policy_store_keys(environment, scope)[0])


def change(
    environment: Environment, scope: PolicyScope, values: Mapping[str, object], removed: Collection[str] | None = ()
) -> None:
    """Set and remove policies of a scope in one transaction. `values`: texts or JSON values, by name or alias.
    `removed`: names; None: all.

    Raise the errors of `policy_store_keys`; InvalidInput for a name or value that is not allowed, or policies that
    contradict each other.
    """
    environment.metadata.policies.change(policy_store_keys(environment, scope), values, removed)


def get_wire_value(environment: Environment, scope: PolicyScope, policy: PulsarPolicy) -> Any:
    """Return the value of a Pulsar policy that a scope itself sets, as JSON for Pulsar's REST API.

    If the scope does not set the policy, return the policy's `unset_value` for this level. Raise the errors of
    `policy_store_keys`.
    """
    value = policy.wire_value(environment.metadata.policies.readable_of_scope(policy_store_keys(environment, scope)[0]))
    return policy.endpoints[scope.origin].unset_value if value is None else value


def set_wire_value(environment: Environment, scope: PolicyScope, policy: PulsarPolicy, value: Any) -> None:
    """Set a Pulsar policy of a scope to a JSON value of Pulsar's REST API. Raise PolicyValueRefused, and the errors of
    `policy_store_keys`."""
    scopes, changes = policy_store_keys(environment, scope), policy.changes_of(value, policy.endpoints[scope.origin])
    values = {name: setting for name, setting in changes.items() if setting is not None}
    environment.metadata.policies.change(scopes, values, changes.keys() - values.keys())
