"""Probes of acknowledgements and of what statistics count of them."""

from __future__ import annotations

from typing import Any

from tests.clients.behaviour.endpoint import Endpoint, settled
from tests.clients.behaviour.probes import probe
from tests.clients.behaviour.wire import (
    EARLIEST,
    FAILOVER,
    SHARED,
    Wire,
    id_of,
    ids_of,
    outcome,
    payloads,
    produced,
    produced_batches,
    wire_consumer,
)


def _counts(endpoint: Endpoint, topic: str, backlog: int) -> dict[str, Any]:
    """Return what statistics say after the backlog became `backlog`, or did not in time."""
    settled(lambda: endpoint.subscription(topic)["msgBacklog"], backlog)
    plain = endpoint.stats(topic, "getPreciseBacklog=false")["subscriptions"]["s"]
    precise = endpoint.subscription(topic)
    cursor = endpoint.cursor(topic)
    first = cursor["markDeletePosition"].split(":")
    deleted = cursor["individuallyDeletedMessages"]
    return {
        "msgBacklog": plain["msgBacklog"],
        "msgBacklog precise": precise["msgBacklog"],
        "unackedMessages": precise["unackedMessages"],
        "nonContiguousDeletedMessagesRanges": precise["nonContiguousDeletedMessagesRanges"],
        "numberOfEntriesSinceFirstNotAckedMessage": cursor["numberOfEntriesSinceFirstNotAckedMessage"],
        "totalNonContiguousDeletedMessagesRange": cursor["totalNonContiguousDeletedMessagesRange"],
        "messagesConsumedCounter": cursor["messagesConsumedCounter"],
        "individuallyDeletedMessages": deleted.replace(first[0] + ":", "L:"),
        "markDelete entry": int(first[1]),
    }


@probe("G9")
def backlog_after_199_of_200(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge all of 200 messages but the first, one by one."""
    ids = produced(endpoint, topic, 200)
    with wire_consumer(endpoint, topic, 1000, sub_type=SHARED) as wire:
        wire.messages(200, quiet=0.05)
        wire.ack(ids[1:])
        return _counts(endpoint, topic, 1)


@probe("G9")
def backlog_after_every_other(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge every other of ten messages, beginning with the second."""
    ids = produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 1000, sub_type=SHARED) as wire:
        wire.messages(10, quiet=0.05)
        wire.ack(ids[1::2])
        return _counts(endpoint, topic, 5)


@probe("G9")
def backlog_after_batch_indexes(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge, of four batches of ten: five messages of the first by index, all of the second, all of the last."""
    ids = produced_batches(endpoint, topic, 4, 10)
    with wire_consumer(endpoint, topic, 1000, sub_type=SHARED) as wire:
        wire.messages(4, quiet=0.05)
        wire.ack([{**ids[0], "batch_index": 0, "batch_size": 10, "ack_set": [0b1111100000]}, ids[1], ids[3]])
        return _counts(endpoint, topic, 2)


@probe("G9")
def backlog_after_all_indexes_of_a_batch(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge all messages of the first of two batches by index, in two halves."""
    ids = produced_batches(endpoint, topic, 2, 10)
    with wire_consumer(endpoint, topic, 1000, sub_type=SHARED) as wire:
        wire.messages(2, quiet=0.05)
        wire.ack([{**ids[0], "batch_index": 0, "batch_size": 10, "ack_set": [0b1111100000]}])
        half = _counts(endpoint, topic, 2)
        wire.ack([{**ids[0], "batch_index": 5, "batch_size": 10, "ack_set": [0b0000011111]}])
        return {"half": half, "all": _counts(endpoint, topic, 1)}


@probe("G9")
def backlog_without_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge some of ten messages, then disconnect."""
    ids = produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 1000, sub_type=SHARED) as wire:
        wire.messages(10, quiet=0.05)
        wire.ack([ids[0], ids[1], ids[5]])
    return _counts(endpoint, topic, 7)


@probe("G9")
def backlog_after_unload(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge some of ten messages, disconnect and unload the topic."""
    ids = produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 1000, sub_type=SHARED) as wire:
        wire.messages(10, quiet=0.05)
        wire.ack([ids[0], ids[1], ids[5]])
    endpoint.topic("PUT", topic, "/unload")
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        again = payloads(wire.messages(7))
        return _counts(endpoint, topic, 7) | {"delivered": again, "messagesConsumedCounter": None}


@probe("G15")
def nondurable_exclusive_asked_again(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge three of six messages of a non-durable subscription and ask for all again."""
    produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 6, durable=False, start_message_id=EARLIEST) as wire:
        frames = wire.messages(6)
        wire.ack(ids_of(frames[:3]))
        wire.redeliver()
        wire.flow(20)
        return {"first": payloads(frames), "again": payloads(wire.messages(7))}


@probe("G15")
def nondurable_shared_taken_over(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge three of six messages of a non-durable shared subscription and leave it to another consumer."""
    produced(endpoint, topic, 10)
    with Wire(endpoint) as first, Wire(endpoint) as second:
        first.subscribe(topic, sub_type=SHARED, durable=False, start_message_id=EARLIEST, consumer_name="a")
        first.flow(6)
        frames = first.messages(6)
        first.ack(ids_of(frames[:3]))
        joined = outcome(
            second.subscribe(topic, sub_type=SHARED, durable=False, start_message_id=EARLIEST, consumer_name="b")
        )
        first.close()
        second.flow(20)
        return {"joined": joined, "first": payloads(frames), "second": sorted(payloads(second.messages(7)))}


@probe("G15")
def nondurable_failover_taken_over(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge three of six messages of a non-durable failover subscription and leave it to another consumer."""
    produced(endpoint, topic, 10)
    with Wire(endpoint) as first, Wire(endpoint) as second:
        first.subscribe(topic, sub_type=FAILOVER, durable=False, start_message_id=EARLIEST, consumer_name="a")
        first.flow(6)
        frames = first.messages(6)
        first.ack(ids_of(frames[:3]))
        joined = outcome(
            second.subscribe(topic, sub_type=FAILOVER, durable=False, start_message_id=EARLIEST, consumer_name="b")
        )
        first.close()
        second.flow(20)
        return {"joined": joined, "first": payloads(frames), "second": payloads(second.messages(7))}


@probe("G15")
def nondurable_cumulative(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge the first three of six messages cumulatively and ask for all again."""
    produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 6, durable=False, start_message_id=EARLIEST) as wire:
        frames = wire.messages(6)
        wire.ack([id_of(frames[2])], cumulative=True)
        wire.redeliver()
        wire.flow(20)
        return {"first": payloads(frames), "again": payloads(wire.messages(7))}


@probe("G6")
def acknowledged_again(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge messages twice, messages of a former connection, and ids that do not exist."""
    ids = produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        wire.messages(10, quiet=0.05)
        seen = [wire.ack(ids[:3]), wire.ack(ids[:3]), wire.ack([ids[1]])]
    with Wire(endpoint) as wire:
        wire.subscribe(topic, sub_type=SHARED)
        seen += [wire.ack(ids[:5])]
        unknown = [{"ledger_id": 10**6, "entry_id": 0}, {"ledger_id": ids[0]["ledger_id"], "entry_id": 10**6}]
        seen += [wire.ack([each]) for each in unknown]
        wire.flow(100)
        rest = payloads(wire.messages(5))
        return {"outcomes": seen, "rest": rest, "counts": _counts(endpoint, topic, 5)}


@probe("G7")
def acknowledged_cumulatively(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge cumulatively: the fifth of ten, then the third, then all; on an exclusive subscription."""
    ids = produced(endpoint, topic, 10)
    with wire_consumer(endpoint, topic, 100) as wire:
        wire.messages(10, quiet=0.05)
        seen = []
        for index, backlog in ((4, 5), (2, 5), (9, 0)):
            wire.ack([ids[index]], cumulative=True)
            seen.append(_counts(endpoint, topic, backlog))
        return seen


@probe("G7")
def acknowledged_cumulatively_on_shared(endpoint: Endpoint, topic: str) -> Any:
    """Acknowledge cumulatively on a shared subscription."""
    ids = produced(endpoint, topic, 3)
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        wire.messages(3)
        answered = wire.ack([ids[2]], cumulative=True)
        return {"answered": answered, "msgBacklog": endpoint.subscription(topic)["msgBacklog"]}
