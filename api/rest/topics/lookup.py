"""Lookup: which service has a topic. Any service answers REST for any topic; the holder of the writer's lease does it
fastest, and serves it to Pulsar's clients (api/pulsar).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import Response

from api.broker import names
from api.http.access import ANY_USE
from api.http.dependencies import Broker
from api.http.paths import Topic
from api.http.problems import reported_as
from api.http.router import Routes
from api.rest.models import PulsarAnswer
from api.rest.tenancy.bundles import bundle_of
from storage.errors import TopicNotFound
from storage.metadata.records import ServiceRecord
from storage.model import TopicName

router = Routes("lookup", "/lookup/v2")

BINARY_PORT = 6650
"""Pulsar's own."""


class LookupData(PulsarAnswer):
    """URLs of the service that serves a topic."""

    broker_url: str
    http_url: str
    native_url: str
    broker_url_ssl: str = ""


@router.get("/topic/persistent/{tenant}/{namespace}/{topic}", *ANY_USE)
def lookup_topic(broker: Broker, request: Request, topic: Topic) -> LookupData:
    """Return the service that has the topic's lease, or else this one."""
    with reported_as("Namespace not found"):
        names.namespace(broker.environment, names.namespace_of(topic))
    http, binary = service_urls(broker, request, topic)
    holder = _holder(broker, topic)
    tls = broker.settings.broker_service_url_tls if holder is None else holder.broker_service_url_tls
    return LookupData(broker_url=binary, http_url=http, native_url=binary, broker_url_ssl=tls or "")


@router.get(
    "/topic/persistent/{tenant}/{namespace}/{topic}/bundle",
    *ANY_USE,
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
def lookup_bundle(broker: Broker, topic: Topic) -> Response:
    """Return the bundle of a topic, one of those of its namespace."""
    with reported_as("Namespace not found"):
        names.namespace(broker.environment, names.namespace_of(topic))
    return Response(bundle_of(topic), media_type="text/plain")


def service_urls(broker: Broker, request: Request, topic: TopicName | None = None) -> tuple[str, str]:
    """Return URLs, for HTTP and for Pulsar's protocol, of the service that has the topic, or of this one."""
    settings = broker.settings
    own_url = settings.url if settings.advertised_url else str(request.base_url)
    holder = None if topic is None else _holder(broker, topic)
    http = (own_url if holder is None else holder.url).rstrip("/")
    owner = settings if holder is None else holder
    binary = owner.broker_service_url or owner.broker_service_url_tls
    host = urlsplit(http).hostname or settings.host
    return http, binary or f"pulsar://{f'[{host}]' if ':' in host else host}:{BINARY_PORT}"


def _holder(broker: Broker, topic: TopicName) -> ServiceRecord | None:
    """Return the service whose process holds the topic's lease; None: no service does."""
    metadata = broker.environment.metadata
    try:
        lease = metadata.leases.current(metadata.topics.get(topic).id)
    except TopicNotFound:
        return None
    return None if lease is None else metadata.services.of_owner(lease.owner)
