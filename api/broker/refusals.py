"""Refusals of operations, as errors: each door words them in its own protocol."""

from __future__ import annotations

from storage.errors import Conflict, InvalidInput, Unavailable
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.model import TopicName


class ConsumerBusy(Conflict):
    """A subscription has consumers that another one may not join, or must not be taken from."""


class ConsumerNotAssigned(InvalidInput):
    """A key-shared consumer asks for a mode or for hash ranges that the other consumers do not leave it."""


class PoolBusy(Unavailable):
    """A pool of threads that refuses a call, or has not made it within its deadline; the pool has logged it.

    `kind`: deadline, stuck, queue or threads. `resource`: the resource that the pool's threads block on.
    """

    def __init__(self, message: str, kind: str, resource: str) -> None:
        super().__init__(message, "try again", is_public=True)
        self.kind = kind
        self.resource = resource


class NotTheOwner(Exception):
    """Another service owns the topic: the request is for that service. `service`: the owner."""

    def __init__(self, service: ServiceRecord, topic: TopicRecord) -> None:
        super().__init__(f"{topic.name} is local to {service.name}, {service.url}")
        self.service = service
        self.topic = topic


class TopicClosed(Unavailable):
    """A topic that this process has closed. Clients look it up again and find its owner."""

    def __init__(self, topic: TopicName) -> None:
        super().__init__(f"{topic} is given up here", "look it up again", is_public=True)


class ProducerBusy(Conflict):
    """The topic has a producer beside which the new one may not be connected."""


class ProducerFenced(Conflict):
    """Another producer has, or has had, the topic for itself."""


class InvalidTopicEpoch(InvalidInput):
    """A topic epoch that no service has given to a producer."""


class BacklogQuotaExceeded(Conflict):
    """The topic's backlog exceeds a quota. `holds`: producers wait until it shrinks; otherwise they get an error."""

    def __init__(self, message: str, remedy: str, holds: bool) -> None:
        super().__init__(message, remedy)
        self.holds = holds
