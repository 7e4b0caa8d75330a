"""The scopes of policies as paths name them: a topic, a namespace, the broker.

A route takes its scope as a dependency, `scope: PolicyScope = kind.of`, and looks it up in the database when
it runs. The policies of a partitioned topic are stored with each of its partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Depends

from api.broker import names
from api.broker.broker import Broker
from api.http.paths import NAMESPACE_PATH, TOPIC_PATH, Namespace, Topic
from storage.metadata.policy_store import BROKER, namespace_scope, topic_scope
from storage.model import TopicName
from storage.options.resolution import PolicyOrigin, PolicyResolution


@dataclass(frozen=True)
class PolicyScope:
    """A scope that a request names; it need not exist. `topic`: also a partitioned one, as a whole. Without topic and
    namespace it is the broker's."""

    origin: PolicyOrigin
    topic: TopicName | None = None
    namespace: str | None = None

    def keys(self, broker: Broker) -> list[str]:
        """Return the keys of its policies in PolicyStore, at least one. Raises RestException: 404, 412."""
        if self.topic is not None:
            return list(map(topic_scope, names.policy_topics(broker.environment, self.topic)))
        if self.namespace is None:
            return [BROKER]
        names.namespace(broker.environment, self.namespace)
        return [namespace_scope(self.namespace)]

    def resolved(self, broker: Broker) -> PolicyResolution:
        """Return the policies that hold in it, wherever they are set: for a topic, or for one that sets nothing.

        Raises RestException: 404, 412.
        """
        store = broker.environment.metadata.policies
        if self.topic is not None:
            return store.resolved(names.policy_topics(broker.environment, self.topic)[0])
        return store.resolved_around(self.keys(broker)[0])

    def settings(self, broker: Broker) -> dict[str, object]:
        """Return the scope's own settings by name; also UnreadableStoredValue. Raises RestException: 404, 412."""
        return broker.environment.metadata.policies.settings(self.keys(broker)[0])

    def change(self, broker: Broker, values: Mapping[str, object], removed: Collection[str] | None = ()) -> None:
        """Change the policies under all its keys, as PolicyStore.change does. Raises RestException: 404, 412."""
        broker.environment.metadata.policies.change(self.keys(broker), values, removed)


@dataclass(frozen=True)
class ScopeKind:
    """A kind of scope. `label`: in operation ids; `path`: what the paths of its routes begin with; `of`: the default of
    a route's parameter that is the scope."""

    label: str
    path: str
    of: Any


async def _topic(topic: Topic) -> PolicyScope:
    return PolicyScope(PolicyOrigin.TOPIC, topic=topic)


async def _namespace(namespace: Namespace) -> PolicyScope:
    return PolicyScope(PolicyOrigin.NAMESPACE, namespace=namespace)


async def _broker() -> PolicyScope:
    return PolicyScope(PolicyOrigin.BROKER)


TOPIC = ScopeKind("Topic", TOPIC_PATH, Depends(_topic))
NAMESPACE = ScopeKind("Namespace", NAMESPACE_PATH, Depends(_namespace))
BROKER_KIND = ScopeKind("Broker", "/brokers", Depends(_broker))
