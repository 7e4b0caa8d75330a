"""Probes of dispatch: redelivery, chunks, keys, delays, permits, priorities."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from tests.clients.behaviour.endpoint import Endpoint, settled
from tests.clients.behaviour.probes import probe
from tests.clients.behaviour.wire import (
    EXCLUSIVE,
    FAILOVER,
    KEY_SHARED,
    SHARED,
    Wire,
    batch,
    counts,
    ids_of,
    payloads,
    plain,
    produced,
    spread,
    wire_consumer,
)


@probe("G1")
def redelivery_count_after_16_disconnects(endpoint: Endpoint, topic: str) -> Any:
    """Count redeliveries of messages that 16 consumers in turn received and did not acknowledge."""
    produced(endpoint, topic, 3)
    seen = []
    for _ in range(17):
        with Wire(endpoint) as wire:
            wire.subscribe(topic, sub_type=SHARED)
            wire.flow(10)
            seen.append(sorted(counts(wire.messages(3, quiet=0.05))))
    return {"first": seen[0], "last": seen[-1]}


@probe("G1")
def redelivery_count_after_negative_acknowledgements(endpoint: Endpoint, topic: str) -> Any:
    """Count redeliveries after two requests, then after a disconnect, for another consumer."""
    produced(endpoint, topic, 3)
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        frames = wire.messages(3)
        seen = [counts(frames)]
        for _ in range(2):
            wire.redeliver(ids_of(frames[:2]))
            seen.append(sorted(counts(wire.messages(2))))
    for _ in range(2):
        with Wire(endpoint) as other:
            other.subscribe(topic, sub_type=SHARED)
            other.flow(100)
            seen.append(sorted(counts(other.messages(3))))
    return seen


@probe("G1")
def redelivery_count_after_all_are_asked_again(endpoint: Endpoint, topic: str) -> Any:
    """Count redeliveries after REDELIVER without ids, by type of subscription."""
    produced(endpoint, topic, 3)
    seen = {}
    for name, sub_type in (("exclusive", EXCLUSIVE), ("failover", FAILOVER), ("shared", SHARED)):
        with Wire(endpoint) as wire:
            wire.subscribe(topic, name, sub_type)
            wire.flow(100)
            wire.messages(3)
            wire.redeliver()
            seen[name] = counts(wire.messages(3))
    return seen


@probe("G1")
def redelivery_count_after_unload(endpoint: Endpoint, topic: str) -> Any:
    """Count redeliveries of messages that were asked again once, after the topic was unloaded."""
    produced(endpoint, topic, 3)
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        wire.redeliver(ids_of(wire.messages(3)))
        before = counts(wire.messages(3))
        endpoint.topic("PUT", topic, "/unload")
        closed = wire.consumer_closed()
        wire.subscribe_again(topic, sub_type=SHARED)
        wire.flow(100)
        return {"before": before, "closed": closed, "after": counts(wire.messages(3))}


@probe("G2")
def chunks_of_a_message_go_to_one_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Deliver six messages of three chunks each to two shared consumers; count the messages that are whole."""
    with Wire(endpoint) as first, Wire(endpoint) as second, Wire(endpoint) as sender:
        for number, wire in enumerate((first, second)):
            wire.subscribe(topic, sub_type=SHARED, consumer_name=f"c{number}")
            wire.flow(100)
        sender.producer(topic)
        for number in range(6):
            for chunk in range(3):
                fields = {"uuid": f"u{number}", "chunk_id": chunk, "num_chunks_from_msg": 3, "total_chunk_msg_size": 6}
                sender.publish(plain(f"{number}{chunk}", number, **fields), number, is_chunk=True)
        received = [payloads(frames) for frames in spread((first, second), 18)]
    whole = [
        sum(1 for number in range(6) if {f"{number}{chunk}" for chunk in range(3)} <= set(each)) for each in received
    ]
    return {"entries": sum(map(len, received)), "whole": sum(whole)}


@probe("G2")
def interleaved_chunks(endpoint: Endpoint, topic: str) -> Any:
    """Deliver messages whose chunks two producers interleave to two shared consumers; count the whole ones of each."""
    with Wire(endpoint) as first, Wire(endpoint) as second, Wire(endpoint) as sender:
        for number, wire in enumerate((first, second)):
            wire.subscribe(topic, sub_type=SHARED, consumer_name=f"c{number}")
            wire.flow(100)
        sender.producer(topic, 1)
        sender.producer(topic, 2)
        for chunk in range(3):
            for number in (1, 2):
                fields = {"uuid": f"u{number}", "chunk_id": chunk, "num_chunks_from_msg": 3, "total_chunk_msg_size": 6}
                stored = plain(f"{number}{chunk}", 0, producer_name=f"p{number}", **fields)
                sender.publish(stored, 0, producer_id=number, is_chunk=True)
        received = [payloads(frames) for frames in spread((first, second), 6)]
    whole = [
        sum(1 for number in (1, 2) if {f"{number}{chunk}" for chunk in range(3)} <= set(each)) for each in received
    ]
    return {"entries": sum(map(len, received)), "whole": sum(whole)}


@probe("G2")
def chunks_beyond_the_permits_of_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Deliver a message of four chunks where its consumer has two permits and another one has ten."""
    with Wire(endpoint) as first, Wire(endpoint) as second, Wire(endpoint) as sender:
        first.subscribe(topic, sub_type=SHARED, consumer_name="a")
        first.flow(2)
        sender.producer(topic)
        for chunk in range(4):
            fields = {"uuid": "u", "chunk_id": chunk, "num_chunks_from_msg": 4, "total_chunk_msg_size": 4}
            sender.publish(plain(f"{chunk}", 0, **fields), 0, is_chunk=True)
        begun = payloads(first.messages(2))
        second.subscribe(topic, sub_type=SHARED, consumer_name="b")
        second.flow(10)
        others = payloads(second.messages(0, quiet=2))
        first.flow(10)
        return {"first": begun, "second": others, "first again": payloads(first.messages(2))}


@probe("G14")
def keyless_messages_on_key_shared(endpoint: Endpoint, topic: str) -> Any:
    """Deliver 100 messages without a key to three key-shared consumers; count the consumers that got one."""
    produced(endpoint, topic, 100)
    wires = [Wire(endpoint) for _ in range(3)]
    for number, wire in enumerate(wires):
        wire.subscribe(topic, sub_type=KEY_SHARED, consumer_name=f"c{number}")
    for wire in wires:
        wire.flow(1000)
    shares = [len(frames) for frames in spread(wires, 100)]
    for wire in wires:
        wire.close()
    return {"total": sum(shares), "consumers": sum(1 for share in shares if share > 10)}


@probe("G14")
def keyless_batches_and_producers_on_key_shared(endpoint: Endpoint, topic: str) -> Any:
    """Deliver the same sequence id of one producer twice without a key to three key-shared consumers."""
    wires = [Wire(endpoint) for _ in range(3)]
    with Wire(endpoint) as sender:
        sender.producer(topic)
        for number in range(20):
            for _ in range(2):
                sender.publish(plain(str(number), number), number)
    for number, wire in enumerate(wires):
        wire.subscribe(topic, sub_type=KEY_SHARED, consumer_name=f"c{number}")
    for wire in wires:
        wire.flow(1000)
    shares = [Counter(payloads(frames)) for frames in spread(wires, 40)]
    for wire in wires:
        wire.close()
    together = all(set(share.values()) <= {2} for share in shares)
    return {"same producer and sequence id at one consumer": together}


@probe("G1")
def redelivery_count_after_one_of_two_disconnects(endpoint: Endpoint, topic: str) -> Any:
    """Count redeliveries of messages whose consumer asked for them twice and disconnected, for one that stayed."""
    with Wire(endpoint) as stays, Wire(endpoint) as leaves:
        leaves.subscribe(topic, sub_type=SHARED, consumer_name="a")
        leaves.flow(100)
        stays.subscribe(topic, sub_type=SHARED, consumer_name="b")
        produced(endpoint, topic, 4)
        frames = leaves.messages(4)
        leaves.redeliver(ids_of(frames[:2]))
        again = counts(leaves.messages(2))
        stays.flow(100)
        leaves.close()
        return {"asked again": again, "for the other": sorted(counts(stays.messages(4)))}


def _not_before(deliver_at: int) -> bool:
    """Return whether it is that time, in ms; a broker delivers a tick of a second early at most."""
    return time.time() * 1000 >= deliver_at - 1050


def _delayed(endpoint: Endpoint, topic: str, sub_type: int, milliseconds: int) -> Any:
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=sub_type)
        wire.flow(100)
        sender.producer(topic)
        deliver_at = int(time.time() * 1000) + milliseconds
        sender.publish(plain("delayed", 0, key="a", deliver_at_time=deliver_at))
        sender.publish(plain("at once", 1, key="b"), 1)
        order = payloads(wire.messages(2))
        return {"order": order, "not early": order[0] == "delayed" or _not_before(deliver_at)}


@probe("G22")
def delayed_message_by_type(endpoint: Endpoint, topic: str) -> Any:
    """Publish a message that is to be delivered in 6 s and one without a delay, for each type of subscription."""
    types = {"exclusive": EXCLUSIVE, "failover": FAILOVER, "shared": SHARED, "key-shared": KEY_SHARED}
    return {name: _delayed(endpoint, f"{topic}-{name}", sub_type, 6000) for name, sub_type in types.items()}


@probe("G22")
def delayed_to_the_past(endpoint: Endpoint, topic: str) -> Any:
    """Publish a message that was to be delivered a minute ago."""
    return _delayed(endpoint, topic, SHARED, -60_000)


@probe("G22")
def delayed_and_disconnected(endpoint: Endpoint, topic: str) -> Any:
    """Connect a shared consumer again while a message is delayed; the order of delivery, and the counts."""
    with Wire(endpoint) as sender:
        sender.producer(topic)
        deliver_at = int(time.time() * 1000) + 8000
        sender.publish(plain("delayed", 0, deliver_at_time=deliver_at))
        sender.publish(plain("at once", 1), 1)
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        first = payloads(wire.messages(1, quiet=0.3))
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        frames = wire.messages(1, quiet=0.3)
        early = payloads(frames)
        late = wire.messages(1)
        return {
            "first": first, "second before": early, "second after": payloads(late), "counts": counts(late),
            "not early": _not_before(deliver_at),
        }  # fmt: skip


@probe("G22")
def delayed_over_unload(endpoint: Endpoint, topic: str) -> Any:
    """Unload the topic while a message is delayed for a connected shared consumer that connects again."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=SHARED)
        wire.flow(100)
        sender.producer(topic)
        deliver_at = int(time.time() * 1000) + 10_000
        sender.publish(plain("delayed", 0, deliver_at_time=deliver_at))
        sender.publish(plain("at once", 1), 1)
        first = wire.messages(1)
        wire.ack(ids_of(first))
        endpoint.topic("PUT", topic, "/unload")
        wire.consumer_closed()
        wire.subscribe_again(topic, sub_type=SHARED)
        wire.flow(100)
        then = wire.messages(1)
        return {"first": payloads(first), "then": payloads(then), "not early": _not_before(deliver_at)}


@probe("G22")
def delayed_statistics(endpoint: Endpoint, topic: str) -> Any:
    """Read the statistics of a shared subscription with three delayed messages and one that is delivered."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=SHARED)
        wire.flow(100)
        sender.producer(topic)
        deliver_at = int(time.time() * 1000) + 60_000
        for number in range(3):
            sender.publish(plain(str(number), number, deliver_at_time=deliver_at), number)
        sender.publish(plain("at once", 3), 3)
        wire.messages(1)
        names = ("msgBacklog", "msgDelayed", "unackedMessages", "msgBacklogNoDelayed")
        return {name: endpoint.subscription(topic).get(name) for name in names} | {
            "availablePermits": endpoint.subscription(topic)["consumers"][0]["availablePermits"]
        }


@probe("G22")
def delayed_and_negatively_acknowledged(endpoint: Endpoint, topic: str) -> Any:
    """Ask again for a delivered message whose time is over: it comes at once, with its count."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=SHARED)
        wire.flow(100)
        sender.producer(topic)
        sender.publish(plain("delayed", 0, deliver_at_time=int(time.time() * 1000) + 1500))
        frames = wire.messages(1)
        first = counts(frames)
        wire.redeliver(ids_of(frames))
        return {"first": first, "again": counts(wire.messages(1))}


@probe("G22")
def delayed_and_backlog_order(endpoint: Endpoint, topic: str) -> Any:
    """Deliver messages whose delays end in the reverse order of their ids."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=SHARED)
        wire.flow(100)
        sender.producer(topic)
        now = int(time.time() * 1000)
        for number, delay in enumerate((12_000, 8000, 4000)):
            sender.publish(plain(str(number), number, deliver_at_time=now + delay), number)
        return payloads(wire.messages(3))


@probe("G22")
def delayed_key_shared_order(endpoint: Endpoint, topic: str) -> Any:
    """Deliver a delayed message and a later one of the same key to a key-shared consumer."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=KEY_SHARED)
        wire.flow(100)
        sender.producer(topic)
        sender.publish(plain("delayed", 0, key="a", deliver_at_time=int(time.time() * 1000) + 6000))
        sender.publish(plain("same key", 1, key="a"), 1)
        return payloads(wire.messages(2))


@probe("G22")
def delayed_batch_metadata(endpoint: Endpoint, topic: str) -> Any:
    """Publish a batch whose entry carries a delivery time, for a shared subscription."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=SHARED)
        wire.flow(100)
        sender.producer(topic)
        sender.publish(batch(["0", "1"], 0, deliver_at_time=int(time.time() * 1000) + 6000), 0, 2)
        sender.publish(plain("at once", 2), 2)
        frames = wire.messages(2)
        return [frame.command.message.message_id.entry_id for frame in frames]


@probe("G22")
def delayed_and_cumulative_progress(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge all but the delayed message; where the mark-delete position stands and what the backlog is."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        wire.subscribe(topic, sub_type=SHARED)
        wire.flow(100)
        sender.producer(topic)
        first = sender.publish(plain("0", 0))
        sender.publish(plain("delayed", 1, deliver_at_time=int(time.time() * 1000) + 60_000), 1)
        third = sender.publish(plain("2", 2), 2)
        received = payloads(wire.messages(2))
        wire.ack([first, third])
        backlog = settled(lambda: endpoint.subscription(topic)["msgBacklog"], 1)
        return {
            "received": received,
            "msgBacklog": backlog,
            "permits": endpoint.subscription(topic)["consumers"][0]["availablePermits"],
        }
