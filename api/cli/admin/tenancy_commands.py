"""`compactor-admin tenants`, `namespaces`, `clusters` and `brokers`, and permissions of namespaces and topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from api.cli.admin.requests import BROKERS, NAMESPACE, TOPIC, Command, RequestCommand, RequestOption, Tenant, get
from api.cli.admin.session import expand, session, split_names

_TENANTS = "/admin/v2/tenants"
_CLUSTERS = "/admin/v2/clusters"

Roles = Annotated[
    list[str] | None, typer.Option("-r", "--admin-roles", metavar="ROLE,…", help="Roles that administer the tenant.")
]
Clusters = Annotated[
    list[str] | None, typer.Option("-c", "--allowed-clusters", metavar="NAME,…", help="Clusters; all if not given.")
]


def create_tenant(context: typer.Context, tenant: Tenant, roles: Roles = None, clusters: Clusters = None) -> None:
    """Make a tenant."""
    admin = session(context)
    allowed = split_names(clusters) or admin.service.get(_CLUSTERS)
    body = {"adminRoles": split_names(roles), "allowedClusters": allowed}
    admin.service.request("PUT", expand(f"{_TENANTS}/{{tenant}}", tenant=tenant), body=body)
    admin.done(f"tenant {tenant} created")


def update_tenant(context: typer.Context, tenant: Tenant, roles: Roles = None, clusters: Clusters = None) -> None:
    """Change a tenant; what is not given stays."""
    admin = session(context)
    path = expand(f"{_TENANTS}/{{tenant}}", tenant=tenant)
    before = admin.service.get(path)
    body = {
        "adminRoles": before.get("adminRoles", []) if roles is None else split_names(roles),
        "allowedClusters": before.get("allowedClusters", []) if clusters is None else split_names(clusters),
    }
    admin.service.request("POST", path, body=body)
    admin.done(f"tenant {tenant} changed")


def list_brokers(
    context: typer.Context, cluster: Annotated[str | None, typer.Argument(metavar="[CLUSTER]", help="Its name.")] = None
) -> None:
    """List the service processes that are alive."""
    admin = session(context)
    admin.show(admin.service.get(BROKERS if cluster is None else expand(f"{BROKERS}/{{cluster}}", cluster=cluster)))


def _permissions(path: str, show: str, grant: str, revoke: str, where: str) -> Mapping[str, RequestCommand | Command]:
    """Permissions of a scope; `show`, `grant`, `revoke`: the help texts."""
    actions = RequestOption(
        Annotated[
            list[str], typer.Option("--actions", metavar="ACTION,…", help="Of produce, consume, compact and admin.")
        ],
        parse=split_names,
    )
    of_role = f"{path}/permissions/{{role}}"
    return {
        # `all`: also the actions that Pulsar's clients do not know, compact and admin among them.
        "permissions": get(f"{path}/permissions", show, query={"all": True}),
        "grant-permission": RequestCommand(
            "POST", of_role, grant, f"role {{role}} may {{actions}} {where}", {"actions": actions}
        ),
        "revoke-permission": RequestCommand(
            "DELETE", of_role, revoke, f"role {{role}} has no permission of its own {where} any more"
        ),
    }


TENANTS: Mapping[str, RequestCommand | Command] = {
    "list": get(_TENANTS, "List the tenants."),
    "get": get(f"{_TENANTS}/{{tenant}}", "Show a tenant: who administers it, and in which clusters it is."),
    "create": create_tenant,
    "update": update_tenant,
    "delete": RequestCommand(
        "DELETE", f"{_TENANTS}/{{tenant}}", "Delete a tenant without namespaces.", "tenant {tenant} deleted"
    ),
}
NAMESPACES: Mapping[str, RequestCommand | Command] = {
    "list": get("/admin/v2/namespaces/{tenant}", "List the namespaces of a tenant."),
    "create": RequestCommand("PUT", NAMESPACE, "Make a namespace.", "namespace {namespace} created"),
    "delete": RequestCommand(
        "DELETE", NAMESPACE, "Delete a namespace without topics.", "namespace {namespace} deleted"
    ),
    "policies": get(NAMESPACE, "Show what is set for a namespace, as Pulsar names it."),
    "topics": get(f"{NAMESPACE}/topics", "List the topics of a namespace, partitions one by one."),
    **_permissions(
        NAMESPACE,
        "Show who may do what in a namespace.",
        "Let a role do something in a namespace.",
        "Take from a role all that it was permitted in a namespace.",
        "in {namespace}",
    ),
}
OF_TOPICS = _permissions(
    TOPIC,
    "Show who may do what with a topic, by its own permissions and its namespace's.",
    "Let a role do something with a topic, besides what its namespace grants.",
    "Take from a role what it was permitted with a topic by itself.",
    "with {topic}",
)
BROKER_COMMANDS: Mapping[str, RequestCommand | Command] = {
    "list": list_brokers,
    "leader-broker": get(f"{BROKERS}/leaderBroker", "Show the service process that schedules compactions."),
    "healthcheck": get(f"{BROKERS}/health", "Ask whether the service can serve.", text=True),
    "version": get(f"{BROKERS}/version", "Show the version of the service.", text=True),
    "get-runtime-config": get(
        f"{BROKERS}/configuration/runtime", "Show the settings that the service runs with; secrets are redacted."
    ),
    "list-dynamic-config": get(
        f"{BROKERS}/configuration", "List the settings that could be changed while the service runs."
    ),
}
CLUSTERS: Mapping[str, RequestCommand | Command] = {
    "list": get(_CLUSTERS, "List the clusters."),
    "get": get(f"{_CLUSTERS}/{{cluster}}", "Show the addresses of a cluster."),
}
