"""Routes of the broker itself, for Pulsar's tools: the live brokers, its health, its version, its settings.

No setting can be changed while the service runs, so there are no dynamic ones to list, and changes are refused.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import Response

from api.http.access import AuthAction
from api.http.dependencies import Broker
from api.http.problems import RestException
from api.http.router import Routes
from api.rest.models import PulsarAnswer
from api.rest.topics.lookup import service_urls
from compactor.maintenance.tasks import MaintenanceTask
from storage.errors import NotFound
from storage.metadata.policy_store import BROKER

router = Routes("brokers", "/admin/v2/brokers")

PULSAR_VERSION = "4.2.4"
"""The broker whose answers these are."""
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}, "description": "Plain text."}}
_FIXED = {
    "brokerServiceCompactionPhaseOneLoopTimeInSeconds": "30",
    "compactionServiceFactoryClassName": "org.apache.pulsar.compaction.PulsarCompactionServiceFactory",
}
"""Settings that tools may read and that mean nothing here: a broker's defaults."""


class BrokerInfo(PulsarAnswer):
    """The id and the URL of a service process."""

    broker_id: str
    service_url: str


@router.get("", AuthAction.SUPERUSER)
def list_brokers(broker: Broker, request: Request) -> list[str]:
    """Return host and port of each live service process. A killed process is listed for up to 15 s."""
    return _live_broker_addresses(broker, request)


@router.get("/version", AuthAction.ANYONE, response_class=Response, responses=_TEXT)
def get_version() -> Response:
    """Return the version of Pulsar whose admin API this is."""
    return Response(PULSAR_VERSION, media_type="application/json")


@router.get("/health", AuthAction.ANYONE, refuses=(503,), response_class=Response, responses=_TEXT)
def health_check(broker: Broker) -> Response:
    """Return `ok` if the database answers; 503 if it does not."""
    broker.environment.metadata.tenancy.tenants()
    return Response("ok", media_type="application/json")


@router.get("/ready", AuthAction.ANYONE, response_class=Response, responses=_TEXT)
def is_ready() -> Response:
    """Return `ok`: the process answers. `/readyz` checks more."""
    return Response("ok", media_type="application/json")


@router.get("/leaderBroker", AuthAction.SUPERUSER, refuses=(404,))
def get_leader_broker(broker: Broker) -> BrokerInfo:
    """Return the service that schedules compactions."""
    services = broker.environment.metadata.services
    name = services.leader()
    leader = next((item for item in services.live() if item.name == name), None)
    if leader is None:
        cause = NotFound("no service schedules compactions now", "try again in some seconds")
        raise RestException(404, "Couldn't find leader broker") from cause
    return BrokerInfo(broker_id=urlsplit(leader.url).netloc, service_url=leader.url)


@router.get("/configuration", AuthAction.SUPERUSER)
def list_dynamic_configurations() -> list[str]:
    """Return the settings that can be changed while the service runs: none."""
    return []


@router.get("/configuration/values", AuthAction.SUPERUSER)
def get_dynamic_configurations() -> dict[str, str]:
    """Return the settings that were changed while the service runs: none."""
    return {}


@router.get("/configuration/runtime", AuthAction.SUPERUSER)
def get_runtime_configurations(broker: Broker) -> dict[str, str]:
    """Return the settings of compaction by Pulsar's names. `compactor config show` has all."""
    policies = broker.environment.metadata.policies
    configured = {**policies.broker_defaults, **policies.readable_of_scope(BROKER)}
    values = {
        "brokerServiceCompactionMonitorIntervalInSeconds": broker.settings.compaction_monitor_interval_ms // 1000,
        "brokerServiceCompactionThresholdInBytes": configured.get("compaction.threshold.bytes", 0),
        "topicCompactionRetainNullKey": configured.get("compaction.retain-null-key", False),
    }
    return dict(sorted({**_FIXED, **{name: str(value).lower() for name, value in values.items()}}.items()))


@router.post(
    "/configuration/{name}/{value}", AuthAction.SUPERUSER, refuses=(412,), operation_id="updateDynamicConfiguration"
)
def refuse_dynamic_configuration_update(name: str, value: str) -> Response:
    """Refuse to change a setting (412): none can be changed while the service runs."""
    raise RestException(412, "Can't update non-dynamic configuration")


@router.delete("/configuration/{name}", AuthAction.SUPERUSER, refuses=(412,), operation_id="deleteDynamicConfiguration")
def refuse_dynamic_configuration_deletion(name: str) -> Response:
    """Refuse to reset a setting (412): none can be changed while the service runs."""
    raise RestException(412, "Can't delete non-dynamic configuration")


@router.get("/backlog-quota-check", AuthAction.SUPERUSER)
def backlog_quota_check(broker: Broker) -> None:
    """Start a check of backlogs against their quotas, and of the age of messages, in this service. The answer does not
    wait for the check."""
    broker.maintenance.maintenance.make_due(MaintenanceTask.BACKLOG)


@router.get("/{cluster}", AuthAction.SUPERUSER, refuses=(404,))
def list_cluster_brokers(broker: Broker, request: Request, cluster: str) -> list[str]:
    """Return the same list as `listBrokers`, for the one cluster; 404 for another name."""
    if cluster != broker.settings.cluster_name:
        raise RestException(404, f"Cluster does not exist: cluster={cluster}")
    return _live_broker_addresses(broker, request)


def _live_broker_addresses(broker: Broker, request: Request) -> list[str]:
    """Return host and port of each live service process, sorted; of this one if none is registered."""
    live = [urlsplit(item.url).netloc for item in broker.environment.metadata.services.live()]
    return sorted(set(live)) or [urlsplit(service_urls(broker, request).http).netloc]
