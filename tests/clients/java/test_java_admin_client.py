"""Pulsar's Java admin client, of the version whose broker was recorded, used as a program uses it.

It is called through Py4J, so that no compiler is needed: types, enums and exceptions are the client's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError

from tests.servers.compactor_service import RunningService

pytestmark = pytest.mark.slow

EXCEPTIONS = "org.apache.pulsar.client.admin.PulsarAdminException"


@pytest.fixture(scope="module")
def java_admin(client: JavaGateway, service: RunningService) -> Iterator[Any]:
    """`PulsarAdmin.builder().serviceHttpUrl(…).build()`."""
    admin = client.jvm.org.apache.pulsar.client.admin.PulsarAdmin.builder().serviceHttpUrl(service.url).build()
    yield admin
    admin.close()


def refused(kind: str, status: int, call: Any, *arguments: object) -> None:
    with pytest.raises(Py4JJavaError) as answer:
        call(*arguments)
    error = answer.value.java_exception
    assert (error.getClass().getName(), error.getStatusCode()) == (f"{EXCEPTIONS}${kind}", status)


def test_a_topics_life(java_admin: Any, client: JavaGateway, rest: httpx.Client) -> None:
    topics, topic = java_admin.topics(), "persistent://public/default/by-java"
    assert java_admin.getClientConfigData() is not None
    topics.createNonPartitionedTopic(topic)
    refused("ConflictException", 409, topics.createNonPartitionedTopic, topic)
    assert topic in topics.getList("public/default")
    assert topics.compactionStatus(topic).status.toString() == "NOT_RUN"

    policies = java_admin.topicPolicies()
    assert policies.getCompactionThreshold(topic) is None
    policies.setCompactionThreshold(topic, 4096)
    assert policies.getCompactionThreshold(topic) == 4096
    policies.removeCompactionThreshold(topic)
    assert policies.getCompactionThreshold(topic, True) == 0

    messages = [{"key": f"k{n % 3}", "payload": f"v{n}"} for n in range(12)]
    rest.post("/topics/persistent/public/default/by-java", json={"messages": messages}).raise_for_status()
    earliest = client.jvm.org.apache.pulsar.client.api.MessageId.earliest
    topics.createSubscription(topic, "s", earliest)
    assert [bytes(message.getData()).decode() for message in topics.peekMessages(topic, "s", 2)] == ["v0", "v1"]
    assert topics.peekMessages(topic, "s", 1)[0].getKey() == "k0"
    assert topics.getLastMessageId(topic).getEntryId() == 11

    topics.triggerCompaction(topic)
    while topics.compactionStatus(topic).status.toString() == "RUNNING":
        pass
    assert topics.compactionStatus(topic).status.toString() == "SUCCESS"
    stats = topics.getStats(topic)
    assert stats.getMsgInCounter() == 12
    assert stats.getCompaction().getLastCompactionRemovedEventCount() == 9
    assert stats.getSubscriptions()["s"].getMsgBacklog() == 12
    internal = topics.getInternalStats(topic)
    assert internal.numberOfEntries == 12
    assert internal.compactedLedger.entries == 3
    assert "__compaction" in internal.cursors

    topics.skipAllMessages(topic, "s")
    topics.trimTopic(topic)
    topics.deleteSubscription(topic, "s")
    topics.delete(topic)
    refused("NotFoundException", 404, topics.getStats, topic)


def test_what_is_refused_is_the_exception_of_its_status(java_admin: Any) -> None:
    topics, nosuch = java_admin.topics(), "persistent://public/default/nosuch"
    refused("NotFoundException", 404, topics.triggerCompaction, nosuch)
    refused("NotFoundException", 404, topics.compactionStatus, nosuch)
    refused("PreconditionFailedException", 412, java_admin.namespaces().setCompactionThreshold, "public/default", -5)
    refused("NotFoundException", 404, java_admin.namespaces().getTopics, "public/nosuch")
    refused("ConflictException", 409, java_admin.namespaces().createNamespace, "public/default")
    topics.createNonPartitionedTopic("persistent://public/default/plain")
    refused("NotAllowedException", 405, topics.terminateTopic, "persistent://public/default/plain")
    assert java_admin.topicPolicies().getMaxConsumers("persistent://public/default/plain") is None
