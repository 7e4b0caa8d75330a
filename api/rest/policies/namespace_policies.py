"""The policies of a namespace as Pulsar's `Policies` has them: all its fields in its order, at their defaults.

Source: what a broker 4.2 answers for a new namespace; a field without a value is left out, as a broker does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from api.rest.tenancy.bundles import BUNDLES

PULSAR_ACTIONS = ("produce", "consume", "functions", "sources", "sinks", "packages")
"""The actions that Pulsar's clients can read; they fail at any other."""

_TEMPLATE: Mapping[str, Any] = {
    "auth_policies": None,
    "replication_clusters": None,
    "allowed_clusters": [],
    "bundles": BUNDLES,
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "persistence": None,
    "deduplicationEnabled": None,
    "autoTopicCreationOverride": None,
    "autoSubscriptionCreationOverride": None,
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "message_ttl_in_seconds": None,
    "subscription_expiration_time_minutes": None,
    "retention_policies": None,
    "deleted": False,
    "encryption_required": False,
    "delayed_delivery_policies": None,
    "inactive_topic_policies": None,
    "subscription_auth_mode": "None",
    "max_producers_per_topic": None,
    "max_consumers_per_topic": None,
    "max_consumers_per_subscription": None,
    "max_unacked_messages_per_consumer": None,
    "max_unacked_messages_per_subscription": None,
    "max_subscriptions_per_topic": None,
    "compaction_threshold": None,
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "offload_deletion_lag_ms": None,
    "max_topics_per_namespace": None,
    "schema_auto_update_compatibility_strategy": None,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": True,
    "schema_validation_enforced": False,
    "offload_policies": None,
    "deduplicationSnapshotIntervalSeconds": None,
    "subscription_types_enabled": [],
    "allowed_topic_property_keys_for_metrics": None,
    "properties": {},
    "resource_group_name": None,
    "migrated": False,
    "dispatcherPauseOnAckStatePersistentEnabled": None,
    "entryFilters": None,
    "clusterThatCanDeleteNamespace": None,
}
_NEUTRAL: Mapping[str, Sequence[object]] = {
    "deduplicationSnapshotIntervalSeconds": (0,),
    "offload_deletion_lag_ms": (-1,),
    "schema_auto_update_compatibility_strategy": ("Full",),
    "subscription_expiration_time_minutes": (0,),
    **{name: (0,) for name in _TEMPLATE if name.startswith("max_")},
}
"""Values without effect, by field, that clients send besides the defaults: no limit, an older default."""
_IGNORED = ("bundles",)
"""Fields that are accepted with any value: the bundles are the same for every namespace."""


def policies_document(
    permissions: Mapping[str, Sequence[str]],
    topic_permissions: Mapping[str, Mapping[str, Sequence[str]]],
    cluster: str,
    settings: Mapping[str, object],
) -> dict[str, Any]:
    """Return Pulsar's document of the policies of a namespace, with its permissions and the fields `settings`.

    Fields that are None, and actions that Pulsar's clients do not know, are left out. `permissions`: actions by role;
    `topic_permissions`: the same by topic.
    """
    document = {
        **_TEMPLATE,
        "auth_policies": {
            "namespace_auth": pulsar_permissions(permissions),
            "destination_auth": {topic: pulsar_permissions(roles) for topic, roles in topic_permissions.items()},
            "subscription_auth_roles": {},
        },
        "replication_clusters": [cluster],
        **settings,
    }
    return {name: value for name, value in document.items() if value is not None}


def pulsar_permissions(permissions: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the actions by role that Pulsar's clients know. A role without such an action is left out."""
    known = {role: [action for action in actions if action in PULSAR_ACTIONS] for role, actions in permissions.items()}
    return {role: actions for role, actions in known.items() if actions}


def unsupported_fields(document: Mapping[str, Any], supported: Collection[str]) -> list[str]:
    """Return the fields of a policies document, sorted, that have an effect in a broker and none in this service.

    `supported`: the fields that this service has. A field at its default has no effect; nor has null, false or an empty
    value of a field that Pulsar 4.2 lacks.
    """
    return sorted(
        name
        for name, value in document.items()
        if name not in supported
        and name not in _IGNORED
        and (_TEMPLATE.get(name) is True or not _is_empty(value))
        and value != _TEMPLATE.get(name)
        and value not in _NEUTRAL.get(name, ())
    )


def _is_empty(value: object) -> bool:
    """Return whether a value sets nothing: null, false, or a text, list or object that holds nothing else."""
    if isinstance(value, Mapping):
        return all(_is_empty(item) for item in value.values())
    return value is None or value is False or value == "" or value == []
