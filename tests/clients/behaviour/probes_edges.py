"""Probes at the edges: ids that were not delivered, names in use, commands for what does not exist."""

from __future__ import annotations

import time
from typing import Any

from api.pulsar.pulsar_api_pb2 import BaseCommand
from tests.clients.behaviour.endpoint import Endpoint, settled
from tests.clients.behaviour.probes import probe
from tests.clients.behaviour.wire import (
    EARLIEST,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Wire,
    batch,
    ids_of,
    outcome,
    payload,
    payloads,
    plain,
    produced,
    wire_consumer,
)


@probe("G6")
def acknowledged_before_it_is_delivered(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge the fifth of five messages when two were delivered; what is delivered then, and the backlog."""
    ids = produced(endpoint, topic, 5)
    with wire_consumer(endpoint, topic, 2, sub_type=SHARED) as wire:
        wire.messages(2)
        acknowledged = wire.ack([ids[4]])
        wire.flow(10)
        delivered = payloads(wire.messages(2))
        backlog = settled(lambda: endpoint.subscription(topic)["msgBacklog"], 4)
        return {"acknowledged": acknowledged, "delivered": delivered, "msgBacklog": backlog}


@probe("G7")
def acknowledged_cumulatively_ahead(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge cumulatively past what was delivered, then past the end, then publish one more message."""
    ids = produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 3) as wire:
        wire.messages(3)
        wire.ack([ids[7]], cumulative=True)
        backlog = settled(lambda: endpoint.subscription(topic)["msgBacklog"], 2)
        wire.flow(100)
        ahead = payloads(wire.messages(2))
        wire.ack([{**ids[0], "entry_id": ids[9]["entry_id"] + 500}], cumulative=True)
        produced(endpoint, topic, 1, 10)
        return {"msgBacklog": backlog, "after the eighth": ahead, "past the end": payloads(wire.messages(1))}


@probe("G9")
def acknowledgements_outlive_the_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge some of ten messages without waiting for a receipt, and close the connection."""
    ids = produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        wire.messages(10, quiet=0.1)
        wire.send(type=BaseCommand.ACK, ack={"consumer_id": 1, "ack_type": 0, "message_id": ids[1:6:2]})
        wire.close_consumer()
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        return payloads(wire.messages(7))


@probe("S3")
def seek_into_a_batch(endpoint: Endpoint, topic: str) -> Any:
    """Seek to the third message of a batch of four, behind which one more message lies."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        sender.producer(topic)
        first = sender.publish(batch(["0", "1", "2", "3"]), 0, 4)
        sender.publish(plain("4", 4), 4)
        wire.subscribe(topic)
        wire.flow(10)
        wire.ack(ids_of(wire.messages(2)))
        sought = wire.seek(message_id={**first, "batch_index": 2, "ack_set": [0b1100], "batch_size": 4})
        wire.consumer_closed()
        wire.subscribe_again(topic)
        wire.flow(10)
        frames = wire.messages(2)
        messages = [frame.command.message for frame in frames]
        return {"sought": sought, "delivered": [[each.message_id.entry_id, list(each.ack_set)] for each in messages]}


@probe("G16")
def names_in_use(endpoint: Endpoint, topic: str) -> Any:
    """Connect producers and consumers with names and types that are taken."""
    produced(endpoint, topic, 3)
    seen: dict[str, Any] = {}
    with Wire(endpoint) as first, Wire(endpoint) as second:
        named = {"producer_name": "same", "user_provided_producer_name": True}
        seen["producers"] = [outcome(first.producer(topic, **named)), outcome(second.producer(topic, **named))]
        first.subscribe(topic, "exclusive", consumer_id=1)
        first.subscribe(topic, "shared", SHARED, consumer_id=2)
        first.subscribe(topic, "reader", durable=False, start_message_id=EARLIEST, consumer_id=3)
        first.subscribe(topic, "failover", FAILOVER, consumer_id=4)
        for name in ("exclusive", "shared", "failover"):
            types = {"exclusive": 0, "shared": SHARED, "failover": FAILOVER, "key-shared": KEY_SHARED}
            seen[name] = {
                other: outcome(second.subscribe(topic, name, sub_type, consumer_id=10 + number))
                for number, (other, sub_type) in enumerate(types.items())
                if other != name or name == "exclusive"
            }
        reader = {"durable": False, "start_message_id": EARLIEST}
        seen["second reader"] = outcome(second.subscribe(topic, "reader", consumer_id=30, **reader))
        seen["durable on a reader's"] = outcome(second.subscribe(topic, "reader", SHARED, consumer_id=31))
        seen["reader on a durable's"] = outcome(second.subscribe(topic, "exclusive", consumer_id=32, **reader))
        return seen


@probe("G17")
def commands_for_what_does_not_exist(endpoint: Endpoint, topic: str) -> Any:
    """Send commands for consumers and producers that do not exist; the outcomes, and that the connection lives."""
    with Wire(endpoint) as wire:
        wire.producer(topic)
        wire.flow(5, 77)
        wire.send(type=BaseCommand.ACK, ack={"consumer_id": 77, "ack_type": 0, "message_id": [EARLIEST]})
        wire.redeliver(consumer_id=77)
        seen = {
            "close consumer": wire.close_consumer(77),
            "unsubscribe": wire.unsubscribe(77),
            "seek": wire.seek(77, message_publish_time=1),
            "last message id": outcome(wire.last_message_id(77)),
        }
        wire.send(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": 77, "request_id": 999})
        seen["close producer"] = outcome(wire.answer(BaseCommand.SUCCESS, BaseCommand.ERROR))
        seen["subscribe"] = outcome(wire.subscribe(topic))
        return seen


@probe("G16")
def properties_of_a_subscription(endpoint: Endpoint, topic: str) -> Any:
    """Subscribe with properties, then again with others."""
    with Wire(endpoint) as wire:
        wire.subscribe(topic, subscription_properties=[{"key": "a", "value": "1"}])
        wire.close_consumer()
        wire.subscribe(topic, subscription_properties=[{"key": "b", "value": "2"}])
        return endpoint.subscription(topic)["subscriptionProperties"]


@probe("G16")
def subscription_with_a_rollback(endpoint: Endpoint, topic: str) -> Any:
    """Begin with a rollback of an hour at a topic of five messages, of which two are two hours old."""
    with Wire(endpoint) as wire, Wire(endpoint) as reader, Wire(endpoint) as sender:
        sender.producer(topic)
        for number in range(5):
            age = 7_200_000 if number < 2 else 0
            publish_time = int(time.time() * 1000) - age
            sender.publish(plain(str(number), number, publish_time=publish_time), number)
        back = {"start_message_rollback_duration_sec": 3600}
        reader.subscribe(topic, "r", durable=False, start_message_id=EARLIEST, **back)
        wire.subscribe(topic, initial_position=0, **back)
        reader.flow(10)
        wire.flow(10)
        frames = wire.messages(0, quiet=1.5)
        seen = {"reader": payloads(reader.messages(3)), "durable": payloads(frames)}
        if frames:
            wire.ack(ids_of(frames))
        wire.close_consumer()
        wire.subscribe(topic, initial_position=0, **back)
        wire.flow(10)
        return {**seen, "durable again": payloads(wire.messages(0, quiet=1.5))}


@probe("G16")
def sticky_ranges(endpoint: Endpoint, topic: str) -> Any:
    """Subscribe key-shared with sticky ranges that leave a gap, overlap, and close the gap."""

    def ranged(start: int, end: int) -> dict[str, Any]:
        return {"key_shared_meta": {"mode": 1, "hash_ranges": [{"start": start, "end": end}]}}

    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        sender.producer(topic)
        for number in range(60):
            sender.publish(plain(str(number), number, key=f"k{number}"), number)
        seen = [outcome(wire.subscribe(topic, sub_type=KEY_SHARED, consumer_id=1, **ranged(0, 32767)))]
        seen.append(outcome(wire.subscribe(topic, sub_type=KEY_SHARED, consumer_id=2, **ranged(30000, 40000))))
        seen.append(outcome(wire.subscribe(topic, sub_type=KEY_SHARED, consumer_id=3, **ranged(32768, 65535))))
        for consumer_id in (1, 3):
            wire.flow(100, consumer_id)
        shares: dict[int, list[int]] = {1: [], 3: []}
        for frame in wire.messages(60):
            shares[frame.command.message.consumer_id].append(int(payload(frame)))
        return {"outcomes": seen, "shares": [sorted(share) for share in shares.values()]}


@probe("G3")
def delete_a_topic_with_clients(endpoint: Endpoint, topic: str) -> Any:
    """Delete a topic with a producer and a consumer: without force, with it; who is disconnected, what is left."""
    produced(endpoint, topic, 5)
    with Wire(endpoint) as wire:
        wire.producer(topic)
        wire.subscribe(topic)
        wire.flow(2)
        wire.messages(2, quiet=0.1)
        refused = endpoint.topic("DELETE", topic).status_code
        forced = endpoint.topic("DELETE", topic + "?force=true").status_code
        seen = {
            "without force": refused, "with force": forced, "consumer closed": wire.consumer_closed(),
            "producer closed": wire.wait(BaseCommand.CLOSE_PRODUCER) is not None,
        }  # fmt: skip
        produced(endpoint, topic, 1, 9)
        wire.subscribe(topic)
        wire.flow(10)
        return {**seen, "afterwards": payloads(wire.messages(1))}


@probe("G16")
def active_consumer_without_partitions(endpoint: Endpoint, topic: str) -> Any:
    """Join failover consumers a and b to topics that are no partitions, of names that stay; the active ones."""
    active = []
    with Wire(endpoint) as wire:
        for number in range(6):
            own = f"persistent://public/default/failover-{number}"
            for consumer_id, name in enumerate("ab"):
                wire.subscribe(own, sub_type=FAILOVER, consumer_id=consumer_id, consumer_name=name)
            wire.active_changes(1, consumer_id=0)
            wire.active_changes(1, consumer_id=1)
            active.append(endpoint.subscription(own).get("activeConsumerName"))
            wire.close_consumer(0)
            wire.close_consumer(1)
    return active
