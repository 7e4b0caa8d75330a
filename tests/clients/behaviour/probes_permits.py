"""Probes of permits, and of reads of compacted topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.clients.behaviour.endpoint import Endpoint
from tests.clients.behaviour.probes import probe
from tests.clients.behaviour.wire import (
    CPP,
    EARLIEST,
    JAVA,
    SHARED,
    Frame,
    Wire,
    batch,
    outcome,
    plain,
    produced_batches,
    slots,
    wire_consumer,
)


def _consumer(endpoint: Endpoint, topic: str) -> dict[str, Any]:
    """Return the statistics of the only consumer of a topic."""
    for subscription in endpoint.stats(topic)["subscriptions"].values():
        for consumer in subscription["consumers"]:
            return dict(consumer)
    return {}


def _permits(endpoint: Endpoint, topic: str, frames: Sequence[Frame]) -> dict[str, Any]:
    consumer = _consumer(endpoint, topic)
    return {"entries": len(frames)} | {
        name: consumer.get(name) for name in ("availablePermits", "unackedMessages", "msgOutCounter")
    }


@probe("G5")
def permits_of_batches(endpoint: Endpoint, topic: str) -> Any:
    """Deliver batches of ten to a shared consumer that gave 15 permits."""
    produced_batches(endpoint, topic, 4, 10)
    with wire_consumer(endpoint, topic, 15, sub_type=SHARED) as wire:
        return _permits(endpoint, topic, wire.messages(2))


@probe("G5")
def permits_of_partly_acknowledged_batches(endpoint: Endpoint, topic: str) -> Any:
    """Deliver batches of ten again, of which eight messages were acknowledged by index, for 15 permits."""
    ids = produced_batches(endpoint, topic, 4, 10)
    with wire_consumer(endpoint, topic, 100, sub_type=SHARED) as wire:
        wire.messages(4)
        wire.ack([{**id, "batch_index": 0, "batch_size": 10, "ack_set": [0b1100000000]} for id in ids])
        first = _permits(endpoint, topic, [])
    with wire_consumer(endpoint, topic, 15, sub_type=SHARED) as wire:
        frames = wire.messages(2)
        sets = [list(frame.command.message.ack_set) for frame in frames]
        return {"before": first, "again": _permits(endpoint, topic, frames), "ack_sets": sets}


def _compacted(endpoint: Endpoint, topic: str) -> None:
    """Ten batches of ten: of the first nine, two messages of each remain after compaction."""
    with Wire(endpoint) as wire:
        assert outcome(wire.producer(topic)) == "Success"
        for number in range(10):
            keys = [f"k{index}" if index < 8 else f"only{number}-{index}" for index in range(10)]
            wire.publish(batch([f"{number}.{index}" for index in range(10)], number * 10, keys), number * 10, 10)
        for number in range(2):  # what follows the horizon's last batch
            wire.publish(plain("end", 100 + number, key=f"end{number}"), 100 + number)
    assert endpoint.compact(topic) == "SUCCESS"


@probe("G5")
def permits_of_a_compacted_read(endpoint: Endpoint, topic: str) -> Any:
    """Read a compacted topic of batches with dropped slots with a queue of ten; the permits that an entry takes."""
    _compacted(endpoint, topic)
    taken = {}
    for name, version in (("C++", CPP), ("Java", JAVA)):
        with Wire(endpoint, version=version) as wire:
            wire.subscribe(topic, f"r{name}", durable=False, start_message_id=EARLIEST, read_compacted=True)
            wire.flow(10)
            entries = len(wire.messages(1))
            taken[name] = (10 - _consumer(endpoint, topic)["availablePermits"]) / entries
    return taken


@probe("G5")
def compacted_read_with_a_queue_of_ten(endpoint: Endpoint, topic: str) -> Any:
    """Give back a permit for each slot of each entry, as clients do; all entries arrive and the queue stays bounded."""
    _compacted(endpoint, topic)
    with Wire(endpoint, version=CPP) as wire:
        wire.subscribe(topic, "r", durable=False, start_message_id=EARLIEST, read_compacted=True)
        wire.flow(10)
        entries = 0
        while frames := wire.messages(1 if entries < 12 else 0, quiet=0.3):
            entries += len(frames)
            for frame in frames:
                wire.flow(slots(frame))
        return {"entries": entries, "permits": _consumer(endpoint, topic)["availablePermits"]}
