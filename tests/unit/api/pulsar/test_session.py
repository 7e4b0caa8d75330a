"""A session without a transport: who connects, and what is created and cancelled."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from api.broker.serving.consumer import ConsumerOptions, SubscriptionType
from api.broker.serving.position import SubscribeRequest
from api.broker.serving.selection import ConsistentHash, SingleActive
from api.broker.serving.topic import PersistentTopic
from api.http.tokens import create_token
from api.pulsar import session as session_module
from api.pulsar.codec import requests
from api.pulsar.codec.responses import ActiveConsumerChange, Connected, Failure, Response
from api.pulsar.context import ServerContext
from api.pulsar.errors import Refused, ServerError
from api.pulsar.frames import MalformedFrame
from api.pulsar.handlers.table import HANDLERS
from api.pulsar.session import PROTOCOL_VERSION, ConnectedConsumer, ConnectedProducer, Session
from api.settings.settings import Settings
from storage.topic import Topic
from tests.asgi import access_of
from tests.clocks import ManualClock
from tests.unit.api.broker.serving.consumers import quiet
from tests.unit.api.broker.serving.served_topic import opened
from tests.unit.api.pulsar.fairness import shared_state
from tests.workbench import Workbench

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

    def accept_requests(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def hold_requests(self, reason: str) -> None:
        pass

    def resume_requests(self, reason: str) -> None:
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
        log_throttle=SimpleNamespace(warn=lambda *_, **__: None),
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
    with client.reserve_id("producer", 1, request_id=5) as is_reserved:
        with pytest.raises(Refused) as refused, client.reserve_id("producer", 1, request_id=6):
            pass
        assert refused.value.error == ServerError.ServiceNotReady
        assert is_reserved()
        client.cancel_creation("producer", 1)
        assert not is_reserved()
        with client.reserve_id("producer", 1, request_id=7) as is_second_reserved:
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
    token = create_token(SECRET, role, {}).encode()
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


async def join(client: Session, topic: PersistentTopic, type_: SubscriptionType, prefix: str, count: int) -> None:
    """Let consumers of a session join one subscription."""
    for _ in range(count):
        number = len(client.consumers)
        options = ConsumerOptions(f"{prefix}{number}", type_, number)
        connected = ConnectedConsumer(client, topic, options, None)
        connected.subscription = await topic.find_or_create_subscription(connected.consumer, SubscribeRequest("s"))
        client.consumers[number] = connected
        assert connected.subscription.dispatcher is not None
        connected.subscription.dispatcher.add(connected.consumer)


def changes(channel: RecordingChannel) -> int:
    """Return the number of reports of another active consumer."""
    return sum(isinstance(response, ActiveConsumerChange) for response in channel.sent)


@pytest.mark.parametrize(
    ("type_", "selector"), [(SubscriptionType.KEY_SHARED, ConsistentHash), (SubscriptionType.FAILOVER, SingleActive)]
)
@pytest.mark.parametrize("ends", [True, False])
def test_the_consumers_of_a_connection_leave_a_subscription_together(
    bench: Workbench,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
    type_: SubscriptionType,
    selector: type[ConsistentHash] | type[SingleActive],
    ends: bool,
) -> None:
    """One after the other they rebuilt the ring, or informed the others, for each: 3 s for 1,000 in one step."""
    removals: list[int] = []
    remove = selector.remove

    def counted(self: Any, *consumers: Any) -> None:
        removals.append(len(consumers))
        remove(self, *consumers)

    monkeypatch.setattr(selector, "remove", counted)

    async def main() -> None:
        async with opened(bench, topic) as served:
            (staying, channel), (client, own_channel) = session(), session()
            await join(staying, served, type_, "b", 3)
            await join(client, served, type_, "a", 20)
            await quiet()
            channel.sent.clear()
            own_channel.sent.clear()
            if ends:
                client.end()
                assert removals == [20]
                assert changes(channel) == (3 if type_ is SubscriptionType.FAILOVER else 0)
                await quiet()
                assert removals == [20]
                assert len(served.subscriptions["s"].consumers) == 3
            else:
                served.subscriptions["s"].disconnect()
                assert removals == [23]
                assert not client.consumers
                assert not staying.consumers
                assert (changes(channel), changes(own_channel), len(own_channel.sent)) == (0, 0, 20)

    asyncio.run(main())


@pytest.mark.parametrize("is_silent", [False, True])
def test_the_end_of_a_large_connection_takes_several_turns_of_the_loop_and_then_its_names_are_free(
    bench: Workbench, topic: Topic, monkeypatch: pytest.MonkeyPatch, is_silent: bool
) -> None:
    """`is_silent`: the connection is ended by the client that asks for its names."""
    monkeypatch.setattr(session_module, "ENDED_AT_ONCE", 10)
    monkeypatch.setattr(session_module, "LIVENESS_SECONDS", 0)

    async def main() -> None:
        async with opened(bench, topic) as served:
            client, channel = session()
            monkeypatch.setattr(channel, "close", client.end)
            for number in range(25):
                request = requests.Producer(1, number, "t", "", 0, False, 0, False, "", None, {}, None)
                connected = ConnectedProducer(client, served, request, f"p{number}")
                client.producers[number] = connected
                served.add_producer(connected.producer)
            await join(client, served, SubscriptionType.SHARED, "a", 15)
            if not is_silent:
                client.end()
                assert len(served.producers) == 15
            assert not await client.close_unless_alive()
            assert (len(served.producers), len(served.subscriptions["s"].consumers)) == (0, 0)

    asyncio.run(main())


def test_a_connection_has_a_bounded_number_of_producers_and_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_CLIENTS", 2)
    client, _ = session()
    with client.reserve_id("producer", 1, 1), client.reserve_id("consumer", 1, 2):
        with (
            pytest.raises(Refused, match="has 2 producers and consumers") as refused,
            client.reserve_id("consumer", 2, 3),
        ):
            pass
        assert refused.value.error == ServerError.TooManyRequests
    with client.reserve_id("consumer", 2, 4) as is_reserved:
        assert is_reserved()
