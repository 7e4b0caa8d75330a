"""Probes of producers, subscriptions and readers: what they are answered when they connect, seek or are replaced."""

from __future__ import annotations

import time
from typing import Any

from api.pulsar.pulsar_api_pb2 import BaseCommand, ProducerAccessMode, ServerError
from tests.clients.behaviour.endpoint import PROXY, Endpoint, settled
from tests.clients.behaviour.probes import probe
from tests.clients.behaviour.wire import (
    EARLIEST,
    FAILOVER,
    LATEST,
    SHARED,
    Wire,
    batch,
    ids_of,
    outcome,
    payloads,
    plain,
    produced,
)


@probe("G4")
def topic_epoch_over_unload(endpoint: Endpoint, topic: str) -> Any:
    """Fence an exclusive producer with another one, unload the topic, and let both connect with their epochs."""
    exclusive, fencing = ProducerAccessMode.ExclusiveAccess, ProducerAccessMode.ExclusiveWithFencing
    with Wire(endpoint) as first, Wire(endpoint) as second:
        old = first.producer(topic, producer_access_mode=exclusive, producer_name="A").producer_success.topic_epoch
        new = second.producer(topic, producer_access_mode=fencing, producer_name="B").producer_success.topic_epoch
        before = outcome(first.producer(topic, 2, producer_access_mode=exclusive, producer_name="A", topic_epoch=old))
        written = _sent(second, 1)
        endpoint.topic("PUT", topic, "/unload")
        second.wait(BaseCommand.CLOSE_PRODUCER)
    with Wire(endpoint) as first, Wire(endpoint) as second:
        late = outcome(first.producer(topic, producer_access_mode=exclusive, producer_name="A", topic_epoch=old))
        rightful = second.producer(topic, producer_access_mode=exclusive, producer_name="B", topic_epoch=new)
        return {
            "raised": new > old, "before": before, "written": written, "fenced one after unload": late,
            "rightful one after unload": outcome(rightful),
            "its epoch is the same": rightful.producer_success.topic_epoch == new,
        }  # fmt: skip


def _sent(wire: Wire, producer_id: int) -> str:
    """Publish and return the type of the next command that concerns the producer."""
    send = {"producer_id": producer_id, "sequence_id": 0, "num_messages": 1}
    wire.send(plain("x"), type=BaseCommand.SEND, send=send)
    frame = wire.wait(BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR, BaseCommand.CLOSE_PRODUCER, seconds=3)
    return "nothing" if frame is None else BaseCommand.Type.Name(frame.command.type)


@probe("G4")
def fenced_producer(endpoint: Endpoint, topic: str) -> Any:
    """Fence an exclusive producer with another one; what its connection gets, at once and when it publishes."""
    exclusive, fencing = ProducerAccessMode.ExclusiveAccess, ProducerAccessMode.ExclusiveWithFencing
    with Wire(endpoint) as first, Wire(endpoint) as second:
        first.producer(topic, producer_access_mode=exclusive)
        second.producer(topic, producer_access_mode=fencing)
        closed = first.wait(BaseCommand.CLOSE_PRODUCER) is not None
        return {"closed": closed, "publishes": _sent(first, 1), "connection closed": first.closed}


@probe("G4")
def exclusive_producers(endpoint: Endpoint, topic: str) -> Any:
    """Connect producers of each access mode to a topic with an exclusive one."""
    modes = ProducerAccessMode
    with Wire(endpoint) as first, Wire(endpoint) as second:
        epoch = first.producer(topic, producer_access_mode=modes.ExclusiveAccess).producer_success.topic_epoch
        seen = {"exclusive": outcome(second.producer(topic, 1, producer_access_mode=modes.ExclusiveAccess))}
        seen["shared"] = outcome(second.producer(topic, 2))
        waiting = second.producer(topic, 3, producer_access_mode=modes.WaitForExclusive)
        seen["waiting is ready"] = waiting.producer_success.producer_ready
        first.send(type=BaseCommand.CLOSE_PRODUCER, close_producer={"producer_id": 1, "request_id": 99})
        first.answer(BaseCommand.SUCCESS)
        ready = second.answer(BaseCommand.PRODUCER_SUCCESS).producer_success
        return {**seen, "then": ready.producer_ready, "its epoch is higher": ready.topic_epoch > epoch}


@probe("G16")
def initial_subscription_of_a_producer(endpoint: Endpoint, topic: str) -> Any:
    """Create a producer with an initial subscription on a topic with five messages; what the subscription delivers."""
    produced(endpoint, topic, 5)
    with Wire(endpoint) as wire:
        created = outcome(wire.producer(topic, initial_subscription_name="init"))
        wire.subscribe(topic, "init", SHARED)
        wire.flow(10)
        return {"created": created, "delivered": payloads(wire.messages(5))}


@probe("G16")
def partition_name_without_a_partitioned_topic(endpoint: Endpoint, topic: str) -> Any:
    """Use the name of a partition of which no partitioned topic exists, or which is past the last partition."""
    name = f"{topic}-partition-0"
    seen: dict[str, Any] = {}
    with Wire(endpoint) as wire:
        seen["producer"] = outcome(wire.producer(name))
        seen["consumer"] = outcome(wire.subscribe(name))
        seen["metadata"] = wire.partitions(name)
        seen["PUT"] = endpoint.topic("PUT", name).status_code
        seen["stats"] = endpoint.topic("GET", name, "/stats").status_code
        seen["partitions PUT"] = endpoint.topic("PUT", f"{topic}-p", "/partitions", 2).status_code
        seen["third of two"] = outcome(wire.producer(f"{topic}-p-partition-2", 2))
        seen["second of two"] = outcome(wire.producer(f"{topic}-p-partition-1", 3))
        seen["PUT of the third"] = endpoint.topic("PUT", f"{topic}-p-partition-2").status_code
        seen["PUT of the second"] = endpoint.topic("PUT", f"{topic}-p-partition-1").status_code
        return seen


def _partition(endpoint: Endpoint, topic: str) -> str:
    """Return the only partition of a new topic: its active failover consumer is the first by name."""
    assert endpoint.topic("PUT", topic, "/partitions", 1).status_code == 204
    return f"{topic}-partition-0"


@probe("G16", "S8")
def active_consumer_name(endpoint: Endpoint, topic: str) -> Any:
    """Read the name of the active consumer of an exclusive, a failover and a shared subscription."""
    topic = _partition(endpoint, topic)
    with Wire(endpoint) as wire:
        wire.subscribe(topic, "exclusive", consumer_id=1, consumer_name="e")
        wire.subscribe(topic, "failover", FAILOVER, consumer_id=2, consumer_name="b")
        wire.subscribe(topic, "failover", FAILOVER, consumer_id=3, consumer_name="a")
        wire.subscribe(topic, "shared", SHARED, consumer_id=4, consumer_name="s")
        wire.active_changes(1, consumer_id=3)
        subscriptions = endpoint.stats(topic)["subscriptions"]
        return {name: each.get("activeConsumerName") for name, each in sorted(subscriptions.items())}


@probe("G16")
def failover_notifications(endpoint: Endpoint, topic: str) -> Any:
    """Collect what each failover consumer is notified of while others join and leave."""
    topic = _partition(endpoint, topic)
    with Wire(endpoint) as first, Wire(endpoint) as second, Wire(endpoint) as third:
        seen: dict[str, Any] = {}
        first.subscribe(topic, sub_type=FAILOVER, consumer_name="b")
        seen["b alone"] = first.active_changes(1)
        second.subscribe(topic, sub_type=FAILOVER, consumer_name="a")
        seen["b when a joined"] = first.active_changes(1)
        seen["a when it joined"] = second.active_changes(1)
        third.subscribe(topic, sub_type=FAILOVER, consumer_name="z")
        seen["when z joined"] = [wire.active_changes(0) for wire in (first, second)] + [third.active_changes(1)]
        second.close()
        seen["b when a left"] = first.active_changes(1)
        seen["z when a left"] = third.active_changes(0)
        return seen


@probe("G16")
def failover_priorities(endpoint: Endpoint, topic: str) -> Any:
    """Join failover consumers of different priorities; the active one by name."""
    topic = _partition(endpoint, topic)
    with Wire(endpoint) as wire:
        seen = []
        for number, (name, priority) in enumerate((("a", 2), ("b", 1), ("c", 1), ("z", 0))):
            wire.subscribe(topic, sub_type=FAILOVER, consumer_id=number, consumer_name=name, priority_level=priority)
            active = {0: "a", 1: "b", 2: "b", 3: "z"}[number]
            seen.append(settled(lambda: endpoint.subscription(topic).get("activeConsumerName"), active))
        return seen


@probe("G24")
def partition_metadata_of_what_is_missing(endpoint: Endpoint, topic: str) -> Any:
    """Ask for the partitions of missing topics and namespaces, with and without automatic creation."""
    with Wire(endpoint) as wire:
        seen: dict[str, Any] = {}
        for flag in (True, False):
            own = f"{topic}-{flag}".lower()
            seen[f"topic, {flag}"] = wire.partitions(own, metadata_auto_creation_enabled=flag)
            seen[f"topic listed, {flag}"] = own in endpoint.ask("GET", "/admin/v2/persistent/public/default").json()
            for name in ("public/nowhere", "missing/nowhere"):
                answer = wire.partitions(f"persistent://{name}/x", metadata_auto_creation_enabled=flag)
                seen[f"{name}, {flag}"] = answer
        seen["lookup in a missing namespace"] = _lookup(wire, "persistent://public/nowhere/x")
        return seen


def _lookup(wire: Wire, topic: str) -> str:
    answer = wire.lookup(topic)
    response = answer.lookup_topic_response
    name = type(response).LookupType.Name(response.response)
    return f"{name} {ServerError.Name(response.error)}" if response.HasField("error") else name


def _outcome_of_producer(wire: Wire, topic: str) -> str:
    wire.send(type=BaseCommand.PRODUCER, producer={"topic": topic, "producer_id": 77, "request_id": 7777})
    return outcome(wire.answer(BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR))


@probe("G24")
def subscription_without_topic_creation(endpoint: Endpoint, topic: str) -> Any:
    """Subscribe to a missing topic without force_topic_creation."""
    with Wire(endpoint) as wire:
        return outcome(wire.subscribe(topic, force_topic_creation=False))


@probe("G16")
def shared_priorities(endpoint: Endpoint, topic: str) -> Any:
    """Deliver 30 messages to a shared consumer of the first priority with eight permits and one of the second."""
    with Wire(endpoint) as low, Wire(endpoint) as high:
        low.subscribe(topic, sub_type=SHARED, consumer_name="low", priority_level=1)
        high.subscribe(topic, sub_type=SHARED, consumer_name="high", priority_level=0)
        high.flow(8)
        low.flow(100)
        settled(lambda: sum(each["availablePermits"] for each in endpoint.subscription(topic)["consumers"]), 108)
        produced(endpoint, topic, 30)
        return {"high": payloads(high.messages(8)), "low": payloads(low.messages(22))}


@probe("G1")
def consumer_epoch_of_messages(endpoint: Endpoint, topic: str) -> Any:
    """Read the consumer epoch of messages before and after REDELIVER with an epoch, by type."""
    produced(endpoint, topic, 3)
    seen = {}
    for name, sub_type in (("exclusive", 0), ("failover", FAILOVER), ("shared", SHARED)):
        with Wire(endpoint) as wire:
            wire.subscribe(topic, name, sub_type, consumer_epoch=3)
            wire.flow(100)
            before = _epochs(wire.messages(3))
            wire.redeliver(consumer_epoch=7)
            after = _epochs(wire.messages(3))
            wire.redeliver(consumer_epoch=5)
            seen[name] = [before, after, _epochs(wire.messages(0, quiet=1.5))]
    return seen


def _epochs(frames: Any) -> list[int | None]:
    messages = [frame.command.message for frame in frames]
    return [each.consumer_epoch if each.HasField("consumer_epoch") else None for each in messages]


def _last(wire: Wire, ids: list[Any]) -> Any:
    """The answer to GET_LAST_MESSAGE_ID, positions as indexes in `ids`."""
    answer = wire.last_message_id()
    if answer.type == BaseCommand.ERROR:
        return outcome(answer)
    response = answer.get_last_message_id_response
    last, mark = response.last_message_id, response.consumer_mark_delete_position
    return {
        "last": _index(last, ids), "batch index": last.batch_index,
        "mark-delete": _index(mark, ids) if response.HasField("consumer_mark_delete_position") else None,
    }  # fmt: skip


def _index(position: Any, ids: list[Any]) -> Any:
    """The index of a position in `ids`; as numbers where it has no ledger."""
    signed = [value - 2**64 if value >= 2**63 else value for value in (position.ledger_id, position.entry_id)]
    same = [index for index, each in enumerate(ids) if [each["ledger_id"], each["entry_id"]] == signed]
    if same:
        return same[0]
    return "before the first" if signed[0] >= 0 and signed[1] == -1 else signed if signed[0] < 0 else "elsewhere"


@probe("S3")
def last_message_id_of_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Ask for the last id of a durable consumer: of an empty topic, with messages, after acknowledgements."""
    with Wire(endpoint) as wire, Wire(endpoint) as sender:
        sender.producer(topic)
        wire.subscribe(topic)
        seen: dict[str, Any] = {"empty": _last(wire, [])}
        ids = [sender.publish(plain("0", 0))]
        seen["one message"] = _last(wire, ids)
        ids.append(sender.publish(batch(["1", "2", "3"], 1), 1, 3))
        seen["a batch"] = _last(wire, ids)
        wire.flow(10)
        wire.ack(ids_of(wire.messages(2)[:1]))
        seen["first acknowledged"] = settled(lambda: _last(wire, ids), {"last": 1, "batch index": 2, "mark-delete": 0})
        wire.ack(ids[1:])
        seen["all acknowledged"] = settled(lambda: _last(wire, ids), {"last": 1, "batch index": 2, "mark-delete": 1})
        return seen


@probe("S3")
def last_message_id_of_readers(endpoint: Endpoint, topic: str) -> Any:
    """Ask for the last id as readers at the earliest, the latest, at an id, and after seeks."""
    ids = produced(endpoint, topic, 5)
    seen: dict[str, Any] = {}
    starts = {"earliest": EARLIEST, "latest": LATEST, "third": ids[2], "last": ids[4]}
    with Wire(endpoint) as wire:
        for number, (name, start) in enumerate(starts.items()):
            wire.subscribe(topic, f"r{number}", durable=False, start_message_id=start, consumer_id=1)
            seen[name] = _last(wire, ids)
            wire.close_consumer()
        now = int(time.time() * 1000)
        seeks: dict[str, Any] = {
            "now": {"message_publish_time": now + 60_000}, "time 0": {"message_publish_time": 0},
            "third": {"message_id": ids[2]}, "latest": {"message_id": LATEST}, "earliest": {"message_id": EARLIEST},
        }  # fmt: skip
        for number, (name, fields) in enumerate(seeks.items()):
            wire.subscribe(topic, f"s{number}", durable=False, start_message_id=EARLIEST, consumer_id=1)
            sought = wire.seek(**fields)
            closed = wire.consumer_closed(1)
            wire.subscribe_again(topic, f"s{number}", durable=False, start_message_id=EARLIEST, consumer_id=1)
            seen[f"seek {name}"] = {"sought": sought, "closed": closed, "id": _last(wire, ids)}
            wire.close_consumer()
    return seen


@probe("S3")
def reader_at_the_end_and_a_new_message(endpoint: Endpoint, topic: str) -> Any:
    """Begin at the latest and at the last message; what is delivered before and after one more message."""
    ids = produced(endpoint, topic, 3)
    seen: dict[str, Any] = {}
    with Wire(endpoint) as latest, Wire(endpoint) as inclusive:
        latest.subscribe(topic, "a", durable=False, start_message_id=LATEST)
        inclusive.subscribe(topic, "b", durable=False, start_message_id=ids[2])
        seen["before"] = [_last(latest, ids), _last(inclusive, ids)]
        ids += produced(endpoint, topic, 1, 3)
        seen["after"] = [_last(latest, ids), _last(inclusive, ids)]
        for name, wire in (("latest", latest), ("last", inclusive)):
            wire.flow(10)
            seen[name] = payloads(wire.messages(1))
        return seen


@probe("S3")
def last_message_id_of_an_empty_topic(endpoint: Endpoint, topic: str) -> Any:
    """Ask for the last id of a reader of a topic without messages, at the earliest and the latest."""
    seen = []
    with Wire(endpoint) as wire:
        for number, start in enumerate((EARLIEST, LATEST)):
            wire.subscribe(topic, f"r{number}", durable=False, start_message_id=start)
            seen.append(_last(wire, []))
            wire.close_consumer()
    return seen


@probe("S3")
def seeks_of_a_consumer(endpoint: Endpoint, topic: str) -> Any:
    """Seek an exclusive durable consumer that has read three of ten messages; what it gets when it is back."""
    ids = produced(endpoint, topic, 10)
    ledger = ids[0]["ledger_id"]
    places: dict[str, Any] = {
        "earliest": {"message_id": EARLIEST}, "latest": {"message_id": LATEST}, "fifth": {"message_id": ids[4]},
        "a later ledger": {"message_id": {"ledger_id": ledger + 10**6, "entry_id": 0}},
        "past the last": {"message_id": {"ledger_id": ledger, "entry_id": 500}},
        "time 0": {"message_publish_time": 0},
        "in an hour": {"message_publish_time": int(time.time() * 1000) + 3_600_000},
    }  # fmt: skip
    expected = {"earliest": 10, "fifth": 6, "time 0": 10}
    seen = {}
    for name, fields in places.items():
        own = name.replace(" ", "-")
        with Wire(endpoint) as wire:
            wire.subscribe(topic, own)
            wire.flow(3)
            wire.messages(3, quiet=0.1)
            sought = wire.seek(**fields)
            closed = wire.consumer_closed(1)
        with Wire(endpoint) as wire:
            wire.subscribe_again(topic, own)
            wire.flow(20)
            seen[name] = {
                "sought": sought,
                "closed": closed,
                "delivered": payloads(wire.messages(expected.get(name, 0))),
            }
    return seen


@probe("G13")
def original_principal(endpoint: Endpoint, topic: str) -> Any:
    """Connect as a proxy: with the principal of a client without rights, of a superuser, and without one."""
    seen: dict[str, Any] = {}
    for name, role, fields in (
        ("client without rights", "stranger", {}),
        ("proxy for a client without rights", PROXY, {"original_principal": "stranger"}),
        ("proxy for a superuser", PROXY, {"original_principal": "admin"}),
        ("proxy without a principal", PROXY, {}),
        ("superuser with another's principal", "admin", {"original_principal": "stranger"}),
    ):
        with Wire(endpoint, role, **fields) as wire:
            connected = outcome(wire.connected)
            seen[name] = (
                [connected]
                if connected != "Success"
                else [connected, _lookup(wire, topic), _outcome_of_producer(wire, topic)]
            )
    return seen
