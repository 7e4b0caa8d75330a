"""Probes of REST commands on subscriptions whose consumer is connected."""

from __future__ import annotations

import time
from typing import Any

from api.pulsar.pulsar_api_pb2 import BaseCommand
from tests.clients.behaviour.endpoint import Endpoint, settled
from tests.clients.behaviour.probes import probe
from tests.clients.behaviour.wire import (
    EARLIEST,
    EXCLUSIVE,
    FAILOVER,
    SHARED,
    Wire,
    ids_of,
    payloads,
    plain,
    produced,
    wire_consumer,
)

TYPES = {"exclusive": EXCLUSIVE, "failover": FAILOVER, "shared": SHARED}


def _backlog(endpoint: Endpoint, topic: str, *values: int) -> int:
    return int(settled(lambda: endpoint.subscription(topic)["msgBacklog"], *values))


def _after(endpoint: Endpoint, topic: str, sub_type: int, below: str, backlog: int, expected: int) -> Any:
    """Return what a consumer with five of 20 messages gets after a REST command, with permits for the rest."""
    produced(endpoint, topic, 20)
    with wire_consumer(endpoint, topic, 5, sub_type=sub_type) as wire:
        wire.messages(5, quiet=0.2)
        status = endpoint.topic("POST", topic, below).status_code
        counted = _backlog(endpoint, topic, backlog)
        wire.flow(100)
        closed = wire.consumer_closed(seconds=0.5)
        if closed:
            wire.subscribe_again(topic, sub_type=sub_type)
            wire.flow(100)
        produced(endpoint, topic, 1, 20)
        frames = wire.messages(expected)
        return {
            "status": status,
            "msgBacklog": counted,
            "closed": closed,
            "delivered": sorted(map(int, payloads(frames))),
        }


@probe("G3")
def skip_all_with_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Skip all messages of a connected consumer."""
    return {
        name: _after(endpoint, f"{topic}-{name}", each, "/subscription/s/skip_all", 0, 1)
        for name, each in TYPES.items()
    }


@probe("G3")
def skip_with_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Skip ten messages of a connected consumer."""
    return {
        name: _after(endpoint, f"{topic}-{name}", each, "/subscription/s/skip/10", 10, 11)
        for name, each in TYPES.items()
    }


def _expired(endpoint: Endpoint, topic: str, sub_type: int) -> Any:
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=sub_type)
        sender.producer(topic)
        long_ago = int(time.time() * 1000) - 3_600_000
        for number in range(20):
            times = {"publish_time": long_ago} if number < 10 else {}
            sender.publish(plain(str(number), number, **times), number)
        wire.flow(5)
        wire.messages(5, quiet=0.2)
        status = endpoint.topic("POST", topic, "/subscription/s/expireMessages/1800").status_code
        counted = _backlog(endpoint, topic, 10)
        wire.flow(100)
        closed = wire.consumer_closed(seconds=0.5)
        if closed:
            wire.subscribe_again(topic, sub_type=sub_type)
            wire.flow(100)
        frames = wire.messages(10)
        return {
            "status": status,
            "msgBacklog": counted,
            "closed": closed,
            "delivered": sorted(map(int, payloads(frames))),
        }


@probe("G3")
def expire_with_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Expire the older half of the messages of a connected consumer, by publish time."""
    return {name: _expired(endpoint, f"{topic}-{name}", each) for name, each in TYPES.items()}


def _reset(endpoint: Endpoint, topic: str, sub_type: int, how: str, caught_up: bool) -> Any:
    """Reset the cursor of a connected consumer to the message 3."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=sub_type)
        sender.producer(topic)
        ids, now = [], int(time.time() * 1000)
        for number in range(10):
            stored = plain(str(number), number, publish_time=now - 100_000 + number * 1000)
            ids.append(sender.publish(stored, number))
        wire.flow(100 if caught_up else 5)
        frames = wire.messages(10 if caught_up else 5, quiet=0.2)
        if caught_up:
            wire.ack(ids_of(frames))
            _backlog(endpoint, topic, 0)
        if how == "id":
            body = {"ledgerId": ids[3]["ledger_id"], "entryId": ids[3]["entry_id"]}
            status = endpoint.topic("POST", topic, "/subscription/s/resetcursor", body).status_code
        else:
            status = endpoint.topic("POST", topic, f"/subscription/s/resetcursor/{now - 97_000}").status_code
        closed = wire.consumer_closed()
        wire.subscribe_again(topic, sub_type=sub_type)
        wire.flow(100)
        again = sorted(map(int, payloads(wire.messages(7))))
        return {
            "status": status,
            "closed": closed,
            "delivered": again,
            "msgBacklog": endpoint.subscription(topic)["msgBacklog"],
        }


@probe("G3", "G20")
def reset_to_an_id_with_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Reset the cursor of a connected consumer to an id, before and after it has caught up."""
    return {
        f"{name}, {state}": _reset(endpoint, f"{topic}-{name}-{state[0]}", each, "id", state == "caught up")
        for name, each in TYPES.items() for state in ("caught up", "behind")
    }  # fmt: skip


@probe("G3", "G20")
def reset_to_a_time_with_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Reset the cursor of a connected consumer to a time, before and after it has caught up."""
    return {
        f"{name}, {state}": _reset(endpoint, f"{topic}-{name}-{state[0]}", each, "time", state == "caught up")
        for name, each in TYPES.items() for state in ("caught up", "behind")
    }  # fmt: skip


@probe("G3", "G23")
def delete_a_subscription_with_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Delete by REST a subscription with a consumer that has caught up: without force, with it, then acknowledge."""
    seen: dict[str, Any] = {}
    for name, sub_type in TYPES.items():
        own = f"{topic}-{name}"
        produced(endpoint, own, 5)
        with Wire(endpoint) as wire:
            wire.subscribe(own, sub_type=sub_type)
            wire.flow(100)
            frames = wire.messages(5, quiet=0.2)
            wire.ack(ids_of(frames[:2]))
            refused = endpoint.topic("DELETE", own, "/subscription/s").status_code
            listed = endpoint.topic("GET", own, "/subscriptions").json()
            forced = endpoint.topic("DELETE", own, "/subscription/s?force=true").status_code
            remaining = endpoint.topic("GET", own, "/subscriptions").json()
            closed = wire.consumer_closed()
            wire.send(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": ids_of(frames)})
            with Wire(endpoint) as other:
                other.lookup(own)
            after = endpoint.topic("GET", own, "/subscriptions").json()
            seen[name] = {
                "without force": refused, "listed": listed, "with force": forced, "then": remaining, "closed": closed,
                "after an acknowledgement": after,
            }  # fmt: skip
    return seen


@probe("G23")
def unsubscribe_by_the_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Unsubscribe: as the only consumer, as one of two, by force as one of two."""
    produced(endpoint, topic, 2)
    seen: dict[str, Any] = {}
    with Wire(endpoint) as first, Wire(endpoint) as second:
        first.subscribe(topic, "a", SHARED)
        seen["only"] = first.unsubscribe()
        seen["listed"] = endpoint.topic("GET", topic, "/subscriptions").json()
        first.subscribe(topic, "b", SHARED, consumer_id=2)
        second.subscribe(topic, "b", SHARED)
        seen["one of two"] = first.unsubscribe(2)
        seen["by force"] = first.unsubscribe(2, force=True)
        seen["other closed"] = second.consumer_closed()
        seen["finally"] = endpoint.topic("GET", topic, "/subscriptions").json()
    return seen


@probe("G20")
def truncate_with_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Truncate a topic whose consumer has five of 50 messages; what it gets then."""
    produced(endpoint, topic, 50)
    with wire_consumer(endpoint, topic, 5) as wire:
        wire.messages(5, quiet=0.2)
        status = endpoint.topic("DELETE", topic, "/truncate").status_code
        closed = wire.consumer_closed(seconds=1)
        produced(endpoint, topic, 3, 50)
        if closed:
            wire.subscribe(topic)
        wire.flow(100)
        return {"status": status, "closed": closed, "delivered": payloads(wire.messages(3))}


@probe("G20")
def truncate_and_a_new_reader(endpoint: Endpoint, topic: str) -> Any:
    """Truncate a topic of five messages and read it from the earliest."""
    produced(endpoint, topic, 5)
    status = endpoint.topic("DELETE", topic, "/truncate").status_code
    produced(endpoint, topic, 1, 5)
    with wire_consumer(endpoint, topic, 100, "r", durable=False, start_message_id=EARLIEST) as reader:
        return {"status": status, "delivered": payloads(reader.messages(1))}
