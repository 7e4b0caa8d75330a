"""Tenants and namespaces, and what roles may do in them and with single topics.

Invariants: a namespace has its tenant (the database says so); a tenant goes only without namespaces, a namespace only
without topics, and permissions and policies of the scope go with it, as a topic's do (topic_deletion.py). A call that
creates or deletes something in a namespace locks its row first (`lock_namespace`), and in a tenant the tenant's, so
neither can vanish meanwhile. Both locks come before all others of topics.py, but for a partitioned topic's own row;
tenant before namespace.

A topic has its namespace; no topic has the name of a partitioned topic, nor the other way round. Both are checked under
the namespace's lock, under which every topic is created. Where a topic is created in passing (an import), its tenant
and namespace are created with it (`ensure_topic`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, Table, delete, insert, select

from storage.clock import Clock
from storage.errors import Conflict, NotFound
from storage.failpoints import Failpoint, failpoint
from storage.metadata import cursors, policy_store, queries, topic_deletion, topics
from storage.metadata.engine import Database
from storage.metadata.policy_store import namespace_scope
from storage.metadata.queries import Store
from storage.metadata.records import (
    CLUSTER,
    COMPACTION_CURSOR,
    DeletedTopic,
    NamespaceRecord,
    TenantRecord,
    TopicRecord,
)
from storage.metadata.tables import (
    namespaces as namespaces_table,
    partitioned_topics,
    permissions,
    policies as policies_table,
    tenants as tenants_table,
    topics as topics_table,
)
from storage.model import TopicName

Granted = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Actions by scope and role."""
_TOPIC = "persistent://"
"""How the scope that is a topic begins: its full name."""


class TenancyStore(Store):
    """Tenants, namespaces and what is in them.

    Deleting a topic finds out by itself whether a COMMIT whose answer was lost has happened; other deletions and
    creations may raise NotFound or Conflict when they are called again after Unavailable.
    """

    def __init__(self, database: Database, clock: Clock, defaults: Mapping[str, object]) -> None:
        """`defaults`: the broker's policies (PolicyStore)."""
        super().__init__(database, clock)
        self._defaults = defaults

    # Tenants

    def tenants(self) -> list[str]:
        """All tenants, by name."""
        with self._database.read() as connection:
            return sorted(connection.execute(select(tenants_table.c.name)).scalars())

    def tenant(self, name: str) -> TenantRecord:
        """Raises NotFound."""
        with self._database.snapshot() as connection:
            return _tenant(connection, name)

    def create_tenant(self, name: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]) -> None:
        """Raises Conflict if it exists, InvalidTopicName for a name that no topic's tenant can have."""
        with self._database.write() as connection:
            now = self._clock.now_ms()
            TopicName(name, "any", "any")  # which checks its characters
            values = {"admin_roles": list(admin_roles), "allowed_clusters": list(allowed_clusters), "created_at": now}
            if not queries.insert_new(connection, tenants_table, name=name, **values):
                raise Conflict(
                    f"the tenant {name} exists already", "nothing was changed; update it, or choose another name"
                )

    def update_tenant(self, name: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]) -> None:
        """Replace both. Raises NotFound."""
        values = {"admin_roles": list(admin_roles), "allowed_clusters": list(allowed_clusters)}
        with self._database.write() as connection:
            if not queries.change(connection, tenants_table, name, **values):
                raise _missing("tenant", name)

    def delete_tenant(self, name: str) -> None:
        """With its permissions. Raises NotFound, Conflict if it has namespaces."""
        with self._database.write() as connection:
            _lock_tenant(connection, name)
            present = _namespaces(connection, name)
            if present:
                raise Conflict(
                    f"the tenant {name} has {len(present)} namespaces, {present[0]} among them",
                    "delete its namespaces first",
                )
            connection.execute(delete(permissions).where(permissions.c.scope == name))
            connection.execute(delete(tenants_table).where(tenants_table.c.name == name))

    # Namespaces, by their full names: tenant/namespace

    def namespaces(self, tenant: str) -> list[str]:
        """The full names of a tenant's namespaces, in order. Raises NotFound."""
        with self._database.snapshot() as connection:
            return _namespaces(connection, tenant)

    def namespace(self, name: str) -> NamespaceRecord:
        """Raises NotFound."""
        statement = select(namespaces_table).where(namespaces_table.c.name == name)
        with self._database.snapshot() as connection:
            row = connection.execute(statement).mappings().one_or_none()
            if row is None:
                raise _missing("namespace", name)
            return NamespaceRecord(row["name"], _granted(connection, name), row["created_at"])

    def create_namespace(self, name: str, policies: Mapping[str, object] | None = None) -> None:
        """With these policies, texts or JSON values by name, in one transaction.

        Raises NotFound for its tenant, Conflict if it exists, InvalidInput for a name or policy that cannot be.
        """
        wanted = policy_store.parsed(policies or {})
        with self._database.write() as connection:
            now = self._clock.now_ms()
            namespace_scope(name)
            tenant, _ = topics.parse_namespace(name)
            _lock_tenant(connection, tenant)
            if not queries.insert_new(connection, namespaces_table, name=name, tenant=tenant, created_at=now):
                raise Conflict(f"the namespace {name} exists already", "nothing was changed; choose another name")
            policy_store.put(connection, namespace_scope(name), wanted, self._defaults)

    def ensure_namespace(self, topic: TopicName) -> None:
        """The topic's tenant and namespace, created if they do not exist."""
        with self._database.write() as connection:
            _ensure_namespace(connection, topic, self._clock.now_ms())

    def delete_namespace(self, name: str) -> None:
        """With its policies and permissions. Raises NotFound, Conflict if it has topics."""
        with self._database.write() as connection:
            lock_namespace(connection, name)
            present = [str(topic.name) for topic in topics.in_namespace(connection, name)]
            partitioned = select(partitioned_topics.c.name).where(partitioned_topics.c.namespace == name)
            present += connection.execute(partitioned).scalars()
            if present:
                raise Conflict(f"the namespace {name} is not empty: it has {min(present)}", "delete its topics first")
            connection.execute(delete(permissions).where(permissions.c.scope == name))
            connection.execute(delete(policies_table).where(policies_table.c.scope == namespace_scope(name)))
            connection.execute(delete(namespaces_table).where(namespaces_table.c.name == name))

    # Permissions

    def permit(self, scope: str, role: str, actions: Sequence[str]) -> None:
        """Let a role do exactly these actions in a tenant, in `tenant/namespace`, or with a topic, by its full name.

        A partitioned topic's count for its partitions. Raises NotFound.
        """
        with self._database.write() as connection:
            _lock_scope(connection, scope)
            connection.execute(delete(permissions).where(permissions.c.scope == scope, permissions.c.role == role))
            connection.execute(insert(permissions).values(scope=scope, role=role, actions=list(actions)))

    def revoke(self, scope: str, role: str) -> bool:
        """Take all permissions of a role in that scope; whether it had any. Raises NotFound for the scope."""
        with self._database.write() as connection:
            _lock_scope(connection, scope)
            granted = (permissions.c.scope == scope) & (permissions.c.role == role)
            return connection.execute(delete(permissions).where(granted)).rowcount > 0

    def topic_permissions(self, names: Sequence[TopicName]) -> Granted:
        """What was granted for these topics themselves, by full name and role."""
        with self._database.read() as connection:
            return _granted_by_scope(connection, permissions.c.scope.in_(map(str, names)))

    def topic_permissions_in(self, namespace: str) -> Granted:
        """What was granted for single topics of `tenant/namespace`, by full name and role."""
        prefix = f"{_TOPIC}{namespace}/"
        with self._database.read() as connection:
            found = _granted_by_scope(connection, permissions.c.scope.startswith(prefix, autoescape=True))
        # SQLite's LIKE folds case.
        return {scope: granted for scope, granted in found.items() if scope.startswith(prefix)}

    # Topics

    def ensure_topic(self, name: TopicName) -> TopicRecord:
        """The topic of that name, created with tenant and namespace if it does not exist.

        Raises Conflict if that is a partitioned topic.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            existing = topics.find(connection, name)
            if existing is not None:
                return existing
            _ensure_namespace(connection, name, now)
            _check_not_partitioned(connection, name)
            return create_topics(connection, [name], now, self._defaults)[0]

    def create_topic(self, name: TopicName, properties: Mapping[str, str]) -> TopicRecord:
        """A new topic. Raises NotFound for its namespace, InvalidInput for the properties.

        Conflict if it, or a partitioned topic of its name, exists.
        """
        with self._database.write() as connection:
            now = self._clock.now_ms()
            lock_namespace(connection, f"{name.tenant}/{name.namespace}")
            _check_not_partitioned(connection, name)
            if topics.find(connection, name) is not None:
                raise Conflict(f"the topic {name} exists already", "nothing was changed; choose another name")
            (topic,) = create_topics(connection, [name], now, self._defaults)
            if properties:
                topics.store_properties(connection, topic.id, properties)
            return topic

    def delete_topic(self, topic_id: int, *, force: bool = True) -> DeletedTopic:
        """End the topic (S8): every row of it is gone, its writers and runs are fenced, its files are garbage.

        Raises TopicNotFound; LeaseHeld, unless forced, if it has a writer.
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

    def deleted_topic(self, uid: str) -> DeletedTopic | None:
        """The deleted topic of that uid, however long ago; None: it was not deleted, or never was."""
        with self._database.read() as connection:
            return topic_deletion.find(connection, uid)


def lock_namespace(connection: Connection, name: str) -> None:
    """The namespace stays, and no other transaction creates or deletes in it, until this one ends. Raises NotFound."""
    _lock(connection, namespaces_table, "namespace", name)


def create_topics(
    connection: Connection, names: Sequence[TopicName], now: int, defaults: Mapping[str, object]
) -> list[TopicRecord]:
    """Topics of one namespace, created if they do not exist; with `__compaction` where compaction is enabled (S9)."""
    around = policy_store.resolved_around(connection, policy_store.scope_around(names[0]), defaults)
    created = [topics.create(connection, name, now) for name in names]
    if around.compaction_enabled:
        for topic in sorted(created, key=lambda topic: topic.id):  # the order of locks: some may have been there
            cursors.ensure(connection, topic.id, COMPACTION_CURSOR)
    return created


def _tenant(connection: Connection, name: str) -> TenantRecord:
    """Raises NotFound."""
    row = connection.execute(select(tenants_table).where(tenants_table.c.name == name)).mappings().one_or_none()
    if row is None:
        raise _missing("tenant", name)
    return TenantRecord(
        name=row["name"],
        admin_roles=tuple(row["admin_roles"]),
        allowed_clusters=tuple(row["allowed_clusters"]),
        permissions=_granted(connection, name),
        created_at=row["created_at"],
    )


def _namespaces(connection: Connection, tenant_name: str) -> list[str]:
    """The full names of the tenant's namespaces, in order. Raises NotFound."""
    found = select(namespaces_table.c.name).where(namespaces_table.c.tenant == tenant_name)
    names = sorted(connection.execute(found).scalars())
    if not names:
        _tenant(connection, tenant_name)  # which raises NotFound
    return names


def _ensure_namespace(connection: Connection, name: TopicName, now: int) -> None:
    """The topic's tenant and namespace, created if they do not exist; the namespace is locked."""
    full = f"{name.tenant}/{name.namespace}"
    if connection.execute(select(namespaces_table.c.name).where(namespaces_table.c.name == full)).first() is None:
        values = {"admin_roles": [], "allowed_clusters": [CLUSTER], "created_at": now}
        if connection.execute(select(tenants_table.c.name).where(tenants_table.c.name == name.tenant)).first() is None:
            queries.insert_new(connection, tenants_table, name=name.tenant, **values)
        _lock_tenant(connection, name.tenant)
        queries.insert_new(connection, namespaces_table, name=full, tenant=name.tenant, created_at=now)
    lock_namespace(connection, full)


def _check_not_partitioned(connection: Connection, name: TopicName) -> None:
    statement = select(partitioned_topics.c.partitions).where(partitioned_topics.c.name == str(name))
    found = connection.execute(statement).scalar_one_or_none()
    if found is not None:
        raise Conflict(
            f"{name} is a partitioned topic of {found} partitions", f"name one of them, {name}-partition-0 for example"
        )


def _lock_tenant(connection: Connection, name: str) -> None:
    _lock(connection, tenants_table, "tenant", name)


def _lock(connection: Connection, table: Table, noun: str, name: str) -> None:
    statement = select(table.c.name).where(table.c.name == name).with_for_update(key_share=True)
    if connection.execute(statement).first() is None:
        raise _missing(noun, name)


def _lock_scope(connection: Connection, scope: str) -> None:
    if scope.startswith(_TOPIC):
        _lock_topic(connection, TopicName.parse(scope))
    elif "/" in scope:
        lock_namespace(connection, scope)
    else:
        _lock_tenant(connection, scope)


def _lock_topic(connection: Connection, name: TopicName) -> None:
    """The topic, or partitioned topic, is not deleted until this transaction ends. Raises TopicNotFound."""
    for table in (partitioned_topics, topics_table):
        there = select(table.c.name).where(table.c.name == str(name)).with_for_update(read=True, key_share=True)
        if connection.execute(there).first() is not None:
            return
    topics.by_name(connection, name)  # which raises TopicNotFound


def _granted(connection: Connection, scope: str) -> Mapping[str, tuple[str, ...]]:
    return _granted_by_scope(connection, permissions.c.scope == scope).get(scope, {})


def _granted_by_scope(connection: Connection, where: ColumnElement[bool]) -> Granted:
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for scope, role, actions in sorted(connection.execute(select(permissions).where(where)).all()):
        found.setdefault(scope, {})[role] = tuple(actions)
    return found


def _missing(noun: str, name: str) -> NotFound:
    return NotFound(f"the {noun} {name} does not exist", "create it first, or check the name")
