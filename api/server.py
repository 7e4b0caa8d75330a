"""A service on a socket: checks of its settings, binding, TLS, report of its URL, and orderly shutdown.

Invariants: without access control only loopback is bound. The socket is bound before heavy libraries are loaded, so a
port in use is reported at once; one that another process has bound, too, and uses first, when the service would answer
requests. The line `serving` with the URL is logged when the service answers requests. SIGTERM or
Ctrl-C ends the service: it accepts no new connections, active requests and runs have the grace time, then the process
exits with 0. A second signal ends it at once. Forwarding headers (`X-Forwarded-For`) are ignored.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import os
import signal
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from api.http.certificate_reloader import CertificateReloader
from api.http.connections import deadline_protocol_class, http_refusal_bytes, keep_uvicorn_record
from api.http.listener import Listener, RefusalBytes, connection_limit
from api.observability import logs
from api.observability.logs import LogThrottle
from api.settings.settings import Settings
from api.settings.sources import unknown_variable_notes
from compactor.engines.kinds import IN_PROCESS
from storage.clock import SystemClock
from storage.errors import Misconfigured, Unavailable
from storage.file_modes import create_private_folder, is_open_to_others

if TYPE_CHECKING:
    from types import FrameType

    from starlette.types import ASGIApp

    from api.pulsar.server import PulsarServer

LOG = logging.getLogger(__name__)
BROKER_PORT = 6650
"""Pulsar's default port."""
_PORT_SETTINGS = ("port", "broker-service-port", "broker-service-port-tls")
_SWITCH_SECONDS = 0.0005
"""Maximum time that a computing thread blocks other threads (Python's default: 5 ms). An answer changes threads at each
statement. With the default it would wait 5 ms each time while the scheduler checks all topics, or garbage is
collected."""


def serve(settings: Settings) -> None:
    """Run a service in this process until SIGTERM or SIGINT. Raises Misconfigured and Unavailable before it answers
    requests."""
    check_exposure(settings)
    check_tls(settings)
    check_settings_and_create_log_directory(settings)
    logs.configure(settings)
    for note in (
        *unknown_variable_notes(os.environ),
        *exposed_folder_warnings(settings),
        *plaintext_port_warnings(settings),
    ):
        LOG.warning(note)
    with ExitStack() as sockets:
        listening = sockets.enter_context(bound_socket(settings.host, settings.port, _PORT_SETTINGS[0]))
        broker_port = settings.broker_service_port
        if broker_port is None and not settings.broker_service_tls_only:
            broker_port = BROKER_PORT if settings.port else 0
        broker, broker_tls = (
            None if port is None else sockets.enter_context(bound_socket(settings.host, port, name))
            for port, name in zip((broker_port, settings.broker_service_port_tls), _PORT_SETTINGS[1:], strict=True)
        )
        bound_settings = settings.with_flags(
            port=listening.getsockname()[1],
            broker_service_port=None if broker is None else broker.getsockname()[1],
            broker_service_port_tls=None if broker_tls is None else broker_tls.getsockname()[1],
        )
        sys.setswitchinterval(_SWITCH_SECONDS)
        gc.disable()  # imports allocate much and free nothing; collections would take a fifth of the start
        from api.app import make_app
        from api.service import running_service

        with running_service(bound_settings) as context:
            from api.pulsar.server import build_server

            pulsar_server = build_server(context.broker, context.access, broker, broker_tls)
            app = make_app(context)
            for each, name in zip((listening, broker, broker_tls), _PORT_SETTINGS, strict=True):
                if each is not None:
                    listen(each, name)
            serve_app(app, bound_settings, listening, context.polls.end_waits, pulsar_server)
    LOG.info("ended")


def serve_app(
    app: ASGIApp,
    settings: Settings,
    listening: socket.socket,
    on_signal: Callable[[], object],
    pulsar_server: PulsarServer | None = None,
) -> None:
    """Answer requests on a bound socket, and the clients of `pulsar_server`, until a signal; then shut down in order.

    `on_signal`: called at each signal. `pulsar_server` None: Pulsar's protocol is not served.
    """
    import uvicorn

    log_throttle = LogThrottle(SystemClock(), LOG)
    logging.getLogger("uvicorn.error").addFilter(keep_uvicorn_record)
    listener = Listener(
        listening,
        connection_limit(settings.limits_connections),
        "limits.connections",
        settings.limits_header_timeout_ms / 1000,
        log_throttle,
        RefusalBytes() if settings.tls_certificate else http_refusal_bytes(settings),
    )

    async def create_server(protocol_factory: Callable[[], asyncio.Protocol], **_: object) -> Listener:
        listener.start(protocol_factory, config.ssl)
        return listener

    class Server(uvicorn.Server):
        """A server that logs its URL and has its own handling of signals."""

        certificates: CertificateReloader | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            # uvicorn has no setting for the server of its connections
            asyncio.get_running_loop().create_server = create_server  # type: ignore[method-assign,assignment]
            await super().startup(sockets)
            if self.started:
                gc.freeze()
                gc.enable()
                if not settings.has_access_control:
                    LOG.warning(
                        "access control is off: any process that reaches this machine's loopback may do everything"
                    )
                if pulsar_server is not None:
                    await pulsar_server.start()
                if config.ssl is not None:
                    contexts = [config.ssl, *(pulsar_server.tls_contexts if pulsar_server is not None else ())]
                    self.certificates = CertificateReloader(
                        settings.tls_certificate, settings.tls_key, contexts, settings.tls_reload_interval_ms
                    )
                    self.certificates.start()
                broker = (
                    {"broker_service_url": settings.broker_service_url or settings.broker_service_url_tls}
                    if pulsar_server is not None
                    else {}
                )
                LOG.info("serving", extra={"url": settings.url, **broker})

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            if self.certificates is not None:
                self.certificates.stop()
            if pulsar_server is not None:
                await pulsar_server.close()
            await super().shutdown(sockets)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            on_signal()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            before = {item: signal.signal(item, self.handle_exit) for item in (signal.SIGTERM, signal.SIGINT)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    config = uvicorn.Config(
        app,
        http=deadline_protocol_class(settings, log_throttle, listener),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=settings.limits_header_bytes,
        timeout_graceful_shutdown=max(1, settings.shutdown_grace_ms // 1000),
        ssl_certfile=settings.tls_certificate or None,
        ssl_keyfile=settings.tls_key or None,
    )
    asyncio.run(Server(config).serve(sockets=[listening]))
    LOG.info("draining")


def check_exposure(settings: Settings) -> None:
    """Raise Misconfigured if other machines can reach a service without access control, or if access control has no
    key to check tokens with."""
    if settings.has_access_control:
        if not (settings.auth_token_secret_key or settings.auth_token_public_key or settings.auth_jwks_file):
            raise Misconfigured(
                "auth.enabled is true, but there is no key to check tokens with: every request would be refused",
                "set auth.token-secret-key, auth.token-public-key or auth.jwks-file (docs/security.md)",
            )
        return
    if settings.auth_superuser_roles and settings.auth_enabled is None:
        raise Misconfigured(
            "auth.superuser-roles is set, but no key to check tokens with",
            "set auth.token-secret-key, auth.token-public-key or auth.jwks-file",
        )
    if not _is_loopback(settings.host):
        raise Misconfigured(
            f"{settings.host} can be reached from other machines, and access control is off",
            "set auth.token-secret-key, auth.token-public-key or auth.jwks-file (docs/security.md), "
            "or bind to 127.0.0.1",
        )


def check_tls(settings: Settings) -> None:
    """Raise Misconfigured unless certificate, key and further authorities are usable and the TLS settings agree."""
    if settings.tls_ca:
        try:
            ssl.create_default_context(cafile=settings.tls_ca)
        except (OSError, ValueError) as error:
            what = "holds no certificate in PEM" if Path(settings.tls_ca).is_file() else "does not exist"
            raise Misconfigured(f"tls.ca cannot be used: {settings.tls_ca} {what}", "name a PEM file") from error
    if settings.broker_service_tls_only and settings.broker_service_port_tls is None:
        raise Misconfigured("broker-service-tls-only is set, but no port with TLS", "set broker-service-port-tls, too")
    if settings.broker_service_tls_only and settings.broker_service_port is not None:
        raise Misconfigured(
            "broker-service-tls-only is set, and a port without TLS", "leave one of them out: it or broker-service-port"
        )
    if not settings.tls_certificate and settings.broker_service_port_tls is not None:
        raise Misconfigured(
            "broker-service-port-tls is set, but no certificate", "set tls.certificate and tls.key (docs/security.md)"
        )
    if not settings.tls_certificate and not settings.tls_key:
        return
    if not settings.tls_certificate or not settings.tls_key:
        raise Misconfigured("of tls.certificate and tls.key one is missing", "set both, or neither")
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(settings.tls_certificate, settings.tls_key)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        missing = [item for item in (settings.tls_certificate, settings.tls_key) if not Path(item).is_file()]
        what = f"{missing[0]} does not exist" if missing else "they are no certificate in PEM and its key"
        raise Misconfigured(f"tls.certificate and tls.key cannot be used: {what}", "name PEM files") from error


def check_settings_and_create_log_directory(settings: Settings) -> None:
    """Raise Misconfigured for settings that would fail much later: Spark's master, the advertised URL, the log
    directory, which is created if it is missing, and so is the data directory if the log is in it.

    Spark's cluster need not answer yet.
    """
    if settings.spark_master != IN_PROCESS:
        from compactor.engines.cluster import check_master

        check_master(settings.spark_master)
    try:
        url = urlsplit(settings.url)
        whole = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        whole = False
    if settings.advertised_url and not whole:
        raise Misconfigured(
            f"advertised-url is {settings.advertised_url!r}, which names no host that others could reach",
            "give https://host:port, http://host:port or a host",
        )
    directory = settings.log_directory
    if not settings.log:
        settings.make_data_directory()
    try:
        create_private_folder(directory)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise Misconfigured(
            f"the log directory {directory} cannot be written ({error.strerror})",
            "set log, or data, to a directory on a local disk that can be written",
        ) from error


def exposed_folder_warnings(settings: Settings) -> list[str]:
    """Return a warning for each folder of the service that contains messages and that every user of the machine may
    read."""
    store = urlsplit(settings.store_url)
    folders = {settings.data_directory, settings.log_directory}
    folders |= {Path(unquote(store.path))} if store.scheme == "file" else set()
    return [
        f"any user of this machine may read {folder}, where messages are: chmod 700 {folder}, or 770 for a group"
        for folder in sorted(folders)
        if is_open_to_others(folder)
    ]


def plaintext_port_warnings(settings: Settings) -> list[str]:
    """Return warnings for ports that take tokens and messages in clear although the service has a certificate."""
    if not settings.tls_certificate or settings.broker_service_tls_only:
        return []
    return [
        f"the port of Pulsar's protocol ({settings.broker_service_port or BROKER_PORT}) takes connections without TLS "
        "although tls.certificate is set: tokens and messages can be read on the way; set broker-service-port-tls and "
        "broker-service-tls-only"
    ]


@contextmanager
def bound_socket(host: str, port: int, port_setting: str) -> Iterator[socket.socket]:
    """Yield a socket that is bound to host and port. `port_setting`: its name, for errors.

    Raises Misconfigured, Unavailable.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise Misconfigured(f"the host {host!r} has no address ({error.strerror})", "set host") from error
    family, kind, protocol, _, address = addresses[0]
    with socket.socket(family, kind, protocol) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except OSError as error:
            raise _port_in_use_error(host, port, port_setting, error) from error
        yield listening


def listen(bound: socket.socket, port_setting: str) -> None:
    """Start to listen on a bound socket. Raise Unavailable if another process listens on its port: Linux lets two
    processes bind one until then."""
    try:
        bound.listen()
    except OSError as error:
        host, port, *_ = bound.getsockname()
        raise _port_in_use_error(host, port, port_setting, error) from error


def _port_in_use_error(host: str, port: int, port_setting: str, error: OSError) -> Unavailable:
    """Return the error for a port that cannot be bound. `port_setting`: the option that changes it."""
    return Unavailable(
        f"{host}:{port} cannot be bound ({error.strerror})",
        f"end the process that uses it, or choose another --{port_setting} (0: any free port)",
    )


def _is_loopback(host: str) -> bool:
    """Return whether all addresses of a host are this machine's own."""
    try:
        addresses = socket.getaddrinfo(host or None, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return bool(addresses) and all(ipaddress.ip_address(str(item[4][0])).is_loopback for item in addresses)
    except (OSError, ValueError):
        return False
