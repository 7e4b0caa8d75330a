"""Refusals of operations, as errors: each door words them in its own protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.advice import Advice, AdviceKind
from storage.errors import Conflict, InvalidInput, NotFound, TopicNotFound, Unavailable
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.model import TopicName
from storage.options.policies import HOLD
from storage.owner import Owner

if TYPE_CHECKING:
    from compactor.maintenance.backlog_limits import ExceededQuota


class ConsumerBusy(Conflict):
    """A consumer may not join a subscription, which is exclusive, of another type, or full."""


class SubscriptionHasConsumers(Conflict):
    """Consumers are connected to a subscription that is to be deleted."""


class IncompatibleKeySharedConsumer(InvalidInput):
    """A key-shared consumer asks for another mode than its subscription has, or for hash ranges that overlap."""


class PoolBusy(Unavailable):
    """A pool of threads refuses a call, or the call has not ended within its deadline. The pool has logged this.

    `kind`: the reason: deadline, stuck (no thread makes progress), queue (it is full) or threads (none can be started).
    `resource`: the resource that the pool's threads block on.
    """

    def __init__(self, message: str, kind: str, resource: str) -> None:
        super().__init__(message, "try again", is_public=True)
        self.kind = kind
        self.resource = resource


class WriterElsewhere(Unavailable):
    """A process that is no service, such as a command that produces, writes the topic."""

    def __init__(self, topic: TopicName, owner: str, remaining_ms: int) -> None:
        """`owner`: the process that owns the topic's lease; `remaining_ms`: until the lease expires."""
        process = Owner.parse(owner)
        name = "it" if process is None else f"the process {process.pid} on {process.host}"
        super().__init__(
            f"{owner} is writing to {topic}, and is no live service but a command that produces, an import or a "
            "service that died, which keeps the topic for as long as it runs",
            f"end {name}, or write through it; if it has ended, try again",
            is_public=True,
        )
        self.retry_after_seconds = max(1, -(-remaining_ms // 1000))


class NoLogOwner(Unavailable):
    """Unsealed messages of a topic are in a log directory that no live service uses."""

    retry_after_seconds = 5

    def __init__(self, topic: TopicName, log_uid: str) -> None:
        super().__init__(
            f"messages of {topic} are in the log directory {log_uid}, which no living service has",
            "start one on the machine where it is",
            is_public=True,
        )


class NotTheOwner(Exception):
    """Another service owns the topic, so a door forwards the request or sends the client there. `service`: the
    owner."""

    def __init__(self, service: ServiceRecord, topic: TopicRecord) -> None:
        super().__init__(f"{topic.name} is local to {service.name}, {service.url}")
        self.service = service
        self.topic = topic


class TopicNotServed(Unavailable):
    """This process does not serve a topic. Clients look it up again and find its owner."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "look it up again", is_public=True)


class ProducerBusy(Conflict):
    """A producer may not connect: the topic has an exclusive producer, one of the same name, or its maximum."""


class ProducerFenced(Conflict):
    """An exclusive producer may not write: a newer exclusive producer has replaced it, or other producers exist."""


class InvalidTopicEpoch(InvalidInput):
    """A reconnecting producer names a topic epoch that no service has given to a producer."""


class BacklogQuotaExceeded(Conflict):
    """The topic's backlog exceeds a quota. `holds`: producers wait until the backlog shrinks; otherwise they get an
    error."""

    def __init__(self, over: ExceededQuota) -> None:
        super().__init__(over.error.message, over.error.advice or over.error.remedy)
        self.holds = over.action == HOLD


class MissingTopic(TopicNotFound):
    """No topic has this name. `topic`: the name."""

    def __init__(self, topic: TopicName) -> None:
        super().__init__(f"the topic {topic} does not exist", Advice(AdviceKind.LIST_TOPICS))
        self.topic = topic


class MissingPartition(MissingTopic):
    """A partition of an existing partitioned topic does not exist; or the partitioned topic has no partition left."""


class PartitionOfMissingTopic(MissingTopic):
    """The name is that of a partition, and its partitioned topic does not exist."""


class MissingNamespace(NotFound):
    """No namespace has this name."""

    def __init__(self, cause: NotFound) -> None:
        """`cause`: the error of the database, whose text this error takes."""
        super().__init__(cause.message, cause.advice or cause.remedy)


class PartitionedTopicRefused(InvalidInput):
    """An operation on one topic was requested for a partitioned topic. `topic`: its name."""

    def __init__(self, topic: TopicName) -> None:
        super().__init__(f"{topic} is a partitioned topic", Advice(AdviceKind.USE_PARTITIONS, {"topic": topic}))
        self.topic = topic


class PartitionPolicyRefused(InvalidInput):
    """A policy of a single partition was requested."""

    def __init__(self, topic: TopicName) -> None:
        super().__init__(
            f"{topic} is a partition, and has the policies of its topic", f"use those of {topic.partitioned_topic}"
        )


class PartitionWithoutTopic(InvalidInput):
    """A topic cannot be created: its name is that of a partition, and the partitioned topic does not exist.

    `topic`: the name; `partitioned`: the name of the partitioned topic.
    """

    def __init__(self, topic: TopicName) -> None:
        super().__init__(
            f"{topic} is named like a partition, and there is no partitioned topic {topic.partitioned_topic}",
            "create that, or choose another name",
        )
        self.topic = topic
        self.partitioned = topic.partitioned_topic


class PartitionOutOfRange(InvalidInput):
    """A topic cannot be created: its name is that of a partition after the last one.

    `topic`: the name; `partitioned`: the name of the partitioned topic.
    """

    def __init__(self, topic: TopicName, partitions: int) -> None:
        super().__init__(f"{topic} does not exist", f"{topic.partitioned_topic} has {partitions} partitions")
        self.topic = topic
        self.partitioned = topic.partitioned_topic


class NotPartitioned(Conflict):
    """An operation on a partitioned topic was requested for a topic without partitions. `topic`: its name."""

    def __init__(self, topic: TopicName) -> None:
        super().__init__(
            f"{topic} is not a partitioned topic",
            "nothing was changed; use the operation for a topic without partitions",
        )
        self.topic = topic


class FewerPartitions(Conflict):
    """A partitioned topic cannot lose partitions. `partitions`: the requested number; `current`: the present one."""

    def __init__(self, topic: TopicName, current: int, partitions: int) -> None:
        super().__init__(
            f"{topic} has {current} partitions, and cannot be brought to {partitions}",
            "partitions can only be added; make another topic",
        )
        self.current = current
        self.partitions = partitions


class ClientsConnected(Conflict):
    """Producers or consumers are connected to a topic that is to be deleted. `topic`: its name."""

    def __init__(self, topic: TopicName) -> None:
        super().__init__(
            f"{topic} has active producers or subscriptions", Advice(AdviceKind.FORCE_DELETION, {"clients": "them"})
        )
        self.topic = topic


class TopicHasWriter(Conflict):
    """A process that is no service writes a topic that is to be deleted. `producers`: the number of topics with one."""

    def __init__(self, producers: int) -> None:
        super().__init__("another process writes the topic", Advice(AdviceKind.FORCE_DELETION, {"clients": "it"}))
        self.producers = producers


class VerificationBusy(Conflict):
    """This process verifies another topic, and does so one at a time."""

    def __init__(self) -> None:
        super().__init__("another topic is being verified by this service", "try again when it has finished")


class MissingEntry(NotFound):
    """A topic has no entry of an id or number. `topic`: its name; `entry`: the entry, such as "entry 5"."""

    def __init__(self, topic: TopicName, entry: str) -> None:
        super().__init__(f"{topic} has no {entry}", "choose an entry from its first to its last one")
        self.topic = topic
        self.entry = entry


class EntryTooFar(InvalidInput):
    """The number of a requested entry is too large: all entries before it would be read."""

    def __init__(self, limit: int) -> None:
        """`limit`: the largest number."""
        super().__init__(f"entries are counted to {limit} at most", "read from a position")
