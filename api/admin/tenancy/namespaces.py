"""Namespaces: making, listing and deleting them, and their policies as one document of Pulsar's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body
from pydantic import Field, ValidationError
from starlette.responses import Response

from api.admin import resolve
from api.admin.models import Strict, done
from api.admin.policies.backlog_policies import (
    TTL,
    BacklogQuota,
    QuotaType,
    check_ttl,
    quotas_of,
    set_quota,
)
from api.admin.policies.policy_models import FIELDS, policies_document
from api.admin.policies.retention import (
    Retention,
    check_retention,
    retention_of,
    set_retention,
)
from api.admin.tenancy.bundles import BUNDLES, check_bundle
from api.admin.tenancy.tenants import Tenant
from api.http.access import Action, allowed
from api.http.paths import Namespace
from api.http.problems import (
    Problem,
    missing_told,
    refusals,
    shown_errors,
)
from api.http.routes import Routes
from api.service import Parts
from storage.errors import Conflict, InvalidInput, NotFound
from storage.metadata.policy_store import namespace_scope

router = Routes(prefix="/admin/v2", tags=["namespaces"])

THRESHOLD = "compaction.threshold.bytes"
NO_NAMESPACE = "Namespace does not exist"


QuotaKind = Annotated[QuotaType, Field(strict=False)]


class _Kept(Strict):
    """Of a policies document, what a new namespace begins with."""

    replication_clusters: list[str] = Field(default_factory=list)
    retention_policies: Retention | None = None
    compaction_threshold: int | None = Field(None, le=(1 << 63) - 1)
    message_ttl_in_seconds: int | None = None
    backlog_quota_map: dict[QuotaKind, BacklogQuota] = Field(default_factory=dict)


@router.get(
    "/namespaces/{tenant}",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="listNamespaces",
    responses=refusals(404, 412),
)
def list_namespaces(parts: Parts, tenant: Tenant) -> list[str]:
    """The namespaces of a tenant, by name."""
    with missing_told("Tenant not found"):
        return parts.components.metadata.tenancy.namespaces(tenant)


@router.get(
    "/namespaces/{tenant}/{namespace}",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="getPolicies",
    responses=refusals(404, 412),
)
def get_policies(parts: Parts, namespace: Namespace) -> dict[str, Any]:
    """All that Pulsar knows of policies of a namespace; what this service has none of stands at its default."""
    metadata = parts.components.metadata
    with missing_told(NO_NAMESPACE):
        found = metadata.tenancy.namespace(namespace)
    settings = metadata.policies.of_scope(namespace_scope(namespace))
    quotas = {kind.value: quota.model_dump() for kind, quota in quotas_of(settings).items()}
    return policies_document(
        found.permissions,
        metadata.tenancy.topic_permissions_in(namespace),
        parts.settings.cluster_name,
        {
            "retention_policies": retention_of(settings),
            "compaction_threshold": settings.get(THRESHOLD),
            "message_ttl_in_seconds": settings.get(TTL),
            "backlog_quota_map": quotas,
        },
    )


@router.put(
    "/namespaces/{tenant}/{namespace}",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="createNamespace",
    status_code=204,
    responses=refusals(400, 404, 409, 412),
)
def create_namespace(
    parts: Parts,
    namespace: Namespace,
    policies: Annotated[dict[str, Any] | None, Body(description="Pulsar's policies document; may be left out.")] = None,
) -> Response:
    """Make a namespace. Of its policies, retention, thresholds, time to live and quotas are kept."""
    metadata = parts.components.metadata
    given = {name: value for name, value in (policies or {}).items() if value is not None}
    unknown = sorted(given.keys() - FIELDS)
    if unknown:
        raise Problem(400, f"{unknown[0]!r} is no policy of a namespace: leave it out")
    kept = _kept(given)
    cluster = parts.settings.cluster_name
    if set(kept.replication_clusters) - {cluster}:
        raise Problem(412, f"Invalid cluster id: there is one cluster, {cluster}")
    if kept.retention_policies is not None:
        check_retention(kept.retention_policies)
    if (kept.compaction_threshold or 0) < 0:
        raise Problem(412, "compactionThreshold must be 0 or more")
    ttl = None if kept.message_ttl_in_seconds is None else check_ttl(kept.message_ttl_in_seconds)
    for kind, quota in kept.backlog_quota_map.items():
        quota.limit_of(kind)
    try:
        metadata.tenancy.create_namespace(namespace)
    except NotFound as error:
        raise Problem(404, "Tenant does not exist") from error
    except Conflict as error:
        raise Problem(409, "Namespace already exists") from error
    except InvalidInput as error:
        raise Problem(412, "Namespace name is not valid") from error
    scope = namespace_scope(namespace)
    if kept.retention_policies is not None:
        set_retention(parts, [scope], kept.retention_policies)
    if kept.compaction_threshold is not None:
        metadata.policies.set(scope, THRESHOLD, kept.compaction_threshold)
    if ttl is not None:
        metadata.policies.set(scope, TTL, ttl)
    for kind, quota in kept.backlog_quota_map.items():
        set_quota(parts, [scope], kind, quota)
    return done()


@router.delete(
    "/namespaces/{tenant}/{namespace}",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="deleteNamespace",
    status_code=204,
    responses=refusals(404, 405, 409, 412),
)
def delete_namespace(parts: Parts, namespace: Namespace, force: bool = False) -> Response:
    """Delete a namespace without topics. `force` is refused, as by a broker that was not told to allow it."""
    if force:
        raise Problem(405, "Broker doesn't allow forced deletion of namespaces")
    try:
        parts.components.metadata.tenancy.delete_namespace(namespace)
    except NotFound as error:
        raise Problem(404, NO_NAMESPACE) from error
    except Conflict as error:
        raise Problem(409, "Cannot delete non empty namespace") from error
    return done()


@router.get(
    "/namespaces/{tenant}/{namespace}/topics",
    dependencies=[allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)],
    operation_id="listNamespaceTopics",
    responses=refusals(404, 412),
)
def list_namespace_topics(parts: Parts, namespace: Namespace, mode: str = "PERSISTENT") -> list[str]:
    """The topics of a namespace, partitions one by one; none for the mode NON_PERSISTENT."""
    resolve.namespace(parts, namespace)
    if mode == "NON_PERSISTENT":
        return []
    return [str(one.name) for one in parts.components.metadata.topics.in_namespace(namespace)]


@router.get(
    "/namespaces/{tenant}/{namespace}/bundles",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="getBundles",
    responses=refusals(404, 412),
)
def get_bundles(parts: Parts, namespace: Namespace) -> dict[str, Any]:
    """The ranges of hashes into which topics fall: the same four for every namespace."""
    resolve.namespace(parts, namespace)
    return BUNDLES


@router.get(
    "/namespaces/{tenant}/{namespace}/replication",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="getNamespaceReplicationClusters",
    responses=refusals(404, 412),
)
def get_clusters(parts: Parts, namespace: Namespace) -> list[str]:
    """The one cluster."""
    resolve.namespace(parts, namespace)
    return [parts.settings.cluster_name]


@router.put(
    "/namespaces/{tenant}/{namespace}/unload",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="unloadNamespace",
    status_code=204,
    responses=refusals(404, 412),
)
def unload_namespace(parts: Parts, namespace: Namespace) -> Response:
    """Nothing is loaded, so nothing happens."""
    resolve.namespace(parts, namespace)
    return done()


@router.put(
    "/namespaces/{tenant}/{namespace}/{bundle}/unload",
    dependencies=[allowed(Action.ADMIN)],
    operation_id="unloadNamespaceBundle",
    status_code=204,
    responses=refusals(404, 412),
)
def unload_bundle(parts: Parts, namespace: Namespace, bundle: str) -> Response:
    """Nothing is loaded, so nothing happens."""
    resolve.namespace(parts, namespace)
    check_bundle(bundle)
    return done()


def _kept(given: Mapping[str, Any]) -> _Kept:
    """Raises Problem 400."""
    try:
        return _Kept.model_validate({name: given[name] for name in _Kept.model_fields if name in given})
    except ValidationError as error:
        raise Problem(400, f"the policies cannot be taken: {shown_errors(error)}") from error
