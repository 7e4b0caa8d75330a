"""Permissions: the actions that roles may do in a tenant, in a namespace, or with a topic; for a topic all three hold.

Permissions of a partitioned topic hold for its partitions.

Pulsar's clients know `produce` and `consume`, and fail at words that they do not know; `compact` and `admin` are this
service's own and are listed only where they are asked for (`?all=true`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Body, Path

from api.broker import names, tenants
from api.http.access import GRANTABLE, AuthAction
from api.http.dependencies import Broker
from api.http.paths import NAMESPACE_PATH, TOPIC_PATH, Namespace, Topic, decode_path_part
from api.http.problems import RestException, reword_errors
from api.http.router import Routes
from api.rest.policies.namespace_policies import pulsar_permissions
from api.rest.tenancy.tenants import NO_TENANT, Tenant
from storage.errors import InvalidInput

router = Routes("permissions")

NOT_SET = "Permissions are not set at the topic level"
MAX_ROLE_BYTES = 1024
Role = Annotated[str, Path(description="Role, as the token's subject names it.")]
Actions = Annotated[list[str], Body(description="All that the role may do there, in place of what it might.")]


@router.get(NAMESPACE_PATH + "/permissions", AuthAction.ADMIN)
def get_namespace_permissions(broker: Broker, namespace: Namespace, all: bool = False) -> dict[str, list[str]]:
    """Return the actions granted in the namespace, by role. `all`: also those that Pulsar's clients do not know."""
    permissions = names.namespace(broker.environment, namespace).permissions
    return {role: list(actions) for role, actions in permissions.items()} if all else pulsar_permissions(permissions)


@router.post(NAMESPACE_PATH + "/permissions/{role}", AuthAction.ADMIN)
def grant_namespace_permission(broker: Broker, namespace: Namespace, role: Role, actions: Actions) -> None:
    """Set the actions that a role may do in the namespace. They replace earlier ones."""
    with reword_errors("Namespace does not exist"):
        _replace_granted_actions(broker, namespace, role, actions)


@router.delete(NAMESPACE_PATH + "/permissions/{role}", AuthAction.ADMIN)
def revoke_namespace_permission(broker: Broker, namespace: Namespace, role: Role) -> None:
    """Revoke all actions granted to a role in the namespace. Idempotent."""
    with reword_errors("Namespace does not exist"):
        broker.environment.metadata.tenancy.revoke(namespace, parse_role(role))


@router.get(TOPIC_PATH + "/permissions", AuthAction.ADMIN)
def get_topic_permissions(broker: Broker, topic: Topic, all: bool = False) -> dict[str, list[str]]:
    """Return the actions that the topic and its namespace grant, by role. `all`: also those unknown to Pulsar's
    clients."""
    permissions = tenants.topic_permissions(broker.environment, topic)
    return permissions if all else pulsar_permissions(permissions)


@router.post(TOPIC_PATH + "/permissions/{role}", AuthAction.ADMIN)
def grant_topic_permission(broker: Broker, topic: Topic, role: Role, actions: Actions) -> None:
    """Set the actions that a role may do with the topic, besides those that its namespace grants. They replace earlier
    ones."""
    with reword_errors(f"Topic {topic} not found"):
        _replace_granted_actions(broker, str(topic), role, actions)


@router.delete(TOPIC_PATH + "/permissions/{role}", AuthAction.ADMIN)
def revoke_topic_permission(broker: Broker, topic: Topic, role: Role) -> None:
    """Revoke all actions granted to a role for the topic; 412 if none was granted."""
    with reword_errors(f"Topic {topic} not found"):
        if not broker.environment.metadata.tenancy.revoke(str(topic), parse_role(role)):
            reason = f"the role {role} has no permissions of its own on {topic}"
            raise RestException(412, NOT_SET) from InvalidInput(reason, "nothing was changed; check the role's name")


@router.get("/tenants/{tenant}/permissions", AuthAction.ADMIN, refuses=(404,))
def get_tenant_permissions(broker: Broker, tenant: Tenant) -> dict[str, list[str]]:
    """Return the actions granted in the tenant, for all its namespaces, by role. Pulsar has no such call."""
    with reword_errors(NO_TENANT):
        permissions = broker.environment.metadata.tenancy.tenant(tenant).permissions
    return {role: list(actions) for role, actions in permissions.items()}


@router.post("/tenants/{tenant}/permissions/{role}", AuthAction.ADMIN, refuses=(404,))
def grant_tenant_permission(broker: Broker, tenant: Tenant, role: Role, actions: Actions) -> None:
    """Set the actions that a role may do in all namespaces of the tenant. They replace earlier ones. Pulsar has no such
    call."""
    with reword_errors(NO_TENANT):
        _replace_granted_actions(broker, tenant, role, actions)


@router.delete("/tenants/{tenant}/permissions/{role}", AuthAction.ADMIN, refuses=(404,))
def revoke_tenant_permission(broker: Broker, tenant: Tenant, role: Role) -> None:
    """Revoke all actions granted to a role in the tenant. Idempotent. Pulsar has no such call."""
    with reword_errors(NO_TENANT):
        broker.environment.metadata.tenancy.revoke(tenant, parse_role(role))


def parse_role(role: str) -> str:
    """Decode the role in a path, and return it. Raise RestException (412) for a role that no token can name."""
    name = decode_path_part(role)
    if not name.isprintable() or len(name.encode()) > MAX_ROLE_BYTES:
        raise RestException(412, f"A role is text that can be printed, of {MAX_ROLE_BYTES} bytes at most")
    return name


def _replace_granted_actions(broker: Broker, resource: str, role: str, actions: Sequence[str]) -> None:
    """Set the actions that a role may do in `resource`, the name of a tenant, namespace or topic. They replace earlier
    ones.

    Raise NotFound, RestException: 400 for a word that is no action, 412 for a role that no token can name.
    """
    unknown = sorted(set(actions) - set(GRANTABLE))
    if unknown:
        raise RestException(400, f"{unknown[0]!r} is no action: there are {', '.join(GRANTABLE)}")
    broker.environment.metadata.tenancy.set_permissions(resource, parse_role(role), sorted(set(actions)))
