"""Stats: numbers of sealed ledgers, rolled and open segments, cursors and runs, and what partitions sum up to."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from api.broker.serving.connected_clients import LiveSubscriptionState, LiveTopicState
from api.broker.stats_tree import ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from storage.errors import ErrorText
from tests.clients.rest.conftest import RestTopic
from tests.cursors import merge
from tests.serving import Served
from tests.workbench import content

_NUMBERS = itertools.count()


def _append(topic: RestTopic, count: int) -> None:
    """A sealed ledger."""
    rows = content(*((b"%d" % number, b"v") for number in range(count)))
    topic.served.topic(topic.name).bulk_append().append([rows])


def _stats(topic: RestTopic, query: str = "") -> Any:
    return topic.ask("GET", f"/stats{query}").json()


def test_messages_count_in_ledgers_and_in_the_open_segment(rest_topic: RestTopic) -> None:
    _append(rest_topic, 4)
    sealed = _stats(rest_topic)
    assert sealed["msgInCounter"] == 4
    rest_topic.put(a="1", b="22", c="333")
    stats = _stats(rest_topic)
    assert stats["msgInCounter"] == 7
    assert stats["storageSize"] == stats["bytesInCounter"] > sealed["storageSize"]
    internal = rest_topic.ask("GET", "/internalStats").json()
    assert internal["numberOfEntries"] == sum(ledger["entries"] for ledger in internal["ledgers"]) == 7
    assert internal["currentLedgerEntries"] == internal["ledgers"][-1]["entries"] == 3
    assert internal["currentLedgerSize"] == internal["ledgers"][-1]["size"] > 0
    assert internal["totalSize"] == stats["storageSize"]
    assert internal["lastConfirmedEntry"] == f"{internal['ledgers'][-1]['ledgerId']}:2"
    assert internal["compactedLedger"]["ledgerId"] == -1
    info = rest_topic.ask("GET", "/internal-info").json()
    assert [ledger.get("entries") for ledger in info["ledgers"]] == [4, None]
    backlog = rest_topic.ask("GET", "/backlog").json()
    assert (backlog["totalMessages"], backlog["messageBacklog"]) == (7, 0)


def test_an_empty_topic(rest_topic: RestTopic) -> None:
    stats = _stats(rest_topic)
    assert (stats["msgInCounter"], stats["storageSize"], stats["subscriptions"]) == (0, 0, {})
    internal = rest_topic.ask("GET", "/internalStats").json()
    assert (internal["lastConfirmedEntry"], internal["ledgers"], internal["cursors"]) == ("-1:-1", [], {})
    assert internal["lastLedgerCreatedTimestamp"].endswith("Z")
    assert internal["properties"] == {}
    assert rest_topic.ask("PUT", "/properties", {"k": "v"}).status_code == 204
    assert rest_topic.ask("GET", "/internalStats").json()["properties"] == {"k": "v"}


def test_compaction_in_the_stats(rest_topic: RestTopic) -> None:
    _append(rest_topic, 4)
    _append(rest_topic, 3)
    rest_topic.compact()
    _append(rest_topic, 2)
    stats = _stats(rest_topic)
    assert stats["compaction"]["lastCompactionRemovedEventCount"] == 3
    assert stats["compaction"]["lastCompactionSucceedTimestamp"] > 0
    assert stats["compaction"]["lastCompactionFailedTimestamp"] == 0
    behind = stats["subscriptions"]["__compaction"]
    assert behind["msgBacklog"] == behind["msgBacklogNoDelayed"] == 2
    assert behind["backlogSize"] == stats["backlogSize"] > 0
    assert behind["subscriptionProperties"] == {}
    assert behind["type"] == "None"
    internal = rest_topic.ask("GET", "/internalStats").json()
    compacted = internal["compactedLedger"]
    cursor = internal["cursors"]["__compaction"]
    assert compacted["entries"] == 4
    assert cursor["properties"] == {"CompactedTopicLedger": compacted["ledgerId"]}
    assert cursor["markDeletePosition"] == f"{internal['ledgers'][1]['ledgerId']}:2"
    assert cursor["readPosition"] == f"{internal['ledgers'][1]['ledgerId']}:3"
    assert cursor["messagesConsumedCounter"] == 7
    rest_topic.compact()
    stats = _stats(rest_topic)
    assert (stats["backlogSize"], stats["subscriptions"]["__compaction"]["msgBacklog"]) == (0, 0)


def test_a_subscriptions_own_properties_are_no_compacted_ledger(rest_topic: RestTopic) -> None:
    assert rest_topic.ask("PUT", "/subscription/s").status_code == 204
    assert rest_topic.ask("PUT", "/subscription/s/properties", {"CompactedTopicLedger": "mine"}).status_code == 204
    assert rest_topic.ask("GET", "/internalStats").json()["cursors"]["s"]["properties"] == {}
    assert rest_topic.ask("GET", "/internal-info").status_code == 200


def test_a_failed_run_in_the_stats(rest_topic: RestTopic) -> None:
    metadata = rest_topic.served.broker.environment.metadata
    _append(rest_topic, 2)
    rest_topic.compact()
    record = rest_topic.served.topic(rest_topic.name).record
    run = metadata.runs.claim(record.id, "worker", {}, 30_000)
    before = _stats(rest_topic)["compaction"]
    metadata.runs.fail(run, ErrorText("the workers are away"))
    after = _stats(rest_topic)["compaction"]
    assert after["lastCompactionFailedTimestamp"] > 0 == before["lastCompactionFailedTimestamp"]
    assert after["lastCompactionSucceedTimestamp"] == before["lastCompactionSucceedTimestamp"]
    assert after["lastCompactionRemovedEventCount"] == before["lastCompactionRemovedEventCount"]


def test_backlogs_are_counted_as_they_are_asked_for(rest_topic: RestTopic) -> None:
    from pyroaring import BitMap

    _append(rest_topic, 10)
    metadata = rest_topic.served.broker.environment.metadata
    record = rest_topic.served.topic(rest_topic.name).record
    metadata.cursors.create(record.id, "s", None, {"readCompacted": "true"})
    life = metadata.cursors.load(record.id, "s", 1 << 20).incarnation
    merge(metadata, record.id, "s", life, None, {0: BitMap([2, 3, 7])})
    plain = _stats(rest_topic)["subscriptions"]["s"]
    assert (plain["msgBacklog"], plain["earliestMsgPublishTimeInBacklog"]) == (7, 0)
    assert plain["subscriptionProperties"] == {"readCompacted": "true"}
    query = "?getPreciseBacklog=true&subscriptionBacklogSize=false&getEarliestTimeInBacklog=true"
    stats = _stats(rest_topic, query)
    assert stats["subscriptions"]["s"]["msgBacklog"] == 7
    assert stats["subscriptions"]["s"]["backlogSize"] == -1
    assert stats["subscriptions"]["s"]["nonContiguousDeletedMessagesRanges"] == 2
    assert stats["earliestMsgPublishTimeInBacklogs"] == stats["lastPublishTimeStamp"] > 0
    assert rest_topic.ask("GET", "/backlog").json()["cursorDetails"] == {
        "s": {"cursorBacklog": 7, "cursorLedgerId": -1}
    }


def test_a_partitioned_topic_is_the_sum_of_its_partitions(served: Served) -> None:
    whole = RestTopic(served, f"stats{next(_NUMBERS)}")
    assert whole.ask("PUT", "/partitions", 3).status_code == 204
    for number, count in enumerate((1, 2, 4)):
        partition = RestTopic(served, f"{whole.local}-partition-{number}")
        _append(partition, count)
        for cursor in ("s", "__compaction"):
            served.broker.environment.metadata.cursors.ensure(served.topic(partition.name).record.id, cursor)
    stats = whole.ask("GET", "/partitioned-stats").json()
    assert stats["msgInCounter"] == 7
    assert stats["metadata"] == {"partitions": 3, "deleted": False}
    assert stats["subscriptions"]["s"]["msgBacklog"] == 7
    assert [item["msgInCounter"] for item in stats["partitions"].values()] == [1, 2, 4]
    assert stats["subscriptions"]["__compaction"]["type"] == "Exclusive"
    assert stats["oldestBacklogMessageAgeSeconds"] == 0
    assert stats["storageSize"] == sum(item["storageSize"] for item in stats["partitions"].values())
    assert whole.ask("GET", "/partitioned-stats?perPartition=false").json()["partitions"] == {}
    internal = whole.ask("GET", "/partitioned-internalStats").json()
    assert [item["numberOfEntries"] for item in internal["partitions"].values()] == [1, 2, 4]
    assert [item["properties"] for item in internal["partitions"].values()] == [{}, {}, {}]
    info = whole.ask("GET", "/internal-info").json()
    assert [len(item["ledgers"]) for item in info["partitions"].values()] == [1, 1, 1]
    missing = RestTopic(served, "nosuch")
    for below in ("/partitioned-stats", "/partitioned-internalStats", "/internal-info", "/backlog"):
        assert missing.ask("GET", below).status_code == 404


def test_the_last_publish_time_is_there_before_a_segment_is_rolled(rest_topic: RestTopic) -> None:
    """S8: it was 0 until then."""
    assert _stats(rest_topic)["lastPublishTimeStamp"] == 0
    rest_topic.put(a="1")
    first = _stats(rest_topic)["lastPublishTimeStamp"]
    rest_topic.put(a="2", b="1")
    lines = rest_topic.read()
    assert (first, _stats(rest_topic)["lastPublishTimeStamp"]) == (lines[0]["publish_time"], lines[-1]["publish_time"])
    whole = RestTopic(rest_topic.served, f"stats{next(_NUMBERS)}")
    assert whole.ask("PUT", "/partitions", 1).status_code == 204
    RestTopic(whole.served, f"{whole.local}-partition-0").put(a="1")
    assert whole.ask("GET", "/partitioned-stats").json()["lastPublishTimeStamp"] > 0


def test_clients_are_named_or_left_out(rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    consumers = ConsumerStats(consumer_name="one", last_consumed_flow_timestamp=7), ConsumerStats(consumer_name="two")
    subscriptions = {
        "exclusive": SubscriptionStats(type="Exclusive", consumers=consumers[:1]),
        "failover": SubscriptionStats(type="Failover", active_consumer_name="two", consumers=consumers),
        "shared": SubscriptionStats(type="Shared", consumers=consumers[1:]),
    }
    live = LiveTopicState(
        TopicStats(publishers=(ProducerStats(producer_name="p"),)),
        {name: LiveSubscriptionState(clients) for name, clients in subscriptions.items()},
    )
    monkeypatch.setattr(rest_topic.served.broker.clients, "of_topic", lambda _: live)
    stats = _stats(rest_topic)
    by_name = stats["subscriptions"]
    assert {name: item.get("activeConsumerName") for name, item in by_name.items()} == {
        "exclusive": "one",
        "failover": "two",
        "shared": None,
    }
    assert [item["lastConsumedFlowTimestamp"] for item in by_name["failover"]["consumers"]] == [7, 0]
    assert by_name["failover"]["lastConsumedFlowTimestamp"] == 7
    assert [item["producerName"] for item in stats["publishers"]] == ["p"]
    bare = _stats(rest_topic, "?excludePublishers=true&excludeConsumers=true")
    assert bare["publishers"] == []
    assert [item["consumers"] for item in bare["subscriptions"].values()] == [[], [], []]
    assert bare["subscriptions"]["exclusive"]["activeConsumerName"] == "one"


def test_a_segment_in_another_log_directory_is_not_read(rest_topic: RestTopic) -> None:
    from dataclasses import replace

    from storage.log.open_segments import open_segment_end

    rest_topic.put(a="1", b="2")
    environment = rest_topic.served.broker.environment
    record = rest_topic.served.topic(rest_topic.name).record
    (segment,) = environment.metadata.segments.of_topic(record.id)
    end = open_segment_end(environment.log, record, segment)
    assert end is not None
    assert (end.next_offset, end.entries) == (2, 2)
    assert open_segment_end(environment.log, record, replace(segment, log_uid="0" * 32)) is None
