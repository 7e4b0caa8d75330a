"""A session without a transport: who connects, and what is created and cancelled."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.http.tokens import create
from api.pulsar.codec import requests
from api.pulsar.codec.responses import Connected, Failure, Response
from api.pulsar.context import ServerContext
from api.pulsar.errors import Refused, ServerError
from api.pulsar.frames import MalformedFrame
from api.pulsar.handlers.table import HANDLERS
from api.pulsar.session import PROTOCOL_VERSION, Session
from api.settings.settings import Settings
from tests.asgi import access_of
from tests.clocks import ManualClock
from tests.unit.api.pulsar.fairness import shared_state

SECRET = bytes(32)
CONNECT = requests.Connect("t", PROTOCOL_VERSION, "", b"", "")


class RecordingChannel:
    """Keeps the responses of a session."""

    address = "10.0.0.1:7000"
    is_writable = True
    is_reading = True

    def __init__(self) -> None:
        self.sent: list[Response] = []
        self.is_closed = False

    def send(self, response: Response) -> None:
        self.sent.append(response)

    def deliver(self, *_: object) -> None:
        pass

    def connected(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def hold(self, reason: str) -> None:
        pass

    def go_on(self, reason: str) -> None:
        pass

    def charge(self, seconds: float) -> None:
        pass


def session(access: object = None) -> tuple[Session, RecordingChannel]:
    clock, channel = ManualClock(), RecordingChannel()
    context = SimpleNamespace(
        access=access or SimpleNamespace(verifier=None),
        settings=Settings(),
        max_message_size=1,
        server_version="test",
        log_throttle=SimpleNamespace(warn=lambda *_: None),
        **shared_state(clock),
    )
    return Session(cast(ServerContext, context), channel, HANDLERS), channel


def test_a_client_connects_once() -> None:
    client, channel = session()
    client.receive(replace(CONNECT, protocol_version=PROTOCOL_VERSION + 1))
    (connected,) = channel.sent
    assert isinstance(connected, Connected)
    assert connected.protocol_version == PROTOCOL_VERSION
    with pytest.raises(MalformedFrame):
        client.receive(CONNECT)


def test_a_protocol_that_is_too_old_is_refused() -> None:
    client, channel = session()
    client.receive(replace(CONNECT, protocol_version=9))
    (refused,) = channel.sent
    assert isinstance(refused, Failure)
    assert (refused.error, channel.is_closed) == (ServerError.UnsupportedVersionError, True)
    assert not client.is_connected


def test_a_creation_that_the_client_cancels_is_not_wanted() -> None:
    client, _ = session()
    with client.creating("producer", 1, request_id=5) as is_reserved:
        with pytest.raises(Refused) as refused, client.creating("producer", 1, request_id=6):
            pass
        assert refused.value.error == ServerError.ServiceNotReady
        assert is_reserved()
        client.cancel_creation("producer", 1)
        assert not is_reserved()
        with client.creating("producer", 1, request_id=7) as is_second_reserved:
            assert is_second_reserved()
            assert not is_reserved()


@pytest.mark.parametrize(
    ("role", "original", "caller"),
    [
        ("proxy", "client", ("client", "proxy")),
        ("proxy", "", None),
        ("proxy", "proxy", None),
        ("client", "", ("client", None)),
        ("client", "root", None),
    ],
)
def test_a_proxy_names_its_client_and_no_other_role_may(
    role: str, original: str, caller: tuple[str, str | None] | None
) -> None:
    client, channel = session(replace(access_of(SECRET, "root"), proxy_roles=frozenset({"proxy"})))
    token = create(SECRET, role, {}).encode()
    client.receive(requests.Connect("t", PROTOCOL_VERSION, "token", token, original))
    if caller is None:
        assert cast(Any, channel.sent[0]).error == ServerError.AuthorizationError
        assert channel.is_closed
    else:
        assert (client.identity.caller.role, client.identity.caller.proxy) == caller
        assert client.identity.is_valid()
        with pytest.raises(Refused, match="another original principal"):
            client.identity.check_original_principal("root")


@pytest.mark.parametrize(
    "request_type",
    [
        requests.NewTxn,
        requests.AddPartitionToTxn,
        requests.AddSubscriptionToTxn,
        requests.EndTxn,
        requests.TcClientConnectRequest,
    ],
)
def test_transactions_are_refused_by_their_own_response(request_type: type[requests.Request]) -> None:
    client, channel = session()
    client.receive(request_type(7))
    assert channel.sent == [Failure(7, ServerError.NotAllowedError, "transactions are not offered", request_type)]
