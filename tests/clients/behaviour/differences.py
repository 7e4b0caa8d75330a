"""Probes that this service answers otherwise than a broker, on purpose.

`DIFFERENT` has what this service answers, so that such an answer is as fixed as any other; docs/clients.md gives the
same reasons ("Where it differs from a broker").
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Difference:
    """`reason`: a sentence of docs/clients.md. `answers`: by place in the broker's answer, this service's answer."""

    reason: str
    answers: Mapping[Path, Any]

    def applied(self, recorded: Any) -> Any:
        """Return the broker's answer with this service's in place."""
        answer = {"": copy.deepcopy(recorded)}
        for path, value in self.answers.items():
            part: Any = answer
            *parents, last = ("", *path)
            for key in parents:
                part = part[key]
            part[last] = value
        return answer[""]


_BEFORE_THE_FIRST = (
    "The mark-delete position of a topic that never had a message is -1:-1; a broker names its first ledger and"
    " entry -1."
)
_NO_RANGES = (
    "`individuallyDeletedMessages` stays empty, since acknowledgements are kept as offsets;"
    " `totalNonContiguousDeletedMessagesRange` counts the ranges."
)
_MESSAGES = (
    "Backlogs and `messagesConsumedCounter` count messages, a broker entries; a batch that is acknowledged in part"
    " moves the mark-delete position to its entry."
)

DIFFERENT: dict[str, Difference] = {
    "fenced_producer": Difference(
        "An exclusive producer that another one fences is closed at once; a broker ends its connection when it"
        " publishes next.",
        {("closed",): True, ("connection closed",): False},
    ),
    "acknowledged_cumulatively_on_shared": Difference(
        "A cumulative acknowledgement of a shared subscription is answered with an error; a broker answers with success"
        " and does nothing.",
        {("answered",): "NotAllowedError"},
    ),
    "truncate_and_a_new_reader": Difference(
        "Truncating deletes every message; a broker keeps those of its open ledger for new readers.",
        {("delivered",): ["5"]},
    ),
    "namespace_with_policies": Difference(
        "A namespace with policies that cannot be set here is refused with their names; a broker sets them.",
        {("roles",): 412, ("producers",): 412, ("encryption",): 412},
    ),
    "lookup_with_an_unknown_listener": Difference(
        "A lookup by HTTP ignores `listenerName`, since a service has one address; a broker answers 500 for one that it"
        " does not know.",
        {(): 200},
    ),
    "removed_by_a_compaction": Difference(
        "`lastCompactionRemovedEventCount` counts a tombstone and the value that it removes as two; a broker as one.",
        {("removed",): 4},
    ),
    "commands_for_what_does_not_exist": Difference(
        "A command for a consumer that does not exist is answered with `ConsumerNotFound`; a broker answers"
        " `MetadataError`.",
        dict.fromkeys([("unsubscribe",), ("seek",), ("last message id",)], "ConsumerNotFound"),
    ),
    "active_consumer_without_partitions": Difference(
        "The active consumer of a failover subscription is the first by priority and name, counted on by the number of"
        " the partition; a broker takes a hash of the topic's name where the topic is no partition.",
        {(): ["a"] * 6},
    ),
    "subscription_with_a_rollback": Difference(
        "The rollback duration of a durable subscription places a new cursor; a broker moves the cursor back at each"
        " connection.",
        {("durable again",): []},
    ),
    "protobuf_schemas": Difference(
        "PROTOBUF and KEY_VALUE of PROTOBUF are compared as Avro; a broker with its default checkers accepts any"
        " PROTOBUF.",
        {("required field",): "IncompatibleSchema"},
    ),
    "permits_of_a_compacted_read": Difference(
        "A compacted read uses the permits that the client returns: those of all slots for clients of C++, of live ones"
        " for Java; a broker, which sends no set, uses those of all slots.",
        {("Java",): 2.0},
    ),
    "permits_of_partly_acknowledged_batches": Difference(
        "`msgOutCounter` counts delivered messages; a broker counts acknowledged messages of a batch again.",
        {("again", "msgOutCounter"): 8},
    ),
    "last_message_id_of_a_consumer": Difference(_BEFORE_THE_FIRST, {("empty", "mark-delete"): [-1, -1]}),
    "last_message_id_of_an_empty_topic": Difference(
        _BEFORE_THE_FIRST, {(number, "mark-delete"): [-1, -1] for number in range(2)}
    ),
    "backlog_after_199_of_200": Difference(_NO_RANGES, {("individuallyDeletedMessages",): "[]"}),
    "backlog_after_every_other": Difference(_NO_RANGES, {("individuallyDeletedMessages",): "[]"}),
    "backlog_without_a_consumer": Difference(_NO_RANGES, {("individuallyDeletedMessages",): "[]"}),
    "backlog_after_unload": Difference(_NO_RANGES, {("individuallyDeletedMessages",): "[]"}),
    "backlog_after_batch_indexes": Difference(
        _MESSAGES,
        {
            ("msgBacklog",): 15,
            ("msgBacklog precise",): 15,
            ("numberOfEntriesSinceFirstNotAckedMessage",): 36,
            ("messagesConsumedCounter",): 25,
            ("individuallyDeletedMessages",): "[]",
            ("markDelete entry",): 0,
        },
    ),
    "backlog_after_all_indexes_of_a_batch": Difference(
        _MESSAGES,
        {
            ("half", "msgBacklog"): 15,
            ("half", "msgBacklog precise"): 15,
            ("half", "numberOfEntriesSinceFirstNotAckedMessage"): 16,
            ("half", "messagesConsumedCounter"): 5,
            ("half", "markDelete entry"): 0,
            ("all", "msgBacklog"): 10,
            ("all", "msgBacklog precise"): 10,
            ("all", "numberOfEntriesSinceFirstNotAckedMessage"): 11,
            ("all", "messagesConsumedCounter"): 10,
        },
    ),
    "acknowledged_cumulatively": Difference(
        "`unackedMessages` counts for every type of subscription; a broker counts for shared and key-shared ones only.",
        {(0, "unackedMessages"): 5, (1, "unackedMessages"): 5},
    ),
}
