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
from api.rest.models import no_content, unset_policy_answer
from storage.environment import Environment

REFUSAL = "not offered here: {}"
SHADOW_SOURCE = "PULSAR.SHADOW_SOURCE"
"""The property with which Pulsar's clients make a shadow topic."""
_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}/"
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}/"
_CLUSTER = "/admin/v2/clusters/{cluster}"
_LOOK = (*ANY_USE, AuthAction.ADMIN)


class ValuelessAnswer(Enum):
    """The answer of a verb that answers no value, by its name in docs/rest-not-offered.md."""

    REFUSED = "refused"
    DONE = "204"
    UNSET = "nothing"


@dataclass(frozen=True)
class UnsupportedRoute:
    """A path, and the answer to each of its verbs: a JSON value, or an `ValuelessAnswer`. `feature`: the unsupported
    feature, and the remedy."""

    path: str
    feature: str
    answers: Mapping[str, object]

    def answer(self, verb: str) -> Response:
        """Return the answer to a verb. Raise RestException (405)."""
        match self.answers[verb]:
            case ValuelessAnswer.REFUSED:
                offered = sorted(name for name, other in self.answers.items() if other is not ValuelessAnswer.REFUSED)
                raise RestException(405, REFUSAL.format(self.feature), {"Allow": ", ".join(offered)})
            case ValuelessAnswer.DONE:
                return no_content()
            case ValuelessAnswer.UNSET:
                return unset_policy_answer()
            case value:
                return JSONResponse(value)


_ALL = ("GET", "PUT", "POST", "DELETE")


def _policy(path: str, what: str, value: object = ValuelessAnswer.UNSET) -> UnsupportedRoute:
    """Return the route of a policy that cannot be set: it has `value`, and there is none to remove."""
    return UnsupportedRoute(
        path,
        what,
        {"GET": value, "PUT": ValuelessAnswer.REFUSED, "POST": ValuelessAnswer.REFUSED, "DELETE": ValuelessAnswer.DONE},
    )


def _refused(path: str, what: str, *verbs: str) -> UnsupportedRoute:
    """Return a route that refuses these verbs of a path; without any: all."""
    return UnsupportedRoute(path, what, dict.fromkeys(verbs or _ALL, ValuelessAnswer.REFUSED))


def _value(path: str, what: str, value: object, *refused: str) -> UnsupportedRoute:
    """Return the route of a path that can only be read."""
    return UnsupportedRoute(path, what, {"GET": value, **dict.fromkeys(refused, ValuelessAnswer.REFUSED)})


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
        _policy(_TOPIC + name, what)
        for name, what in (
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
    _value(_TOPIC + "schemaValidationEnforced", _SCHEMAS, False, "POST"),
    _value(_TOPIC + "offload", _OFFLOAD, {"status": "NOT_RUN", "lastError": ""}, "PUT"),
    _refused(
        _TOPIC + "maxMessageSize",
        "the size of messages by this call: it is the policy max.message.bytes, at …/policies/max.message.bytes",
        "GET",
        "POST",
        "DELETE",
    ),
    _refused(_TOPIC + "getMessageIdByIndex", "broker entry metadata: read from an offset, at …/messages?start=", "GET"),
    _refused(_TOPIC + "terminate", "closing a topic for writing", "POST"),
    _refused(_TOPIC + "terminate/partitions", "closing a topic for writing", "POST"),
    _refused(_TOPIC + "subscription/{subscription}/replicatedSubscriptionStatus", _REPLICATION, "GET", "POST"),
    # Of a namespace
    *(
        _policy(_NAMESPACE + name, what)
        for name, what in (
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
    _policy(_NAMESPACE + "allowedClusters", _REPLICATION, []),
    _policy(_NAMESPACE + "properties", "properties of a namespace", {}),
    _policy(_NAMESPACE + "property/{key}", "properties of a namespace"),
    _policy(_NAMESPACE + "subscriptionTypesEnabled", _SUBSCRIPTION_TYPES, []),
    _value(_NAMESPACE + "encryptionRequired", "demanding that messages are encrypted", False, "POST"),
    _value(_NAMESPACE + "isAllowAutoUpdateSchema", _SCHEMAS, True, "POST"),
    _value(_NAMESPACE + "offloadThreshold", _OFFLOAD, -1, "PUT"),
    _value(_NAMESPACE + "offloadThresholdInSeconds", _OFFLOAD, -1, "PUT"),
    _value(_NAMESPACE + "permissions/subscription", "permissions of single subscriptions", {}),
    _value(_NAMESPACE + "schemaValidationEnforced", _SCHEMAS, False, "POST"),
    _value(_NAMESPACE + "subscriptionAuthMode", "permissions of single subscriptions", "None", "POST"),
    UnsupportedRoute(_NAMESPACE + "removeOffloadPolicies", _OFFLOAD, {"DELETE": ValuelessAnswer.DONE}),
    _refused(_NAMESPACE + "migration", _REPLICATION, "POST"),
    _refused(_NAMESPACE + "replication", _REPLICATION, "POST"),
    _refused(_NAMESPACE + "permissions/subscription/{subscription}", "permissions of single subscriptions", "POST"),
    _refused(_NAMESPACE + "permissions/{subscription}/{role}", "permissions of single subscriptions", "DELETE"),
    _refused(_NAMESPACE + "property/{key}/{value}", "properties of a namespace", "PUT"),
    _refused(_NAMESPACE + "resourcegroup/{group}", _GROUPS, "POST"),
    _refused(_NAMESPACE + "{bundle}/split", "splitting bundles: each namespace has the same four", "PUT"),
    _refused(_NAMESPACE + "{bundle}/topicHashPositions", _BALANCE, "GET"),
    # Of a cluster
    _refused(_CLUSTER, ONE_CLUSTER, "POST", "DELETE"),
    _value(_CLUSTER + "/failureDomains", _BALANCE, {}),
    _refused(_CLUSTER + "/failureDomains/{domain}", _BALANCE, "GET", "POST", "DELETE"),
    _value(_CLUSTER + "/migrate", _REPLICATION, {"migrated": False}, "POST"),
    _value(_CLUSTER + "/namespaceIsolationPolicies", _BALANCE, {}),
    _value(_CLUSTER + "/namespaceIsolationPolicies/brokers", _BALANCE, []),
    _refused(_CLUSTER + "/namespaceIsolationPolicies/brokers/{broker}", _BALANCE, "GET"),
    _refused(_CLUSTER + "/namespaceIsolationPolicies/{policy}", _BALANCE, "GET", "POST", "DELETE"),
    _value(_CLUSTER + "/peers", _REPLICATION, ValuelessAnswer.UNSET, "POST"),
    # Of the service
    _value("/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces", _BALANCE, {}),
    _refused("/admin/v2/brokers/internal-configuration", "ZooKeeper and BookKeeper: metadata is in SQL", "GET"),
    _refused("/admin/v2/brokers/shutdown", "ending a service by a call: send SIGTERM to its process", "POST"),
    _refused("/admin/v2/broker-stats/metrics", "metrics by this call: GET /metrics has them", "GET"),
    _refused("/admin/v2/broker-stats/{kind}", "numbers of a Java process and of load balancing", "GET"),
    _refused("/admin/v2/broker-stats/allocator-stats/{allocator}", "numbers of a Java process", "GET"),
    _value("/admin/v2/bookies/racks-info", _BOOKKEEPER, {}),
    _value("/admin/v2/bookies/all", _BOOKKEEPER, {"bookies": []}),
    _refused("/admin/v2/bookies/racks-info/{bookie}", _BOOKKEEPER, "GET", "POST", "DELETE"),
    _value("/admin/v2/resourcegroups", _GROUPS, []),
    _refused("/admin/v2/resourcegroups/{group}", _GROUPS),
    _refused("/admin/v2/resource-quotas", _BALANCE),
    _refused("/admin/v2/resource-quotas/{rest:path}", _BALANCE),
    _value("/admin/namespaces/{cluster}/antiAffinity/{group}", _BALANCE, []),
    _refused("/admin/v2/functions/{rest:path}", "functions"),
    _refused("/admin/v2/worker/{rest:path}", "functions"),
    _refused("/admin/v2/worker-stats/{rest:path}", "functions"),
    _refused("/admin/v3/functions/{rest:path}", "functions"),
    _refused("/admin/v3/packages/{rest:path}", "packages"),
    _refused("/admin/v3/sink/{rest:path}", "sinks"),
    _refused("/admin/v3/sinks/{rest:path}", "sinks"),
    _refused("/admin/v3/source/{rest:path}", "sources"),
    _refused("/admin/v3/sources/{rest:path}", "sources"),
    _refused("/admin/v3/transactions/{rest:path}", "transactions"),
    _refused("/proxy-stats/{rest:path}", "a proxy"),
)
"""Every call with such an answer. The first row that fits counts."""


def check_no_shadow(properties: Mapping[str, str]) -> None:
    """Raise RestException (405) for the properties of a shadow topic."""
    if SHADOW_SOURCE in properties:
        raise RestException(405, REFUSAL.format("shadow topics"))


def _of_name(
    row: UnsupportedRoute, path_name: Any, check: Callable[[Environment, Any], object]
) -> Callable[..., Response]:
    """Return the endpoint of a row below a topic or namespace. `path_name`: the dependency that reads its name from the
    path. `check` raises NotFound if it does not exist."""

    def answer(request: Request, broker: Broker, name: Any = path_name) -> Response:
        if request.method != "GET":
            require_permission(request, AuthAction.ADMIN)
        check(broker.environment, name)
        return row.answer(request.method)

    return answer


def _of_service(row: UnsupportedRoute) -> Callable[..., Response]:
    def answer(request: Request, broker: Broker) -> Response:
        if request.path_params.get("cluster", broker.settings.cluster_name) != broker.settings.cluster_name:
            raise RestException(404, "Cluster does not exist")
        return row.answer(request.method)

    return answer


def _router() -> Routes:
    """Return a route for each row. OpenAPI does not describe them."""
    routes = Routes(prefix="")
    for row in ROWS:
        needs: tuple[AuthAction, ...] = _LOOK
        if row.path.startswith(_TOPIC):
            endpoint = _of_name(row, Depends(topic_name), names.topics)
        elif row.path.startswith(_NAMESPACE):
            endpoint = _of_name(row, Depends(namespace_name), names.namespace)
        else:
            is_refusal = all(answer is ValuelessAnswer.REFUSED for answer in row.answers.values())
            endpoint, needs = _of_service(row), (AuthAction.ANYONE if is_refusal else AuthAction.SUPERUSER,)
        routes.route(row.answers, row.path, *needs, response_model=None, include_in_schema=False)(endpoint)
    return routes


router = _router()
