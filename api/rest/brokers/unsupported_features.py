"""Pulsar's calls for features that this service lacks: one table, so that a tool gets the reason and not "Not Found".

    a value       where a feature has none, a broker answers nothing, or something empty; so does this service
    done          a policy that cannot be set is removed: none is set, as a broker answers for one that is not
    refused       all else: 405, as a broker refuses what is switched off, with the reason "not offered here: …"

Permissions are checked first, then whether the topic, namespace or cluster of the path exists. A path of
the service whose verbs are all refused asks for a token and no permission: the answer is the same for everyone.
The page docs/rest-not-offered.md is this table. Offer a call → take its row out, and write a route.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fastapi import Depends, Request
from starlette.responses import JSONResponse, Response

from api.broker import names
from api.http.access import ANY_USE, AuthAction, require_permission
from api.http.dependencies import Broker
from api.http.paths import namespace_name, topic_name
from api.http.problems import RestException
from api.http.router import Routes
from api.rest.models import no_content_response, unset_policy_answer
from storage.environment import Environment

REFUSAL = "not offered here: {}"
SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""The property with which Pulsar's clients make a shadow topic."""
_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/"
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/"
_CLUSTER = "/admin/v2/clusters/{cluster}"
_LOOK = (*ANY_USE, AuthAction.ADMIN)


class AnswerWithoutValue(Enum):
    """The kind of an answer that has no JSON value: a refusal, success (204), or the empty answer of an unset
    policy."""

    REFUSED = "refused"
    DONE = "204"
    UNSET = "nothing"


@dataclass(frozen=True)
class UnsupportedRoute:
    """A path of Pulsar's API for a feature that this service lacks. `answers`: the answer to each verb, a JSON value or
    an `AnswerWithoutValue`. `feature`: the feature, and the remedy, as a refusal names them."""

    path: str
    feature: str
    answers: Mapping[str, object]

    def answer(self, verb: str) -> Response:
        """Return the answer to a verb. Raise RestException (405) for a verb that is refused."""
        match self.answers[verb]:
            case AnswerWithoutValue.REFUSED:
                offered = sorted(
                    name for name, other in self.answers.items() if other is not AnswerWithoutValue.REFUSED
                )
                raise RestException(405, REFUSAL.format(self.feature), {"Allow": ", ".join(offered)})
            case AnswerWithoutValue.DONE:
                return no_content_response()
            case AnswerWithoutValue.UNSET:
                return unset_policy_answer()
            case value:
                return JSONResponse(value)


_ALL = ("GET", "PUT", "POST", "DELETE")


def _unsupported_policy(path: str, feature: str, value: object = AnswerWithoutValue.UNSET) -> UnsupportedRoute:
    """Return the route of a policy that cannot be set: GET answers `value`, DELETE succeeds, PUT and POST are
    refused."""
    return UnsupportedRoute(
        path,
        feature,
        {
            "GET": value,
            "PUT": AnswerWithoutValue.REFUSED,
            "POST": AnswerWithoutValue.REFUSED,
            "DELETE": AnswerWithoutValue.DONE,
        },
    )


def _refused_route(path: str, feature: str, *verbs: str) -> UnsupportedRoute:
    """Return a route that refuses `verbs` of a path; without any, it refuses all."""
    return UnsupportedRoute(path, feature, dict.fromkeys(verbs or _ALL, AnswerWithoutValue.REFUSED))


def _read_only_route(path: str, feature: str, value: object, *refused: str) -> UnsupportedRoute:
    """Return a route whose GET answers `value`, and which refuses the verbs `refused`."""
    return UnsupportedRoute(path, feature, {"GET": value, **dict.fromkeys(refused, AnswerWithoutValue.REFUSED)})


_OFFLOAD = "offloading: sealed ledgers are in the object store from the first"
_SNAPSHOTS = "an interval of its own: sequence ids are stored every 1,000 entries"
_SCHEMAS = "demanding a schema, or refusing new ones: schema.compatibility-strategy decides which may follow"
ONE_CLUSTER = "making, changing or deleting a cluster: there is one"
_REPLICATION = "replication between clusters: there is one cluster"
_RATES = "limits of rates of single topics: limits.requests-per-second is for each caller"
_CONSUMERS = "limits of consumers and their acknowledgements"
_BOOKKEEPER = "BookKeeper: ledgers are in an object store"
_BALANCE = "placing topics on services: any service answers for any topic"
_INACTIVE = "deleting topics that are not used"
_AUTO_SUBSCRIBE = "forbidding it: a role that may consume creates a subscription by consuming"
_FILTERS = "entry filters"
_SUBSCRIPTION_TYPES = "subscriptions by type"
_DELAY = "a policy of delayed delivery: it is always on, for shared and key-shared subscriptions"
_GROUPS = "resource groups"

ROWS: tuple[UnsupportedRoute, ...] = (
    # Of a topic
    *(
        _unsupported_policy(_TOPIC + name, feature)
        for name, feature in (
            ("autoSubscriptionCreation", _AUTO_SUBSCRIBE),
            ("deduplicationSnapshotInterval", _SNAPSHOTS),
            ("delayedDelivery", _DELAY),
            ("dispatchRate", _RATES),
            ("dispatcherPauseOnAckStatePersistent", _CONSUMERS),
            ("entryFilters", _FILTERS),
            ("inactiveTopicPolicies", _INACTIVE),
            ("maxConsumers", _CONSUMERS),
            ("maxConsumersPerSubscription", _CONSUMERS),
            ("maxProducers", "limits of producers"),
            ("maxSubscriptionsPerTopic", "limits of subscriptions"),
            ("maxUnackedMessagesOnConsumer", _CONSUMERS),
            ("maxUnackedMessagesOnSubscription", _CONSUMERS),
            ("offloadPolicies", _OFFLOAD),
            ("persistence", _BOOKKEEPER),
            ("publishRate", _RATES),
            ("replication", _REPLICATION),
            ("replicatorDispatchRate", _REPLICATION),
            ("shadowTopics", "shadow topics"),
            ("subscribeRate", _RATES),
            ("subscriptionDispatchRate", _RATES),
            ("subscriptionTypesEnabled", _SUBSCRIPTION_TYPES),
            ("{subscription}/dispatchRate", _RATES),
        )
    ),
    _read_only_route(_TOPIC + "schemaValidationEnforced", _SCHEMAS, False, "POST"),
    _read_only_route(_TOPIC + "offload", _OFFLOAD, {"status": "NOT_RUN", "lastError": ""}, "PUT"),
    _refused_route(
        _TOPIC + "maxMessageSize",
        "the size of messages by this call: it is the policy max.message.bytes, at …/policies/max.message.bytes",
        "GET",
        "POST",
        "DELETE",
    ),
    _refused_route(
        _TOPIC + "getMessageIdByIndex", "broker entry metadata: read from an offset, at …/messages?start=", "GET"
    ),
    _refused_route(_TOPIC + "terminate", "closing a topic for writing", "POST"),
    _refused_route(_TOPIC + "terminate/partitions", "closing a topic for writing", "POST"),
    _refused_route(_TOPIC + "subscription/{subscription}/replicatedSubscriptionStatus", _REPLICATION, "GET", "POST"),
    # Of a namespace
    *(
        _unsupported_policy(_NAMESPACE + name, feature)
        for name, feature in (
            ("antiAffinity", _BALANCE),
            ("autoSubscriptionCreation", _AUTO_SUBSCRIBE),
            ("autoTopicCreation", "a choice of each namespace: broker.auto-topic-creation is for all"),
            ("deduplicationSnapshotInterval", _SNAPSHOTS),
            ("delayedDelivery", _DELAY),
            ("dispatchRate", _RATES),
            ("dispatcherPauseOnAckStatePersistent", _CONSUMERS),
            ("entryFilters", _FILTERS),
            ("inactiveTopicPolicies", _INACTIVE),
            ("maxConsumersPerSubscription", _CONSUMERS),
            ("maxConsumersPerTopic", _CONSUMERS),
            ("maxProducersPerTopic", "limits of producers"),
            ("maxSubscriptionsPerTopic", "limits of subscriptions"),
            ("maxTopicsPerNamespace", "limits of topics"),
            ("maxUnackedMessagesPerConsumer", _CONSUMERS),
            ("maxUnackedMessagesPerSubscription", _CONSUMERS),
            ("offloadDeletionLagMs", _OFFLOAD),
            ("offloadPolicies", _OFFLOAD),
            ("persistence", _BOOKKEEPER),
            ("persistence/bookieAffinity", _BOOKKEEPER),
            ("publishRate", _RATES),
            ("replicatorDispatchRate", _REPLICATION),
            ("resourcegroup", _GROUPS),
            ("schemaAutoUpdateCompatibilityStrategy", _SCHEMAS),
            ("subscribeRate", _RATES),
            ("subscriptionDispatchRate", _RATES),
            ("subscriptionExpirationTime", "deleting subscriptions that are not used"),
        )
    ),
    _unsupported_policy(_NAMESPACE + "allowedClusters", _REPLICATION, []),
    _unsupported_policy(_NAMESPACE + "properties", "properties of a namespace", {}),
    _unsupported_policy(_NAMESPACE + "property/{key}", "properties of a namespace"),
    _unsupported_policy(_NAMESPACE + "subscriptionTypesEnabled", _SUBSCRIPTION_TYPES, []),
    _read_only_route(_NAMESPACE + "encryptionRequired", "demanding that messages are encrypted", False, "POST"),
    _read_only_route(_NAMESPACE + "isAllowAutoUpdateSchema", _SCHEMAS, True, "POST"),
    _read_only_route(_NAMESPACE + "offloadThreshold", _OFFLOAD, -1, "PUT"),
    _read_only_route(_NAMESPACE + "offloadThresholdInSeconds", _OFFLOAD, -1, "PUT"),
    _read_only_route(_NAMESPACE + "permissions/subscription", "permissions of single subscriptions", {}),
    _read_only_route(_NAMESPACE + "schemaValidationEnforced", _SCHEMAS, False, "POST"),
    _read_only_route(_NAMESPACE + "subscriptionAuthMode", "permissions of single subscriptions", "None", "POST"),
    UnsupportedRoute(_NAMESPACE + "removeOffloadPolicies", _OFFLOAD, {"DELETE": AnswerWithoutValue.DONE}),
    _refused_route(_NAMESPACE + "migration", _REPLICATION, "POST"),
    _refused_route(_NAMESPACE + "replication", _REPLICATION, "POST"),
    _refused_route(
        _NAMESPACE + "permissions/subscription/{subscription}", "permissions of single subscriptions", "POST"
    ),
    _refused_route(_NAMESPACE + "permissions/{subscription}/{role}", "permissions of single subscriptions", "DELETE"),
    _refused_route(_NAMESPACE + "property/{key}/{value}", "properties of a namespace", "PUT"),
    _refused_route(_NAMESPACE + "resourcegroup/{group}", _GROUPS, "POST"),
    _refused_route(_NAMESPACE + "{bundle}/split", "splitting bundles: each namespace has the same four", "PUT"),
    _refused_route(_NAMESPACE + "{bundle}/topicHashPositions", _BALANCE, "GET"),
    # Of a cluster
    _refused_route(_CLUSTER, ONE_CLUSTER, "POST", "DELETE"),
    _read_only_route(_CLUSTER + "/failureDomains", _BALANCE, {}),
    _refused_route(_CLUSTER + "/failureDomains/{domain}", _BALANCE, "GET", "POST", "DELETE"),
    _read_only_route(_CLUSTER + "/migrate", _REPLICATION, {"migrated": False}, "POST"),
    _read_only_route(_CLUSTER + "/namespaceIsolationPolicies", _BALANCE, {}),
    _read_only_route(_CLUSTER + "/namespaceIsolationPolicies/brokers", _BALANCE, []),
    _refused_route(_CLUSTER + "/namespaceIsolationPolicies/brokers/{broker}", _BALANCE, "GET"),
    _refused_route(_CLUSTER + "/namespaceIsolationPolicies/{policy}", _BALANCE, "GET", "POST", "DELETE"),
    _read_only_route(_CLUSTER + "/peers", _REPLICATION, AnswerWithoutValue.UNSET, "POST"),
    # Of the service
    _read_only_route("/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", _BALANCE, {}),
    _refused_route("/admin/v2/brokers/internal-configuration", "ZooKeeper and BookKeeper: metadata is in SQL", "GET"),
    _refused_route("/admin/v2/brokers/shutdown", "ending a service by a call: send SIGTERM to its process", "POST"),
    _refused_route("/admin/v2/broker-stats/metrics", "metrics by this call: GET /metrics has them", "GET"),
    _refused_route("/admin/v2/broker-stats/{kind}", "numbers of a Java process and of load balancing", "GET"),
    _refused_route("/admin/v2/broker-stats/allocator-stats/{allocator}", "numbers of a Java process", "GET"),
    _read_only_route("/admin/v2/bookies/racks-info", _BOOKKEEPER, {}),
    _read_only_route("/admin/v2/bookies/all", _BOOKKEEPER, {"bookies": []}),
    _refused_route("/admin/v2/bookies/racks-info/{bookie}", _BOOKKEEPER, "GET", "POST", "DELETE"),
    _read_only_route("/admin/v2/resourcegroups", _GROUPS, []),
    _refused_route("/admin/v2/resourcegroups/{group}", _GROUPS),
    _refused_route("/admin/v2/resource-quotas", _BALANCE),
    _refused_route("/admin/v2/resource-quotas/{rest:path}", _BALANCE),
    _read_only_route("/admin/namespaces/{cluster}/antiAffinity/{group}", _BALANCE, []),
    _refused_route("/admin/v2/functions/{rest:path}", "functions"),
    _refused_route("/admin/v2/worker/{rest:path}", "functions"),
    _refused_route("/admin/v2/worker-stats/{rest:path}", "functions"),
    _refused_route("/admin/v3/functions/{rest:path}", "functions"),
    _refused_route("/admin/v3/packages/{rest:path}", "packages"),
    _refused_route("/admin/v3/sink/{rest:path}", "sinks"),
    _refused_route("/admin/v3/sinks/{rest:path}", "sinks"),
    _refused_route("/admin/v3/source/{rest:path}", "sources"),
    _refused_route("/admin/v3/sources/{rest:path}", "sources"),
    _refused_route("/admin/v3/transactions/{rest:path}", "transactions"),
    _refused_route("/proxy-stats/{rest:path}", "a proxy"),
)
"""Every call with such an answer. The first row that fits counts."""


def check_not_shadow_topic(properties: Mapping[str, str]) -> None:
    """Raise RestException (405) if a new topic's properties make it a shadow topic, which is not offered."""
    if SHADOW_SOURCE in properties:
        raise RestException(405, REFUSAL.format("shadow topics"))


def _named_object_endpoint(
    row: UnsupportedRoute, path_name: Any, check: Callable[[Environment, Any], object]
) -> Callable[..., Response]:
    """Return the endpoint of an unsupported route below a topic or namespace. `path_name`: the dependency that reads
    the name of the topic or namespace from the path; `check`: raises NotFound if it does not exist."""

    def answer(request: Request, broker: Broker, name: Any = path_name) -> Response:
        if request.method != "GET":
            require_permission(request, AuthAction.ADMIN)
        check(broker.environment, name)
        return row.answer(request.method)

    return answer


def _service_endpoint(row: UnsupportedRoute) -> Callable[..., Response]:
    """Return the endpoint of an unsupported route of a cluster or of the service."""

    def answer(request: Request, broker: Broker) -> Response:
        if request.path_params.get("cluster", broker.settings.cluster_name) != broker.settings.cluster_name:
            raise RestException(404, "Cluster does not exist")
        return row.answer(request.method)

    return answer


def _create_router() -> Routes:
    """Return a router with a route for each row of `ROWS`. The OpenAPI document does not describe them."""
    routes = Routes(prefix="")
    for row in ROWS:
        needs: tuple[AuthAction, ...] = _LOOK
        if row.path.startswith(_TOPIC):
            endpoint = _named_object_endpoint(row, Depends(topic_name), names.topics)
        elif row.path.startswith(_NAMESPACE):
            endpoint = _named_object_endpoint(row, Depends(namespace_name), names.namespace)
        else:
            is_refusal = all(answer is AnswerWithoutValue.REFUSED for answer in row.answers.values())
            endpoint, needs = _service_endpoint(row), (AuthAction.ANYONE if is_refusal else AuthAction.SUPERUSER,)
        routes.route(row.answers, row.path, *needs, response_model=None, include_in_schema=False)(endpoint)
    return routes


router = _create_router()
