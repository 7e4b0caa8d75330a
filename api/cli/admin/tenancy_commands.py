"""`compactor-admin tenants`, `namespaces`, `clusters` and `brokers`, and permissions of namespaces and topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from api.cli.admin.requests import BROKERS, NAMESPACE, TOPIC, Command, Tenant, delete, get, option, post, put
from api.cli.admin.session import expand_path, session_of, split_names

_TENANTS = "/admin/v2/tenants"
_CLUSTERS = "/admin/v2/clusters"

Roles = Annotated[
    list[str] | None, typer.Option("-r", "--admin-roles", metavar="ROLE,…", help="Roles that administer the tenant.")
]
Clusters = Annotated[
    list[str] | None, typer.Option("-c", "--allowed-clusters", metavar="NAME,…", help="Clusters; all if not given.")
]


def create_tenant(context: typer.Context, tenant: Tenant, roles: Roles = None, clusters: Clusters = None) -> None:
    """Create a tenant."""
    admin = session_of(context)
    allowed = split_names(clusters) or admin.service.get(_CLUSTERS)
    body = {"adminRoles": split_names(roles), "allowedClusters": allowed}
    admin.service.request("PUT", expand_path(f"{_TENANTS}/{{tenant}}", tenant=tenant), body=body)
    admin.report_change(f"tenant {tenant} created")


def update_tenant(context: typer.Context, tenant: Tenant, roles: Roles = None, clusters: Clusters = None) -> None:
    """Change a tenant; options that are not given keep their values."""
    admin = session_of(context)
    path = expand_path(f"{_TENANTS}/{{tenant}}", tenant=tenant)
    before = admin.service.get(path)
    body = {
        "adminRoles": before.get("adminRoles", []) if roles is None else split_names(roles),
        "allowedClusters": before.get("allowedClusters", []) if clusters is None else split_names(clusters),
    }
    admin.service.request("POST", path, body=body)
    admin.report_change(f"tenant {tenant} changed")


def list_brokers(
    context: typer.Context, cluster: Annotated[str | None, typer.Argument(metavar="[CLUSTER]", help="Its name.")] = None
) -> None:
    """List the service processes that are alive."""
    admin = session_of(context)
    admin.show(
        admin.service.get(BROKERS if cluster is None else expand_path(f"{BROKERS}/{{cluster}}", cluster=cluster))
    )


def _permission_commands(path: str, show: str, grant: str, revoke: str, where: str) -> Mapping[str, Command]:
    """Return the commands for the permissions of a scope; `show`, `grant`, `revoke`: the help texts."""
    actions = option(
        list[str],
        "--actions",
        metavar="ACTION,…",
        help="Of produce, consume, compact and admin.",
        parse=split_names,
    )
    of_role = f"{path}/permissions/{{role}}"
    return {
        # `all`: also the actions that Pulsar's clients do not know, compact and admin among them.
        "permissions": get(f"{path}/permissions", show, query={"all": True}),
        "grant-permission": post(of_role, grant, f"role {{role}} may {{actions}} {where}", {"actions": actions}),
        "revoke-permission": delete(of_role, revoke, f"role {{role}} has no permission of its own {where} any more"),
    }


TENANTS: Mapping[str, Command] = {
    "list": get(_TENANTS, "List the tenants."),
    "get": get(f"{_TENANTS}/{{tenant}}", "Show a tenant: its admin roles and its clusters."),
    "create": create_tenant,
    "update": update_tenant,
    "delete": delete(f"{_TENANTS}/{{tenant}}", "Delete a tenant without namespaces.", "tenant {tenant} deleted"),
}
NAMESPACES: Mapping[str, Command] = {
    "list": get("/admin/v2/namespaces/{tenant}", "List the namespaces of a tenant."),
    "create": put(NAMESPACE, "Make a namespace.", "namespace {namespace} created"),
    "delete": delete(NAMESPACE, "Delete a namespace without topics.", "namespace {namespace} deleted"),
    "policies": get(NAMESPACE, "Show the policies that are set for a namespace, under Pulsar's names."),
    "topics": get(f"{NAMESPACE}/topics", "List the topics of a namespace, partitions one by one."),
    **_permission_commands(
        NAMESPACE,
        "Show the permissions of a namespace.",
        "Grant a role actions in a namespace.",
        "Revoke the permissions of a role in a namespace.",
        "in {namespace}",
    ),
}
OF_TOPICS = _permission_commands(
    TOPIC,
    "Show the permissions of a topic: its own and its namespace's.",
    "Grant a role actions on a topic, in addition to those of its namespace.",
    "Revoke the permissions of a role on a topic; those of its namespace stay.",
    "with {topic}",
)
BROKER_COMMANDS: Mapping[str, Command] = {
    "list": list_brokers,
    "leader-broker": get(f"{BROKERS}/leaderBroker", "Show the service process that schedules compactions."),
    "healthcheck": get(f"{BROKERS}/health", "Check whether the service can serve.", text=True),
    "version": get(f"{BROKERS}/version", "Show the version of the service.", text=True),
    "get-runtime-config": get(
        f"{BROKERS}/configuration/runtime", "Show the settings that the service runs with; secrets are redacted."
    ),
    "list-dynamic-config": get(
        f"{BROKERS}/configuration", "List the settings that could be changed while the service runs."
    ),
}
CLUSTERS: Mapping[str, Command] = {
    "list": get(_CLUSTERS, "List the clusters."),
    "get": get(f"{_CLUSTERS}/{{cluster}}", "Show the addresses of a cluster."),
}
