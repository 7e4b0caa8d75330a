"""The topic that a command works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.environment import Environment
    from storage.model import TopicName
    from storage.topic import Topic


def open_topic(environment: Environment, name: TopicName) -> Topic:
    """Return the topic, or the partition, of that name; nothing is locked or created.

    Raise PartitionedTopicRefused, TopicNotFound.
    """
    from api.broker import names
    from storage.topic import Topic

    return Topic(environment, names.unpartitioned_topic(environment, name))
