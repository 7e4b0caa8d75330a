"""Lookup of the service that owns a topic, which serves it to Pulsar's clients (api/pulsar).

Any service answers REST for any topic; the owner does so fastest.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from fastapi import Request
from starlette.responses import Response

from api.broker import names
from api.broker.refusals import NoLogOwner, WriterElsewhere
from api.http.access import ANY_USE
from api.http.dependencies import Broker
from api.http.paths import Topic
from api.http.problems import reword_errors
from api.http.router import Routes
from api.rest.models import PulsarAnswer
from api.rest.tenancy.bundles import bundle_of
from storage.metadata.records import ServiceRecord

router = Routes("lookup", "/lookup/v2")

BINARY_PORT = 6650
"""The port of Pulsar's protocol, unless a service reports another one."""


class ServiceUrls(NamedTuple):
    """The URLs of a service: `http` for HTTP, and `broker_service` for Pulsar's protocol."""

    http: str
    broker_service: str


class LookupData(PulsarAnswer):
    """The URLs of the service that serves a topic."""

    broker_url: str
    http_url: str
    native_url: str
    broker_url_ssl: str = ""


@router.get("/topic/persistent/{tenant}/{namespace}/{topic}", *ANY_USE)
def lookup_topic(broker: Broker, request: Request, topic: Topic) -> LookupData:
    """Return the URLs of the service that owns a topic; without an owner, those of this service."""
    owner: ServiceRecord | None = None
    with reword_errors("Namespace not found"), suppress(NoLogOwner, WriterElsewhere):
        # Without an owner, this service answers REST for the topic, which need not exist.
        owner = names.other_owner(broker, topic, allow_missing=True)
    urls = service_urls(broker, request, owner)
    tls = (owner or broker.settings).broker_service_url_tls
    return LookupData(
        broker_url=urls.broker_service, http_url=urls.http, native_url=urls.broker_service, broker_url_ssl=tls or ""
    )


@router.get(
    "/topic/persistent/{tenant}/{namespace}/{topic}/bundle",
    *ANY_USE,
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
)
def lookup_bundle(broker: Broker, topic: Topic) -> Response:
    """Return the bundle of a topic as text: one of the four ranges of hashes of its namespace."""
    with reword_errors("Namespace not found"):
        names.namespace(broker.environment, names.namespace_of(topic))
    return Response(bundle_of(topic), media_type="text/plain")


def service_urls(broker: Broker, request: Request, owner: ServiceRecord | None = None) -> ServiceUrls:
    """Return the URLs of the service `owner`; without `owner`, those of this service."""
    settings = broker.settings
    own_url = settings.url if settings.advertised_url else str(request.base_url)
    http = (own_url if owner is None else owner.url).rstrip("/")
    service = owner or settings
    binary = service.broker_service_url or service.broker_service_url_tls
    host = urlsplit(http).hostname or settings.host
    return ServiceUrls(http, binary or f"pulsar://{f'[{host}]' if ':' in host else host}:{BINARY_PORT}")
