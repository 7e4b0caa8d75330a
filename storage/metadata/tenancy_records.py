"""Tenants, namespaces, partitioned topics and deleted topics, as frozen values. Times are milliseconds.

A tenant's or namespace's `permissions` are what was granted in that scope itself, by role; who may do what with a
topic, from tenant, namespace and superusers together, is said where access is decided. Actions are plain words here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.model import TopicName

CLUSTER = "standalone"
"""The one cluster that there is, under the name that Pulsar's standalone broker gives it."""


@dataclass(frozen=True)
class TenantRecord:
    """A tenant. `admin_roles` may administer all its namespaces."""

    name: str
    admin_roles: tuple[str, ...]
    allowed_clusters: tuple[str, ...]
    permissions: Mapping[str, tuple[str, ...]]
    created_at: int


@dataclass(frozen=True)
class NamespaceRecord:
    """A namespace; `name` is the full one, `tenant/namespace`."""

    name: str
    permissions: Mapping[str, tuple[str, ...]]
    created_at: int


@dataclass(frozen=True)
class PartitionedTopic:
    """A topic of several: `partitions` topics named `name-partition-0` and on."""

    name: TopicName
    partitions: int
    properties: Mapping[str, str]
    created_at: int


@dataclass(frozen=True)
class DeletedTopic:
    """A life of a topic that is over (S8); its files may still be there."""

    uid: str
    name: TopicName
    deleted_at: int
