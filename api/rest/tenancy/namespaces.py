"""Routes of namespaces: create, list, unload and delete them; their policies as one document of Pulsar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body
from pydantic import ConfigDict, Field, ValidationError

from api.broker import names, pulsar_policies, tenants, topics
from api.broker.pulsar_policies import QuotaType
from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.paths import NAMESPACE_PATH, Namespace
from api.http.problems import RestException, reword_errors, validation_summary
from api.http.router import Routes
from api.rest.models import LONG, PulsarBody
from api.rest.policies.namespace_policies import policies_document, unsupported_fields
from api.rest.policies.pulsar_policies import BacklogQuota, RetentionPolicies
from api.rest.tenancy.bundles import BUNDLES, bundle_of, parse_bundle
from api.rest.tenancy.tenants import Tenant
from storage.metadata.policy_store import namespace_scope
from storage.options.policies import SchemaCompatibilityStrategy

router = Routes("namespaces")

NO_NAMESPACE = "Namespace does not exist"
_PERMISSIONS = "auth_policies"
_SHOWN = 300
QuotaKind = Annotated[QuotaType, Field(strict=False)]


class _InitialPolicies(PulsarBody):
    """The policies of Pulsar that a new namespace may begin with."""

    model_config = ConfigDict(alias_generator=None)

    replication_clusters: list[str] = Field(default_factory=list)
    retention_policies: RetentionPolicies | None = None
    compaction_threshold: int | None = Field(None, le=LONG)
    message_ttl_in_seconds: int | None = None
    deduplicationEnabled: bool | None = None  # noqa: N815  Pulsar's document mixes both ways to write names
    schema_compatibility_strategy: SchemaCompatibilityStrategy = Field(
        SchemaCompatibilityStrategy.UNDEFINED, strict=False
    )
    backlog_quota_map: dict[QuotaKind, BacklogQuota] = Field(default_factory=dict)


@router.get("/namespaces/{tenant}", AuthAction.ADMIN, refuses=(404,))
def list_namespaces(broker: Broker, tenant: Tenant) -> list[str]:
    """Return the namespaces of a tenant as `tenant/namespace`, sorted."""
    with reword_errors("Tenant not found"):
        return broker.environment.metadata.tenancy.namespaces(tenant)


@router.get(NAMESPACE_PATH, AuthAction.ADMIN)
def get_policies(broker: Broker, namespace: Namespace) -> dict[str, Any]:
    """Return all policies that Pulsar has for a namespace; those that this service lacks are at their defaults."""
    metadata = broker.environment.metadata
    record = names.namespace(broker.environment, namespace)
    settings = metadata.policies.readable_of_scope(namespace_scope(namespace))
    return policies_document(
        record.permissions,
        metadata.tenancy.topic_permissions_in(namespace),
        broker.settings.cluster_name,
        pulsar_policies.namespace_document(settings),
    )


@router.put(NAMESPACE_PATH, AuthAction.ADMIN, refuses=(409,))
def create_namespace(
    broker: Broker,
    namespace: Namespace,
    policies: Annotated[dict[str, Any] | None, Body(description="Pulsar's policies document; may be left out.")] = None,
) -> None:
    """Create a namespace with policies: retention, threshold, time to live, quotas, deduplication and schema strategy.

    Another policy that is not at its default is refused.
    """
    document = policies or {}
    unset = unsupported_fields(document, _InitialPolicies.model_fields)
    if unset:
        reason = f"the namespace is not made: {', '.join(map(repr, unset))[:_SHOWN]} cannot be set here; leave it out"
        advice = ", and grant permissions by POST …/permissions/{role} when it is made" if _PERMISSIONS in unset else ""
        raise RestException(412, reason + advice)
    initial = _parse_initial_policies(document)
    cluster = broker.settings.cluster_name
    if set(initial.replication_clusters) - {cluster}:
        raise RestException(412, f"Invalid cluster id: there is one cluster, {cluster}")
    with reword_errors("Tenant does not exist", "Namespace already exists"):
        broker.environment.metadata.tenancy.create_namespace(
            namespace, pulsar_policies.policies_from_document(initial.model_dump(by_alias=True))
        )


@router.delete(NAMESPACE_PATH, AuthAction.ADMIN, refuses=(405, 409))
def delete_namespace(broker: Broker, namespace: Namespace, force: bool = False) -> None:
    """Delete a namespace without topics. `force` is refused, as by a broker whose settings do not allow it."""
    if force:
        raise RestException(405, "Broker doesn't allow forced deletion of namespaces")
    with reword_errors(NO_NAMESPACE, "Cannot delete non empty namespace"):
        broker.environment.metadata.tenancy.delete_namespace(namespace)


@router.get(NAMESPACE_PATH + "/topics", *ANY_USE)
def list_namespace_topics(broker: Broker, namespace: Namespace, mode: str = "PERSISTENT") -> list[str]:
    """Return the topics of a namespace, partitions one by one; none for the mode NON_PERSISTENT."""
    listed = topics.in_namespace(broker.environment, namespace)
    return [] if mode == "NON_PERSISTENT" else [str(name) for name in listed]


@router.get(NAMESPACE_PATH + "/bundles", AuthAction.ADMIN)
def get_bundles(broker: Broker, namespace: Namespace) -> dict[str, Any]:
    """Return the ranges of hashes into which topics fall: the same four for every namespace."""
    names.namespace(broker.environment, namespace)
    return BUNDLES


@router.get(NAMESPACE_PATH + "/replication", AuthAction.ADMIN)
def get_namespace_replication_clusters(broker: Broker, namespace: Namespace) -> list[str]:
    """Return the clusters of a namespace: the one cluster."""
    names.namespace(broker.environment, namespace)
    return [broker.settings.cluster_name]


@router.put(NAMESPACE_PATH + "/unload", AuthAction.ADMIN)
def unload_namespace(broker: Broker, namespace: Namespace) -> None:
    """Release the leases of the namespace's topics that this service writes. Their clients look the topics up again."""
    tenants.unload_namespace(broker, namespace, lambda _: True)


@router.put(NAMESPACE_PATH + "/{bundle}/unload", AuthAction.ADMIN)
def unload_namespace_bundle(broker: Broker, namespace: Namespace, bundle: str) -> None:
    """Release the leases of one bundle's topics that this service writes. Their clients look the topics up again."""
    range_name = parse_bundle(bundle)
    tenants.unload_namespace(broker, namespace, lambda name: bundle_of(name) == range_name)


def _parse_initial_policies(document: Mapping[str, Any]) -> _InitialPolicies:
    """Return the policies of a new namespace from Pulsar's document. Raise RestException (400) for an invalid value."""
    try:
        return _InitialPolicies.model_validate(
            {name: document[name] for name in _InitialPolicies.model_fields if name in document}
        )
    except ValidationError as error:
        raise RestException(400, f"the policies cannot be taken: {validation_summary(error)}") from error
