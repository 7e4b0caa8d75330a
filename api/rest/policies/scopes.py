"""Scopes of policies as paths name them: a topic, a namespace, the broker.

A route takes its scope as a dependency, `scope: PolicyScope = kind.dependency`; the scope is looked up when the route
runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Depends

from api.broker.policies import PolicyScope
from api.http.access import ANY_USE, AuthAction
from api.http.paths import NAMESPACE_PATH, TOPIC_PATH, Namespace, Topic
from storage.options.resolution import PolicyOrigin


@dataclass(frozen=True)
class ScopeKind:
    """A kind of scope of policies: topics, namespaces or the broker.

    `label`: its name in operation ids. `path`: the start of its routes' paths. `dependency`: the default of a route's
    parameter that gets the scope. `readers`: the actions of which a caller needs any for Pulsar's GET.
    """

    label: str
    path: str
    dependency: Any
    readers: tuple[AuthAction, ...] = (AuthAction.ADMIN,)


async def _topic_scope(topic: Topic) -> PolicyScope:
    return PolicyScope(PolicyOrigin.TOPIC, topic=topic)


async def _namespace_scope(namespace: Namespace) -> PolicyScope:
    return PolicyScope(PolicyOrigin.NAMESPACE, namespace=namespace)


async def _broker_scope() -> PolicyScope:
    return PolicyScope(PolicyOrigin.BROKER)


TOPIC = ScopeKind("Topic", TOPIC_PATH, Depends(_topic_scope), ANY_USE)
NAMESPACE = ScopeKind("Namespace", NAMESPACE_PATH, Depends(_namespace_scope))
BROKER = ScopeKind("Broker", "/brokers", Depends(_broker_scope))
KINDS = {PolicyOrigin.TOPIC: TOPIC, PolicyOrigin.NAMESPACE: NAMESPACE}
"""The kinds that Pulsar's calls have."""
