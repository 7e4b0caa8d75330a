"""TenancyStore: tenants, namespaces, permissions, partitioned topics, properties, and the end of topics.

Reached as MetadataStore.tenancy. As there, each method is one transaction, and may raise Unavailable and
Misconfigured, and, where a topic id is given, TopicNotFound. Deleting a topic finds out by itself whether a COMMIT
whose answer was lost has happened; other deletions and creations may then say NotFound or Conflict when they are called
again. What a method does is said where it is done: tenancy, tenancy_topics, tenancy_partitions, topic_deletion.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection

from storage.clock import Clock
from storage.failpoints import Failpoint, failpoint
from storage.metadata import policy_store, tenancy, tenancy_partitions, tenancy_topics, topic_deletion, topics
from storage.metadata.engine import Database
from storage.metadata.records import TopicRecord
from storage.metadata.tenancy_records import DeletedTopic, NamespaceRecord, PartitionedTopic, TenantRecord
from storage.model import TopicName


class TenancyStore:
    """The tenants' part of the metadata, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database, clock: Clock, defaults: Mapping[str, object]) -> None:
        """`defaults`: the broker's policies (PolicyStore)."""
        self._database = database
        self._clock = clock
        self._defaults = defaults

    # Tenants

    def tenants(self) -> list[str]:
        """All tenants, by name."""
        with self._database.read() as connection:
            return tenancy.tenants(connection)

    def tenant(self, name: str) -> TenantRecord:
        """Raises NotFound."""
        with self._database.snapshot() as connection:
            return tenancy.tenant(connection, name)

    def create_tenant(self, name: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]) -> None:
        """Raises Conflict, InvalidTopicName."""
        with self._database.write() as connection:
            tenancy.create_tenant(connection, name, admin_roles, allowed_clusters, self._clock.now_ms())

    def update_tenant(self, name: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]) -> None:
        """Replace both. Raises NotFound."""
        with self._database.write() as connection:
            tenancy.update_tenant(connection, name, admin_roles, allowed_clusters)

    def delete_tenant(self, name: str) -> None:
        """Raises NotFound, Conflict if it has namespaces."""
        with self._database.write() as connection:
            tenancy.delete_tenant(connection, name)

    # Namespaces, by their full names: tenant/namespace

    def namespaces(self, tenant: str) -> list[str]:
        """The full names of a tenant's namespaces, in order. Raises NotFound."""
        with self._database.snapshot() as connection:
            return tenancy.namespaces(connection, tenant)

    def namespace(self, name: str) -> NamespaceRecord:
        """Raises NotFound."""
        with self._database.snapshot() as connection:
            return tenancy.namespace(connection, name)

    def create_namespace(self, name: str, policies: Mapping[str, object] | None = None) -> None:
        """With these policies, texts or JSON values by name. Raises NotFound for the tenant, Conflict, InvalidInput."""
        wanted = policy_store.parsed(policies or {})
        with self._database.write() as connection:
            tenancy.create_namespace(connection, name, self._clock.now_ms())
            policy_store.put(connection, policy_store.namespace_scope(name), wanted)

    def ensure_namespace(self, topic: TopicName) -> None:
        """The topic's tenant and namespace, made if they do not exist."""
        with self._database.write() as connection:
            tenancy.ensure_namespace(connection, topic, self._clock.now_ms())

    def delete_namespace(self, name: str) -> None:
        """With its policies and permissions. Raises NotFound, Conflict if it has topics."""
        with self._database.write() as connection:
            tenancy.delete_namespace(connection, name)

    def permit(self, scope: str, role: str, actions: Sequence[str]) -> None:
        """Let a role do exactly these actions in a tenant, in `tenant/namespace`, or with a topic, by its full name.

        A partitioned topic's count for its partitions. Raises NotFound.
        """
        with self._database.write() as connection:
            tenancy.permit(connection, scope, role, actions)

    def revoke(self, scope: str, role: str) -> bool:
        """Take what a role was permitted there; whether that was anything. Raises NotFound for the scope."""
        with self._database.write() as connection:
            return tenancy.revoke(connection, scope, role)

    def topic_permissions(self, names: Sequence[TopicName]) -> tenancy.Granted:
        """What was granted for these topics themselves, by full name and role."""
        with self._database.read() as connection:
            return tenancy.topic_permissions(connection, names)

    def topic_permissions_in(self, namespace: str) -> tenancy.Granted:
        """What was granted for single topics of `tenant/namespace`, by full name and role."""
        with self._database.read() as connection:
            return tenancy.topic_permissions_in(connection, namespace)

    # Partitioned topics

    def partitioned(self, name: TopicName) -> PartitionedTopic | None:
        """The partitioned topic of that name, if it is one."""
        with self._database.read() as connection:
            return tenancy_partitions.find(connection, name)

    def partitioned_in(self, namespace: str) -> list[PartitionedTopic]:
        """Those of `tenant/namespace`, by name. Raises InvalidInput."""
        topics.parse_namespace(namespace)
        with self._database.read() as connection:
            return tenancy_partitions.in_namespace(connection, namespace)

    def create_partitioned(self, name: TopicName, partitions: int, properties: Mapping[str, str]) -> PartitionedTopic:
        """With its partitions. Raises NotFound for the namespace, Conflict, InvalidInput."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            return tenancy_partitions.create(connection, name, partitions, properties, now, self._defaults)

    def update_partitions(self, name: TopicName, partitions: int) -> PartitionedTopic:
        """Make more of them. Raises NotFound, InvalidInput, Conflict if they were to be fewer."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            return tenancy_partitions.update_number(connection, name, partitions, now, self._defaults)

    def set_partitioned_properties(
        self, name: TopicName, updates: Mapping[str, str], removed: Collection[str] = ()
    ) -> None:
        """Add or replace properties, and take those of `removed`; the others stay. Raises NotFound, InvalidInput."""
        with self._database.write() as connection:
            tenancy_partitions.set_properties(connection, name, updates, removed)

    def delete_partitioned(self, name: TopicName, force: bool) -> list[DeletedTopic]:
        """With its partitions, all or nothing. Raises NotFound; LeaseHeld unless forced, if somebody writes one."""
        with self._database.write() as connection:
            return tenancy_partitions.remove(connection, name, self._clock.now_ms(), force=force)

    # Topics

    def create_topic(self, name: TopicName, properties: Mapping[str, str]) -> TopicRecord:
        """A new topic. Raises Conflict if it exists, NotFound for its namespace, InvalidInput for the properties."""
        with self._database.write() as connection:
            return tenancy_topics.create(connection, name, properties, self._clock.now_ms(), self._defaults)

    def topic_properties(self, topic_id: int) -> dict[str, str]:
        with self._database.read() as connection:
            return tenancy_topics.properties(connection, topic_id)

    def set_topic_properties(self, topic_id: int, updates: Mapping[str, str]) -> dict[str, str]:
        """Add or replace properties; all of them as they are then. Raises InvalidInput."""
        with self._database.write() as connection:
            return tenancy_topics.set_properties(connection, topic_id, updates)

    def remove_topic_property(self, topic_id: int, key: str) -> bool:
        """Whether there was one to remove."""
        with self._database.write() as connection:
            return tenancy_topics.remove_property(connection, topic_id, key)

    def delete_topic(self, topic_id: int, *, force: bool = True) -> DeletedTopic:
        """End the topic (S8): every row of it is gone, its writers and runs are fenced, its files are garbage.

        Raises LeaseHeld unless forced, if somebody writes it.
        """

        def delete(connection: Connection) -> DeletedTopic:
            deleted = topic_deletion.delete_topic(connection, topic_id, self._clock.now_ms(), force=force)
            failpoint(Failpoint.TOPIC_DELETE_INSIDE_COMMIT)
            return deleted

        def happened(connection: Connection, deleted: DeletedTopic) -> bool:
            # Waits for the lost transaction, whose row this is; if that went through, the row is gone.
            topics.lock_if_there(connection, topic_id)
            return topic_deletion.find(connection, deleted.uid) is not None

        deleted = self._database.write_once(delete, happened, f"whether the topic with id {topic_id} was deleted")
        failpoint(Failpoint.TOPIC_DELETED)
        return deleted

    # What deleted topics leave

    def deleted_topic(self, uid: str) -> DeletedTopic | None:
        """The life of that uid if it is over, however long ago; None: the topic lives, or nobody knows of it."""
        with self._database.read() as connection:
            return topic_deletion.find(connection, uid)
