"""`compactor-admin tenants`, `namespaces`, `clusters` and `brokers`: all but their thresholds and retention.

And permissions, of namespaces and of topics.
"""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.admin.arguments import Namespace, Tenant, Topic
from api.cli.admin.session import (
    namespace_path,
    path,
    session,
    topic_path,
)

_TENANTS = ("admin", "v2", "tenants")
_BROKERS = ("admin", "v2", "brokers")

Roles = Annotated[
    list[str] | None, typer.Option("-r", "--admin-roles", metavar="ROLE,…", help="Roles that administer the tenant.")
]
Clusters = Annotated[
    list[str] | None, typer.Option("-c", "--allowed-clusters", metavar="NAME,…", help="Clusters; all if not given.")
]
Role = Annotated[str, typer.Option("--role", metavar="ROLE", help="The role.")]
Actions = Annotated[
    list[str], typer.Option("--actions", metavar="ACTION,…", help="Of produce, consume, compact and admin.")
]


def list_tenants(context: typer.Context) -> None:
    """List the tenants."""
    admin = session(context)
    admin.show(admin.service.get(path(*_TENANTS)))


def get_tenant(context: typer.Context, tenant: Tenant) -> None:
    """Show a tenant: who administers it, and in which clusters it is."""
    admin = session(context)
    admin.show(admin.service.get(path(*_TENANTS, tenant)))


def create_tenant(context: typer.Context, tenant: Tenant, roles: Roles = None, clusters: Clusters = None) -> None:
    """Make a tenant."""
    admin = session(context)
    allowed = _parted(clusters) or admin.service.get(path("admin", "v2", "clusters"))
    admin.service.put(path(*_TENANTS, tenant), {"adminRoles": _parted(roles), "allowedClusters": allowed})
    admin.done(f"tenant {tenant} created")


def update_tenant(context: typer.Context, tenant: Tenant, roles: Roles = None, clusters: Clusters = None) -> None:
    """Change a tenant; what is not given stays."""
    admin = session(context)
    before = admin.service.get(path(*_TENANTS, tenant))
    body = {
        "adminRoles": before.get("adminRoles", []) if roles is None else _parted(roles),
        "allowedClusters": before.get("allowedClusters", []) if clusters is None else _parted(clusters),
    }
    admin.service.post(path(*_TENANTS, tenant), body)
    admin.done(f"tenant {tenant} changed")


def delete_tenant(context: typer.Context, tenant: Tenant) -> None:
    """Delete a tenant without namespaces."""
    admin = session(context)
    admin.service.delete(path(*_TENANTS, tenant))
    admin.done(f"tenant {tenant} deleted")


def list_namespaces(context: typer.Context, tenant: Tenant) -> None:
    """List the namespaces of a tenant."""
    admin = session(context)
    admin.show(admin.service.get(path("admin", "v2", "namespaces", tenant)))


def create_namespace(context: typer.Context, namespace: Namespace) -> None:
    """Make a namespace."""
    admin = session(context)
    admin.service.put(namespace_path(namespace))
    admin.done(f"namespace {namespace} created")


def delete_namespace(context: typer.Context, namespace: Namespace) -> None:
    """Delete a namespace without topics."""
    admin = session(context)
    admin.service.delete(namespace_path(namespace))
    admin.done(f"namespace {namespace} deleted")


def namespace_policies(context: typer.Context, namespace: Namespace) -> None:
    """Show what is set for a namespace, as Pulsar names it."""
    admin = session(context)
    admin.show(admin.service.get(namespace_path(namespace)))


def namespace_topics(context: typer.Context, namespace: Namespace) -> None:
    """List the topics of a namespace, partitions one by one."""
    admin = session(context)
    admin.show(admin.service.get(namespace_path(namespace, "topics")))


def namespace_permissions(context: typer.Context, namespace: Namespace) -> None:
    """Show who may do what in a namespace."""
    admin = session(context)
    # `all`: also what Pulsar's clients do not know, compact and admin among it.
    admin.show(admin.service.get(namespace_path(namespace, "permissions"), all=True))


def grant_permission(
    context: typer.Context,
    namespace: Namespace,
    role: Role,
    actions: Actions,
) -> None:
    """Let a role do something in a namespace."""
    admin = session(context)
    admin.service.post(namespace_path(namespace, "permissions", role), _parted(actions))
    admin.done(f"role {role} may {', '.join(_parted(actions))} in {namespace}")


def revoke_permission(context: typer.Context, namespace: Namespace, role: Role) -> None:
    """Take from a role all that it was permitted in a namespace."""
    admin = session(context)
    admin.service.delete(namespace_path(namespace, "permissions", role))
    admin.done(f"role {role} has no permission of its own in {namespace} any more")


def topic_permissions(context: typer.Context, topic: Topic) -> None:
    """Show who may do what with a topic, by its own permissions and its namespace's."""
    admin = session(context)
    admin.show(admin.service.get(topic_path(topic, "permissions"), all=True))


def grant_topic_permission(context: typer.Context, topic: Topic, role: Role, actions: Actions) -> None:
    """Let a role do something with a topic, besides what its namespace grants."""
    admin = session(context)
    admin.service.post(topic_path(topic, "permissions", role), _parted(actions))
    admin.done(f"role {role} may {', '.join(_parted(actions))} with {topic}")


def revoke_topic_permission(context: typer.Context, topic: Topic, role: Role) -> None:
    """Take from a role what it was permitted with a topic by itself."""
    admin = session(context)
    admin.service.delete(topic_path(topic, "permissions", role))
    admin.done(f"role {role} has no permission of its own for {topic} any more")


def list_clusters(context: typer.Context) -> None:
    """List the clusters."""
    admin = session(context)
    admin.show(admin.service.get(path("admin", "v2", "clusters")))


def get_cluster(
    context: typer.Context, cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="Its name.")]
) -> None:
    """Show the addresses of a cluster."""
    admin = session(context)
    admin.show(admin.service.get(path("admin", "v2", "clusters", cluster)))


def list_brokers(
    context: typer.Context, cluster: Annotated[str | None, typer.Argument(metavar="[CLUSTER]", help="Its name.")] = None
) -> None:
    """List the service processes that are alive."""
    admin = session(context)
    admin.show(admin.service.get(path(*_BROKERS, *([] if cluster is None else [cluster]))))


def leader_broker(context: typer.Context) -> None:
    """Show the service process that schedules compactions."""
    admin = session(context)
    admin.show(admin.service.get(path(*_BROKERS, "leaderBroker")))


def healthcheck(context: typer.Context) -> None:
    """Ask whether the service can serve."""
    admin = session(context)
    admin.show(admin.service.text(path(*_BROKERS, "health")))


def broker_version(context: typer.Context) -> None:
    """Show the version of the service."""
    admin = session(context)
    admin.show(admin.service.text(path(*_BROKERS, "version")))


def runtime_configuration(context: typer.Context) -> None:
    """Show the settings that the service runs with; secrets are redacted."""
    admin = session(context)
    admin.show(admin.service.get(path(*_BROKERS, "configuration", "runtime")))


def dynamic_configuration(context: typer.Context) -> None:
    """List the settings that could be changed while the service runs."""
    admin = session(context)
    admin.show(admin.service.get(path(*_BROKERS, "configuration")))


def _parted(given: list[str] | None) -> list[str]:
    """Names that were given one by one or with commas between them."""
    return [name for text in given or () for name in text.split(",") if name]
