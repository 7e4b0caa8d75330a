"""Clusters and tenants. There is one cluster, this one."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Depends, Request
from pydantic import Field

from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.paths import path_parameter
from api.http.problems import RestException, reword_errors
from api.http.router import Routes
from api.rest.brokers.unsupported_features import ONE_CLUSTER, REFUSAL
from api.rest.models import PulsarAnswer, PulsarBody
from api.rest.topics.lookup import service_urls
from storage.errors import InvalidTopicName
from storage.model import TopicName

router = Routes("tenants")

NO_TENANT = "Tenant does not exist"


async def tenant_name(request: Request) -> str:
    """Return the tenant of a path, which need not exist. Raise RestException (412) for an invalid name."""
    name = path_parameter(request, "tenant")
    try:
        TopicName(name, "any", "any")
    except InvalidTopicName as error:
        raise RestException(412, "Tenant name is not valid") from error
    return name


Tenant = Annotated[str, Depends(tenant_name)]
"""A route's parameter: the tenant that the path names."""


class TenantInfo(PulsarBody):
    """The administrators of a tenant, and the clusters that it may use."""

    admin_roles: list[str] | None = Field(default_factory=list)
    allowed_clusters: list[str] | None = Field(default_factory=list)


class ClusterInfo(PulsarAnswer, extra="forbid"):
    """The URLs of the cluster, with the names of Pulsar's fields."""

    service_url: str
    broker_service_url: str
    broker_client_tls_enabled: bool = False
    tls_allow_insecure_connection: bool = False
    broker_client_tls_enabled_with_key_store: bool = False


@router.get("/clusters", AuthAction.SUPERUSER)
def list_clusters(broker: Broker) -> list[str]:
    """Return the names of the clusters: there is one."""
    return [broker.settings.cluster_name]


@router.get("/clusters/{cluster}", AuthAction.SUPERUSER, refuses=(404,))
def get_cluster(broker: Broker, request: Request, cluster: str) -> ClusterInfo:
    """Return the URLs of the cluster."""
    if cluster != broker.settings.cluster_name:
        raise RestException(404, "Cluster does not exist")
    urls = service_urls(broker, request)
    return ClusterInfo(service_url=urls.http, broker_service_url=urls.broker_service)


@router.put("/clusters/{cluster}", AuthAction.SUPERUSER, refuses=(405, 409), operation_id="createCluster")
def refuse_cluster_creation(broker: Broker, cluster: str) -> None:
    """Refuse to create a cluster: the one cluster exists, and a second one is not offered."""
    if cluster == broker.settings.cluster_name:
        raise RestException(409, "Cluster already exists")
    raise RestException(405, REFUSAL.format(ONE_CLUSTER))


@router.get("/tenants", AuthAction.SUPERUSER)
def list_tenants(broker: Broker) -> list[str]:
    """Return all tenants, by name."""
    return broker.environment.metadata.tenancy.tenants()


@router.get("/tenants/{tenant}", AuthAction.ADMIN, refuses=(404,))
def get_tenant(broker: Broker, tenant: Tenant) -> TenantInfo:
    """Return the tenant's administrators and clusters."""
    with reword_errors(NO_TENANT):
        record = broker.environment.metadata.tenancy.tenant(tenant)
    return TenantInfo.model_validate(
        {"adminRoles": sorted(record.admin_roles), "allowedClusters": sorted(record.allowed_clusters)}
    )


@router.put("/tenants/{tenant}", AuthAction.SUPERUSER, refuses=(409,))
def create_tenant(broker: Broker, tenant: Tenant, info: Annotated[TenantInfo | None, Body()] = None) -> None:
    """Create a tenant with its administrators and clusters."""
    roles, clusters = _valid_roles_and_clusters(broker, info)
    with reword_errors(conflict="Tenant already exist"):
        broker.environment.metadata.tenancy.create_tenant(tenant, roles, clusters)


@router.post("/tenants/{tenant}", AuthAction.SUPERUSER, refuses=(404,))
def update_tenant(broker: Broker, tenant: Tenant, info: Annotated[TenantInfo, Body()]) -> None:
    """Replace a tenant's administrators and clusters."""
    roles, clusters = _valid_roles_and_clusters(broker, info)
    with reword_errors(NO_TENANT):
        broker.environment.metadata.tenancy.update_tenant(tenant, roles, clusters)


@router.delete("/tenants/{tenant}", AuthAction.SUPERUSER, refuses=(404, 405, 409))
def delete_tenant(broker: Broker, tenant: Tenant, force: bool = False) -> None:
    """Delete a tenant that has no namespaces. `force` is refused: delete its namespaces first."""
    if force:
        raise RestException(405, "Broker doesn't allow forced deletion of tenants")
    with reword_errors(NO_TENANT, "The tenant still has active namespaces"):
        broker.environment.metadata.tenancy.delete_tenant(tenant)


def _valid_roles_and_clusters(broker: Broker, info: TenantInfo | None) -> tuple[list[str], list[str]]:
    """Return the administrator roles and the clusters of a tenant's document, sorted. Raise RestException (412) for
    invalid ones, in the words of a broker."""
    roles = (info.admin_roles if info else None) or []
    clusters: list[Any] = (info.allowed_clusters if info else None) or []
    if any(not role or role != role.strip() for role in roles):
        raise RestException(412, "AdminRoles contains whitespace in the beginning or end.")
    if not all(role.isprintable() for role in roles):
        raise RestException(412, "A role is text that can be printed: no token could name another")
    if not clusters:
        raise RestException(412, "Clusters can not be empty")
    if set(clusters) != {broker.settings.cluster_name}:
        raise RestException(412, "Clusters do not exist")
    return sorted(set(roles)), [broker.settings.cluster_name]
