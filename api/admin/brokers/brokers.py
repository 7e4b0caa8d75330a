"""What Pulsar's tools ask of a broker: who is there, whether it is well, which version it speaks, how it is set.

No setting can be changed while the service runs, so there are no dynamic ones to list, and changes are refused.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from api.admin.models import done
from api.admin.topics.lookup import service_urls
from api.http.access import Action, allowed
from api.http.problems import Problem, refusals
from api.http.routes import Routes
from api.service import Parts, Service
from compactor.maintenance.tasks import Task
from storage.metadata.policy_store import BROKER

router = Routes(prefix="/admin/v2/brokers", tags=["brokers"])

PULSAR_VERSION = "4.2.4"
"""The broker whose answers these are."""
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"application/json": {}}, "description": "Plain text."}}
_FIXED = {
    "brokerServiceCompactionPhaseOneLoopTimeInSeconds": "30",
    "compactionServiceFactoryClassName": "org.apache.pulsar.compaction.PulsarCompactionServiceFactory",
}
"""What tools may look for and means nothing here: as a broker has it by default."""


class BrokerInfo(BaseModel):
    """A service process."""

    brokerId: str  # noqa: N815
    serviceUrl: str  # noqa: N815


@router.get("", dependencies=[allowed(Action.SUPERUSER)], operation_id="listBrokers")
def list_brokers(parts: Parts, request: Request) -> list[str]:
    """Host and port of each service process that lives; one that was killed is among them for up to 15 s."""
    return _brokers(parts, request)


@router.get(
    "/version",
    dependencies=[allowed(Action.ANYONE)],
    operation_id="getVersion",
    response_class=Response,
    responses=_TEXT,
)
def get_version() -> Response:
    """The version of Pulsar whose admin API this is."""
    return Response(PULSAR_VERSION, media_type="application/json")


@router.get(
    "/health",
    dependencies=[allowed(Action.ANYONE)],
    operation_id="healthCheck",
    response_class=Response,
    responses=_TEXT | refusals(503),
)
def health(parts: Parts) -> Response:
    """`ok` if the database answers; 503 if it does not."""
    parts.components.metadata.tenancy.tenants()
    return Response("ok", media_type="application/json")


@router.get(
    "/ready", dependencies=[allowed(Action.ANYONE)], operation_id="isReady", response_class=Response, responses=_TEXT
)
def ready() -> Response:
    """`ok`: it answers. `/readyz` tells more."""
    return Response("ok", media_type="application/json")


@router.get(
    "/leaderBroker", dependencies=[allowed(Action.SUPERUSER)], operation_id="getLeaderBroker", responses=refusals(404)
)
def leader(parts: Parts) -> BrokerInfo:
    """The service that schedules compactions."""
    services = parts.components.metadata.services
    name = services.leader()
    found = next((one for one in services.live() if one.name == name), None)
    if found is None:
        raise Problem(404, "Couldn't find leader broker")
    return BrokerInfo(brokerId=urlsplit(found.url).netloc, serviceUrl=found.url)


@router.get("/configuration", dependencies=[allowed(Action.SUPERUSER)], operation_id="listDynamicConfigurations")
def dynamic_configuration() -> list[str]:
    """The settings that can be changed while the service runs: none."""
    return []


@router.get("/configuration/values", dependencies=[allowed(Action.SUPERUSER)], operation_id="getDynamicConfigurations")
def dynamic_values() -> dict[str, str]:
    """Those that were changed: none."""
    return {}


@router.get("/configuration/runtime", dependencies=[allowed(Action.SUPERUSER)], operation_id="getRuntimeConfigurations")
def runtime_configuration(parts: Parts) -> dict[str, str]:
    """The settings of compaction by Pulsar's names. `compactor config show` tells all."""
    policies = parts.components.metadata.policies
    broker = {**policies.broker_defaults, **policies.of_scope(BROKER)}
    values = {
        "brokerServiceCompactionMonitorIntervalInSeconds": parts.settings.compaction_monitor_interval_ms // 1000,
        "brokerServiceCompactionThresholdInBytes": broker.get("compaction.threshold.bytes", 0),
        "topicCompactionRetainNullKey": broker.get("compaction.retain-null-key", False),
    }
    return dict(sorted({**_FIXED, **{name: str(value).lower() for name, value in values.items()}}.items()))


@router.post(
    "/configuration/{name}/{value}",
    dependencies=[allowed(Action.SUPERUSER)],
    operation_id="updateDynamicConfiguration",
    responses=refusals(412),
)
def update_dynamic(name: str, value: str) -> Response:
    """Refused: 412."""
    raise Problem(412, "Can't update non-dynamic configuration")


@router.delete(
    "/configuration/{name}",
    dependencies=[allowed(Action.SUPERUSER)],
    operation_id="deleteDynamicConfiguration",
    responses=refusals(412),
)
def delete_dynamic(name: str) -> Response:
    """Refused: 412."""
    raise Problem(412, "Can't delete non-dynamic configuration")


@router.get(
    "/backlog-quota-check",
    dependencies=[allowed(Action.SUPERUSER)],
    operation_id="backlogQuotaCheck",
    status_code=204,
)
def check_backlogs(parts: Parts) -> Response:
    """Let this service compare backlogs with their quotas now, and expire messages."""
    parts.maintenance.maintenance.hasten(Task.BACKLOG)
    return done()


@router.get(
    "/{cluster}", dependencies=[allowed(Action.SUPERUSER)], operation_id="listClusterBrokers", responses=refusals(404)
)
def list_cluster_brokers(parts: Parts, request: Request, cluster: str) -> list[str]:
    """As `listBrokers`, of the one cluster."""
    if cluster != parts.settings.cluster_name:
        raise Problem(404, f"Cluster does not exist: cluster={cluster}")
    return _brokers(parts, request)


def _brokers(parts: Service, request: Request) -> list[str]:
    live = [urlsplit(one.url).netloc for one in parts.components.metadata.services.live()]
    return sorted(set(live)) or [urlsplit(service_urls(parts, request)[0]).netloc]
