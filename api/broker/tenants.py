"""Operations on namespaces and on permissions that need more than one call of the database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from api.broker import names

if TYPE_CHECKING:
    from api.broker.broker import Broker
    from storage.environment import Environment
    from storage.metadata.stores import TenancyStore
    from storage.model import TopicName


def unload_namespace(broker: Broker, namespace: str, includes: Callable[[TopicName], bool]) -> None:
    """Close the logs and release the leases of the topics of a namespace that this service has open.

    `namespace`: `tenant/namespace`. `includes`: returns whether to unload a topic. Connected clients look the topics up
    again. Raise MissingNamespace.
    """
    names.namespace(broker.environment, namespace)
    written = [record for record in broker.logs.topics if names.namespace_of(record.name) == namespace]
    broker.logs.close_topics(*(record for record in written if includes(record.name)))


def topic_permissions(environment: Environment, name: TopicName) -> dict[str, list[str]]:
    """Return the sorted actions by role that a topic and its namespace grant. Raise TopicNotFound."""
    names.topics(environment, name)
    tenancy = environment.metadata.tenancy
    permissions: dict[str, list[str]] = {}
    for grants in (tenancy.namespace(names.namespace_of(name)).permissions, *topic_grants(tenancy, name)):
        for role, actions in grants.items():
            permissions[role] = sorted({*permissions.get(role, ()), *actions})
    return permissions


def topic_grants(tenancy: TenancyStore, name: TopicName) -> list[Mapping[str, tuple[str, ...]]]:
    """Return the actions by role that a topic grants, and those that its partitioned topic grants if it is a
    partition."""
    return list(
        tenancy.topic_permissions([name] if name.partitioned_topic is None else [name, name.partitioned_topic]).values()
    )
