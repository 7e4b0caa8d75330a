"""Tenants and namespaces, and what roles may do in them and with single topics.

Invariants: a namespace has its tenant (a foreign key); a tenant can be deleted only without namespaces, a namespace
only without topics, and permissions and policies of the scope are deleted with it, as a topic's are
(topic_deletion.py). A call that creates a topic in a namespace locks its row first (`lock_namespace`), and one
that creates a namespace the tenant's, so neither can be deleted meanwhile. Both locks come before all others of
topics.py and partitions.py; tenant before namespace. Deletion of topics takes neither.

A topic has its namespace; no topic has the name of a partitioned topic, nor the other way round. Both are checked under
the namespace's lock, under which every topic is created. An import creates the tenant and namespace of its topic with
it (`ensure_topic`).

`delete_topic` finds out by itself whether a COMMIT whose answer was lost has happened; other deletions and creations
may raise NotFound or Conflict when they are called again after Unavailable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import ColumnElement, Connection, RowMapping, Table, delete, select

from storage.errors import Conflict, NotFound
from storage.failpoints import Failpoint, failpoint
from storage.metadata import cursors, policy_store, queries, topic_deletion, topics
from storage.metadata.policy_store import namespace_scope
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
from storage.metadata.transactions import Context
from storage.model import TopicName

Granted = Mapping[str, Mapping[str, tuple[str, ...]]]
"""Permitted actions by scope and role."""
_TOPIC = "persistent://"
"""The beginning of a scope that is a topic: its full name."""


# Tenants


def tenants(connection: Connection) -> list[str]:
    """Return the names of all tenants, in order."""
    return sorted(connection.execute(select(tenants_table.c.name)).scalars())


def tenant(connection: Connection, name: str) -> TenantRecord:
    """Return the tenant of a name, with its permissions. Raises NotFound."""
    row = _get_row(connection, tenants_table, "tenant", name)
    return TenantRecord(
        name=row["name"],
        admin_roles=tuple(row["admin_roles"]),
        allowed_clusters=tuple(row["allowed_clusters"]),
        permissions=_permissions_of_scope(connection, name),
        created_at=row["created_at"],
    )


def create_tenant(
    connection: Connection, context: Context, name: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]
) -> None:
    """Insert a tenant. Raises Conflict if it exists, InvalidTopicName for a name that no topic's tenant can have."""
    TopicName(name, "any", "any")  # checks the characters
    values = {"admin_roles": list(admin_roles), "allowed_clusters": list(allowed_clusters), "created_at": context.now}
    if not queries.insert_new(connection, tenants_table, name=name, **values):
        raise Conflict(f"the tenant {name} exists already", "nothing was changed; update it, or choose another name")


def update_tenant(
    connection: Connection, name: str, admin_roles: Sequence[str], allowed_clusters: Sequence[str]
) -> None:
    """Replace the administrators' roles and the clusters of a tenant. Raises NotFound."""
    values = {"admin_roles": list(admin_roles), "allowed_clusters": list(allowed_clusters)}
    if not queries.change(connection, tenants_table, name, **values):
        raise _not_found("tenant", name)


def delete_tenant(connection: Connection, name: str) -> None:
    """Delete a tenant with its permissions. Raises NotFound, Conflict if it has namespaces."""
    _lock_tenant(connection, name)
    present = namespaces(connection, name)
    if present:
        raise Conflict(
            f"the tenant {name} has {len(present)} namespaces, {present[0]} among them", "delete its namespaces first"
        )
    connection.execute(delete(permissions).where(permissions.c.scope == name))
    connection.execute(delete(tenants_table).where(tenants_table.c.name == name))


# Namespaces, by their full names: tenant/namespace


def namespaces(connection: Connection, tenant_name: str) -> list[str]:
    """Return the full names of a tenant's namespaces, in order. Raises NotFound."""
    statement = select(namespaces_table.c.name).where(namespaces_table.c.tenant == tenant_name)
    names = sorted(connection.execute(statement).scalars())
    if not names:
        tenant(connection, tenant_name)  # raises NotFound
    return names


def namespace(connection: Connection, name: str) -> NamespaceRecord:
    """Return the namespace `tenant/namespace`, with its permissions. Raises NotFound."""
    row = _get_row(connection, namespaces_table, "namespace", name)
    return NamespaceRecord(row["name"], _permissions_of_scope(connection, name), row["created_at"])


def administered_namespaces(connection: Connection, role: str | None) -> list[str]:
    """Return the full names of the namespaces that `role` may administer, in order; None: of all namespaces.

    A role administers a namespace by the tenant's `admin_roles`, or by the action `admin` in either scope.
    """
    rows = connection.execute(select(namespaces_table.c.name, namespaces_table.c.tenant)).all()
    if role is None:
        return sorted(name for name, _ in rows)
    scopes = {
        name
        for name, roles in connection.execute(select(tenants_table.c.name, tenants_table.c.admin_roles))
        if role in roles
    }
    granted = select(permissions.c.scope, permissions.c.actions).where(permissions.c.role == role)
    scopes |= {scope for scope, actions in connection.execute(granted) if "admin" in actions}
    return sorted(name for name, tenant_name in rows if {name, tenant_name} & scopes)


def create_namespace(
    connection: Connection, context: Context, name: str, policies: Mapping[str, object] | None = None
) -> None:
    """Insert a namespace. `policies`: texts or JSON values by name; None: no policies.

    Raises NotFound for its tenant, Conflict if it exists, InvalidInput for an invalid name or policy.
    """
    values = policy_store.parse_values(policies or {})
    namespace_scope(name)
    tenant_name, _ = topics.parse_namespace(name)
    _lock_tenant(connection, tenant_name)
    row = {"name": name, "tenant": tenant_name, "created_at": context.now}
    if not queries.insert_new(connection, namespaces_table, **row):
        raise Conflict(f"the namespace {name} exists already", "nothing was changed; choose another name")
    policy_store.put(connection, context, [namespace_scope(name)], values)


def ensure_namespace(connection: Connection, context: Context, topic: TopicName) -> None:
    """Create the tenant and namespace of a topic's name if they do not exist, and lock the namespace."""
    full = f"{topic.tenant}/{topic.namespace}"
    if not queries.exists(connection, namespaces_table, namespaces_table.c.name == full):
        if not queries.exists(connection, tenants_table, tenants_table.c.name == topic.tenant):
            values = {"admin_roles": [], "allowed_clusters": [CLUSTER], "created_at": context.now}
            queries.insert_new(connection, tenants_table, name=topic.tenant, **values)
        _lock_tenant(connection, topic.tenant)
        row = {"name": full, "tenant": topic.tenant, "created_at": context.now}
        queries.insert_new(connection, namespaces_table, **row)
    lock_namespace(connection, full)


def delete_namespace(connection: Connection, name: str) -> None:
    """Delete a namespace with its policies and permissions. Raises NotFound, Conflict if it has topics."""
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


def set_permissions(connection: Connection, scope: str, role: str, actions: Sequence[str]) -> None:
    """Permit a role exactly `actions` in `scope`: a tenant, `tenant/namespace`, or a topic's full name.

    This replaces the role's actions there. The permissions of a partitioned topic count for its partitions, too. Raises
    NotFound.
    """
    _lock_scope(connection, scope)
    queries.put(connection, permissions, {"scope": scope, "role": role, "actions": list(actions)})


def revoke(connection: Connection, scope: str, role: str) -> bool:
    """Delete all permissions of a role in a scope. Returns False if there were none. Raises NotFound for the scope."""
    _lock_scope(connection, scope)
    granted = (permissions.c.scope == scope) & (permissions.c.role == role)
    return connection.execute(delete(permissions).where(granted)).rowcount > 0


def topic_permissions(connection: Connection, names: Sequence[TopicName]) -> Granted:
    """Return the permissions with these topics as their scope, by the topic's full name and role."""
    return _permissions_by_scope(connection, permissions.c.scope.in_(map(str, names)))


def topic_permissions_in(connection: Connection, namespace: str) -> Granted:
    """Return the permissions for single topics of `tenant/namespace`, by the topic's full name and role."""
    prefix = f"{_TOPIC}{namespace}/"
    by_scope = _permissions_by_scope(connection, permissions.c.scope.startswith(prefix, autoescape=True))
    # SQLite's LIKE folds case.
    return {scope: granted for scope, granted in by_scope.items() if scope.startswith(prefix)}


def topic_permissions_of(connection: Connection, role: str) -> Mapping[str, tuple[str, ...]]:
    """Return the actions that a role may do with single topics, by the topic's full name."""
    granted = (permissions.c.role == role) & permissions.c.scope.startswith(_TOPIC)
    return {scope: roles[role] for scope, roles in _permissions_by_scope(connection, granted).items()}


# Topics


def ensure_topic(connection: Connection, context: Context, name: TopicName) -> TopicRecord:
    """Return the topic of that name, created with tenant and namespace if it does not exist.

    Raises Conflict if a partitioned topic has the name, InvalidTopicName.
    """
    existing = topics.find(connection, name)
    if existing is not None:
        return existing
    ensure_namespace(connection, context, name)
    _check_not_partitioned(connection, name)
    return ensure_topics(connection, context, [name])[0]


def create_topic(
    connection: Connection, context: Context, name: TopicName, properties: Mapping[str, str]
) -> TopicRecord:
    """Insert a new topic with these properties, and return it.

    Raises Conflict if the topic, or a partitioned topic of its name, exists; NotFound for its namespace; InvalidInput
    for a name or property that is not allowed.
    """
    lock_namespace(connection, f"{name.tenant}/{name.namespace}")
    _check_not_partitioned(connection, name)
    if topics.find(connection, name) is not None:
        raise Conflict(f"the topic {name} exists already", "nothing was changed; choose another name")
    (topic,) = ensure_topics(connection, context, [name])
    if properties:
        topics.store_properties(connection, topic.id, properties)
    return topic


def delete_topic(connection: Connection, context: Context, topic_id: int, *, force: bool = True) -> DeletedTopic:
    """Delete the topic (S8): its rows are deleted, its writers and runs are fenced, its files become garbage.

    Raises TopicNotFound; LeaseHeld, unless `force`, if it has a writer.
    """
    deleted = topic_deletion.delete_topic(connection, context, topic_id, force=force)
    failpoint(Failpoint.TOPIC_DELETE_INSIDE_COMMIT)
    return deleted


def has_deleted(connection: Connection, deleted: DeletedTopic, topic_id: int, *, force: bool = True) -> bool:
    """Return whether a `delete_topic` with this result was committed."""
    # Waits for the lost transaction, which has locked this row; if that was committed, the row does not exist.
    topics.lock_all_for_deletion(connection, [topic_id])
    return topic_deletion.find_deleted(connection, deleted.uid) is not None


# Parts of other transactions


def lock_namespace(connection: Connection, name: str) -> None:
    """Lock a namespace until this transaction ends. Raises NotFound.

    No other transaction deletes it meanwhile, or creates a topic in it. A topic in it may be deleted.
    """
    _get_row(connection, namespaces_table, "namespace", name, locked=True)


def ensure_topics(connection: Connection, context: Context, names: Sequence[TopicName]) -> list[TopicRecord]:
    """Return the topics of these names, created if they do not exist. All are of one namespace, which must be locked.

    They get a cursor `__compaction` if compaction is enabled in the namespace (S9). Raises InvalidTopicName.
    """
    around = policy_store.policies_inherited_from(connection, context, policy_store.enclosing_scope(names[0]))
    created = topics.ensure(connection, names, context.now)
    if around.compaction_enabled:
        cursors.ensure_all(connection, [topic.id for topic in created], COMPACTION_CURSOR)
    return created


def _check_not_partitioned(connection: Connection, name: TopicName) -> None:
    statement = select(partitioned_topics.c.partitions).where(partitioned_topics.c.name == str(name))
    partitions = connection.execute(statement).scalar_one_or_none()
    if partitions is not None:
        raise Conflict(
            f"{name} is a partitioned topic of {partitions} partitions",
            f"name one of them, {name}-partition-0 for example",
        )


def _lock_tenant(connection: Connection, name: str) -> None:
    _get_row(connection, tenants_table, "tenant", name, locked=True)


def _get_row(connection: Connection, table: Table, noun: str, name: str, *, locked: bool = False) -> RowMapping:
    """Return the row of a tenant or namespace, locked or not. Raises NotFound."""
    statement = select(table).where(table.c.name == name)
    if locked:
        statement = statement.with_for_update(key_share=True)
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        raise _not_found(noun, name)
    return row


def _lock_scope(connection: Connection, scope: str) -> None:
    if scope.startswith(_TOPIC):
        _lock_topic(connection, TopicName.parse(scope))
    elif "/" in scope:
        lock_namespace(connection, scope)
    else:
        _lock_tenant(connection, scope)


def _lock_topic(connection: Connection, name: TopicName) -> None:
    """Lock the topic, or partitioned topic, so that no other transaction deletes it. Raises TopicNotFound."""
    for table in (partitioned_topics, topics_table):
        locking = select(table.c.name).where(table.c.name == str(name)).with_for_update(read=True, key_share=True)
        if connection.execute(locking).first() is not None:
            return
    topics.by_name(connection, name)  # raises TopicNotFound


def _permissions_of_scope(connection: Connection, scope: str) -> Mapping[str, tuple[str, ...]]:
    return _permissions_by_scope(connection, permissions.c.scope == scope).get(scope, {})


def _permissions_by_scope(connection: Connection, where: ColumnElement[bool]) -> Granted:
    granted: dict[str, dict[str, tuple[str, ...]]] = {}
    for scope, role, actions in sorted(connection.execute(select(permissions).where(where)).all()):
        granted.setdefault(scope, {})[role] = tuple(actions)
    return granted


def _not_found(noun: str, name: str) -> NotFound:
    return NotFound(f"the {noun} {name} does not exist", "create it first, or check the name")
