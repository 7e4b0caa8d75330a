"""Message time to live, backlog quotas, and what is before subscriptions, by Pulsar's calls."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest

from api.broker.serving.connected_clients import LiveSubscriptionState, LiveTopicState
from api.broker.stats_tree import ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from api.broker.threads import Pool, WaitsFor
from api.rest.brokers import broker_stats
from storage.errors import Misconfigured
from storage.metadata.records import TopicRecord
from storage.model import TopicName
from tests.clients.rest.conftest import RestTopic
from tests.serving import Served

_NUMBERS = itertools.count()
ADMIN = "/admin/v2"
SIZE, AGE = "destination_storage", "message_age"
NONE = {"limit": -1, "limitSize": -1, "limitTime": -1}


@pytest.fixture
def namespace(served: Served) -> str:
    """The path of a namespace of its own."""
    path = f"{ADMIN}/namespaces/public/backlog{next(_NUMBERS)}"
    assert served.ask("PUT", path).status_code == 204
    return path


def topic_in(served: Served, namespace: str, local: str = "t") -> RestTopic:
    """A topic there, whose paths are of that namespace."""

    class There(RestTopic):
        @property
        def path(self) -> str:
            return f"{namespace.replace('namespaces', 'persistent')}/{local}"

    created = There(served, local)
    assert created.ask("PUT").status_code == 204
    return created


def backlog(topic: RestTopic) -> dict[str, int]:
    """Messages before each subscription."""
    subscriptions = topic.ask("GET", "/stats").json()["subscriptions"]
    return {name: statistics["msgBacklog"] for name, statistics in subscriptions.items()}


def look_at_backlogs(served: Served) -> None:
    """Check the quotas of backlogs, as the service does every minute."""
    assert served.ask("GET", f"{ADMIN}/brokers/backlog-quota-check").status_code == 204
    served.broker.maintenance.maintenance.run_due()


def test_time_to_live_of_a_namespace_and_a_topic(served: Served, namespace: str) -> None:
    topic = topic_in(served, namespace)
    path = f"{namespace}/messageTTL"
    empty = served.ask("GET", path)
    assert (empty.status_code, empty.text, empty.headers.get("content-type")) == (200, "", None)
    assert topic.ask("GET", "/messageTTL").text == ""
    assert topic.ask("GET", "/messageTTL?applied=true").json() == 0
    assert served.ask("POST", path, "3600").status_code == 204
    assert served.ask("GET", path).json() == 3600
    assert served.ask("GET", namespace).json()["message_ttl_in_seconds"] == 3600
    assert topic.ask("GET", "/messageTTL?applied=true").json() == 3600
    assert topic.ask("POST", "/messageTTL?messageTTL=60").status_code == 204
    assert topic.ask("GET", "/messageTTL").json() == topic.ask("GET", "/messageTTL?applied=true").json() == 60
    for refused in (
        served.ask("POST", path, "-1"),
        served.ask("POST", path, str(1 << 31)),
        topic.ask("POST", "/messageTTL?messageTTL=-1"),
    ):
        assert (refused.status_code, refused.json()["reason"]) == (412, "Invalid value for message TTL")
    assert topic.ask("POST", "/messageTTL").status_code == 400
    assert topic.ask("DELETE", "/messageTTL?messageTTL=0").status_code == 204
    assert topic.ask("GET", "/messageTTL?applied=true").json() == 3600
    assert served.ask("DELETE", path).status_code == 204
    assert served.ask("GET", path).text == ""
    assert served.ask("GET", f"{ADMIN}/namespaces/public/nosuch/messageTTL").status_code == 404


def test_quotas_of_a_namespace_and_a_topic(served: Served, namespace: str) -> None:
    topic = topic_in(served, namespace)
    assert served.ask("GET", f"{namespace}/backlogQuotaMap").json() == {}
    assert topic.ask("GET", "/backlogQuotaMap").json() == {}
    hold = {**NONE, "policy": "producer_request_hold"}
    assert topic.ask("GET", "/backlogQuotaMap?applied=true").json() == {SIZE: hold, AGE: hold}
    body = {"limit": 1024, "limitSize": 1024, "limitTime": -1, "policy": "producer_exception"}
    assert served.ask("POST", f"{namespace}/backlogQuota?backlogQuotaType={SIZE}", json.dumps(body)).status_code == 204
    quotas = {SIZE: {**NONE, "limit": 1024, "limitSize": 1024, "policy": "producer_exception"}}
    assert served.ask("GET", f"{namespace}/backlogQuotaMap").json() == quotas
    assert served.ask("GET", namespace).json()["backlog_quota_map"] == quotas
    assert topic.ask("GET", "/backlogQuotaMap?applied=true").json() == {**quotas, AGE: hold}
    old = {"limitTime": 90, "policy": "consumer_backlog_eviction"}
    assert topic.ask("POST", f"/backlogQuota?backlogQuotaType={AGE}", old).status_code == 204
    assert topic.ask("GET", "/backlogQuotaMap").json() == {AGE: {**NONE, **old}}
    stats = topic.ask("GET", "/stats").json()
    assert (stats["backlogQuotaLimitSize"], stats["backlogQuotaLimitTime"]) == (1024, 90)
    for bad, status in (
        ({"policy": "producer_exception"}, 412),
        ({"limitSize": 5}, 400),
        ({"limitSize": 5, "policy": "throw"}, 400),
        ({"limitSize": "five", "policy": "producer_exception"}, 400),
        ({"limitSize": 5, "policy": None}, 400),
        ({"limitSize": -2, "policy": "producer_exception"}, 400),
    ):
        assert topic.ask("POST", "/backlogQuota", bad).status_code == status, bad
    assert topic.ask("POST", "/backlogQuota?backlogQuotaType=size", body).status_code == 400
    assert topic.ask("DELETE", f"/backlogQuota?backlogQuotaType={AGE}").status_code == 204
    assert served.ask("DELETE", f"{namespace}/backlogQuota?backlogQuotaType={SIZE}").status_code == 204
    assert topic.ask("GET", "/backlogQuotaMap?applied=true").json() == {SIZE: hold, AGE: hold}


def test_policies_of_the_partitions_of_a_topic(served: Served, namespace: str) -> None:
    path = f"{namespace.replace('namespaces', 'persistent')}/pt"
    assert served.ask("PUT", f"{path}/partitions", "2").status_code == 204
    assert served.ask("POST", f"{path}/messageTTL?messageTTL=60").status_code == 204
    assert served.ask("GET", f"{path}/messageTTL").json() == 60
    assert served.ask("GET", f"{path}-partition-1/messageTTL").status_code == 412
    body = '{"limitSize": 7, "policy": "producer_exception"}'
    assert served.ask("POST", f"{path}/backlogQuota", body).status_code == 204
    assert served.ask("GET", f"{path}/partitioned-stats").json()["backlogQuotaLimitSize"] == 7


@pytest.mark.parametrize(("policy", "status"), [("producer_request_hold", 503), ("producer_exception", 409)])
def test_over_its_quota_a_topic_takes_no_messages(rest_topic: RestTopic, policy: str, status: int) -> None:
    served = rest_topic.served
    rest_topic.put(a="1")
    assert rest_topic.ask("PUT", "/subscription/slow", "earliest").status_code == 204
    assert rest_topic.ask("POST", "/backlogQuota", {"limitSize": 0, "policy": policy}).status_code == 204
    rest_topic.put(b="2")
    look_at_backlogs(served)
    path = f"/topics/persistent/public/default/{rest_topic.local}"
    refused = served.ask("POST", path, '{"messages": [{"payload": "v"}]}')
    assert refused.status_code == status
    assert "its subscription slow has a backlog of" in refused.json()["reason"]
    assert ("retry-after" in refused.headers) == (status == 503)
    assert rest_topic.ask("POST", "/subscription/slow/skip_all").status_code == 204
    look_at_backlogs(served)
    rest_topic.put(c="3")
    assert [key for key, _ in rest_topic.values()] == ["a", "b", "c"]


def test_old_messages_expire_but_for_compaction(rest_topic: RestTopic) -> None:
    lines = '{"key": "a", "value": "1", "publish_time": 1}\n{"key": "b", "value": "2", "publish_time": 2}\n'
    path = f"/topics/persistent/public/default/{rest_topic.local}"
    produced = rest_topic.served.client.post(path, content=lines, headers={"content-type": "application/x-ndjson"})
    assert produced.status_code == 200, produced.text
    rest_topic.put(c="3")
    assert rest_topic.ask("PUT", "/subscription/s", "earliest").status_code == 204
    assert rest_topic.ask("PUT", "/subscription/__compaction").status_code == 204
    assert rest_topic.ask("POST", "/messageTTL?messageTTL=86400").status_code == 204
    look_at_backlogs(rest_topic.served)
    assert backlog(rest_topic) == {"__compaction": 3, "s": 1}


def test_the_size_of_a_backlog_from_a_message_on(rest_topic: RestTopic) -> None:
    ids = rest_topic.put(a="1", b="2", c="3", d="4")
    whole = rest_topic.ask("GET", "/stats").json()["storageSize"]

    def size(ledger: int, entry: int) -> Any:
        return rest_topic.ask(
            "PUT", "/backlogSize", {"ledgerId": ledger, "entryId": entry, "partitionIndex": -1}
        ).json()

    ledger = int(ids[0].partition(":")[0])
    assert size(-1, -1) == size(ledger, 0) == whole
    assert size(ledger, 2) == whole // 2
    assert size(ledger, 4) == size(ledger + 1, 0) == 0
    assert (
        RestTopic(rest_topic.served, "nosuch").ask("PUT", "/backlogSize", {"ledgerId": 1, "entryId": 1}).status_code
        == 404
    )


def test_what_a_backlog_is_made_of(rest_topic: RestTopic) -> None:
    ids = rest_topic.put(a="1", b="2", c="3", d="4")
    assert rest_topic.ask("PUT", "/subscription/s", "earliest").status_code == 204
    assert rest_topic.ask("POST", "/subscription/s/skip/1").status_code == 204
    analysis = rest_topic.ask("POST", "/subscription/s/analyzeBacklog").json()
    second, last = (":".join(item.split(":")[:2]) for item in (ids[1], ids[3]))
    assert analysis == {
        "entries": 3,
        "messages": 3,
        "markerMessages": 0,
        "filterRejectedEntries": 0,
        "filterAcceptedEntries": 3,
        "filterRescheduledEntries": 0,
        "filterRejectedMessages": 0,
        "filterAcceptedMessages": 3,
        "filterRescheduledMessages": 0,
        "aborted": False,
        "firstMessageId": second,
        "lastMessageId": last,
    }
    ledger, entry = (int(part) for part in last.split(":"))
    place = {"ledgerId": ledger, "entryId": entry}
    assert rest_topic.ask("POST", "/subscription/s/analyzeBacklog", place).json()["messages"] == 1
    assert rest_topic.ask("POST", "/subscription/s/skip_all").status_code == 204
    assert rest_topic.ask("POST", "/subscription/s/analyzeBacklog").json()["entries"] == 0
    assert rest_topic.ask("POST", "/subscription/nosuch/analyzeBacklog").status_code == 404


def test_a_long_backlog_is_not_read_to_its_end(rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.broker.subscriptions.MOST_ENTRIES", 2)
    rest_topic.put(a="1", b="2")
    assert rest_topic.ask("PUT", "/subscription/s", "earliest").status_code == 204
    analysis = rest_topic.ask("POST", "/subscription/s/analyzeBacklog").json()
    assert (analysis["entries"], analysis["aborted"]) == (2, False)
    rest_topic.put(c="3")
    analysis = rest_topic.ask("POST", "/subscription/s/analyzeBacklog").json()
    assert (analysis["entries"], analysis["aborted"]) == (2, True)


def test_the_backlogs_of_a_namespace(served: Served, namespace: str) -> None:
    first, second = topic_in(served, namespace, "t1"), topic_in(served, namespace, "t2")
    for topic in (first, second):
        for name in ("a", "b", "__compaction"):
            assert topic.ask("PUT", f"/subscription/{name}").status_code == 204
        messages = {"messages": [{"payload": "v"}]}
        path = topic.path.replace(f"{ADMIN}/", "/topics/")
        assert served.ask("POST", path, json.dumps(messages)).status_code == 200
    assert served.ask("POST", f"{namespace}/clearBacklog/a").status_code == 204
    assert backlog(first) == backlog(second) == {"__compaction": 1, "a": 0, "b": 1}
    name = f"persistent://{namespace.removeprefix(f'{ADMIN}/namespaces/')}/t1"
    bundle = served.ask("GET", f"/lookup/v2/topic/{name.replace('://', '/')}/bundle").text
    other = next(item for item in ("0x00000000_0x40000000", "0x40000000_0x80000000") if item != bundle)
    assert served.ask("POST", f"{namespace}/{bundle}/clearBacklog").status_code == 204
    assert backlog(first) == {"__compaction": 1, "a": 0, "b": 0}
    assert served.ask("POST", f"{namespace}/clearBacklog").status_code == 204
    assert backlog(second) == {"__compaction": 1, "a": 0, "b": 0}
    assert served.ask("POST", f"{namespace}/{other}/unsubscribe/a").status_code == 204
    assert "a" in backlog(first)
    assert served.ask("POST", f"{namespace}/{bundle}/unsubscribe/a").status_code == 204
    assert "a" not in backlog(first)
    assert served.ask("POST", f"{namespace}/unsubscribe/b").status_code == 204
    assert set(backlog(first)) == {"__compaction"}
    for below in ("clearBacklog/__compaction", "unsubscribe/__compaction", "0x0_0x1/clearBacklog"):
        assert served.ask("POST", f"{namespace}/{below}").status_code == 412, below
    assert served.ask("POST", f"{ADMIN}/namespaces/public/nosuch/clearBacklog").status_code == 404


def test_each_topic_that_is_unsubscribed_is_a_call_of_its_own(
    served: Served, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has its own deadline, however many topics there are."""
    topics = [topic_in(served, namespace, name) for name in ("t1", "t2", "t3")]
    for topic in topics[1:]:
        assert topic.ask("PUT", "/subscription/s").status_code == 204
    pool = served.broker.pools[WaitsFor.DATABASE]
    calls: list[list[str]] = []

    async def run(work: Callable[..., Any], *arguments: Any) -> Any:
        calls.append([str(part) for part in arguments if isinstance(part, TopicName)])
        calls[-1] += [str(part.name) for part in arguments if isinstance(part, TopicRecord)]
        return await Pool.run(pool, work, *arguments)

    monkeypatch.setattr(pool, "run", run)
    assert served.ask("POST", f"{namespace}/unsubscribe/s").status_code == 204
    prefix = namespace.replace("/admin/v2/namespaces/", "persistent://")
    first, second, third = ([f"{prefix}/{name}"] for name in ("t1", "t2", "t3"))
    assert calls == [[], first, second, second, third, third]
    assert [backlog(topic) for topic in topics] == [{}, {}, {}]


def test_stats_of_all_topics(served: Served, namespace: str, rest_topic: RestTopic) -> None:
    other_topic = topic_in(served, namespace)
    assert other_topic.ask("PUT", "/subscription/s").status_code == 204
    rest_topic.put(a="1")
    by_namespace = served.ask("GET", f"{ADMIN}/broker-stats/topics").json()
    full = namespace.removeprefix(f"{ADMIN}/namespaces/")
    name = f"persistent://{full}/t"
    bundle = served.ask("GET", f"/lookup/v2/topic/{name.replace('://', '/')}/bundle").text
    stats = by_namespace[full][bundle]["persistent"][name]
    assert stats["subscriptions"]["s"]["msgBacklog"] == stats["msgInCount"] == 0
    assert list(by_namespace[full]) == [bundle]
    of_default = {
        topic: statistics
        for some in by_namespace["public/default"].values()
        for topic, statistics in some["persistent"].items()
    }
    assert of_default[rest_topic.name]["msgInCount"] == 1
    listed = served.ask("GET", f"{ADMIN}/persistent/public/default").json()
    assert sorted(of_default) == sorted(listed)


def test_stats_of_all_topics_are_those_of_each_topic(rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rest_topic.ask("PUT", "/subscription/cursor").status_code == 204
    rest_topic.put(a="1", b="2")
    consumer = ConsumerStats(consumer_name="c", address="/127.0.0.1:1", available_permits=7, unacked_messages=2)
    shared = SubscriptionStats(type="Shared", consumers=(consumer,), unacked_messages=2, msg_rate_out=2.5)
    exclusive = SubscriptionStats(type="Exclusive", consumers=(consumer,), message_ack_rate=0.5)
    live = LiveTopicState(
        TopicStats(msg_rate_in=1.5, bytes_out_counter=9, publishers=(ProducerStats(producer_name="p"),)),
        {
            "cursor": LiveSubscriptionState(shared, backlog=lambda end, first: end - first - 1),
            "reader": LiveSubscriptionState(exclusive),
        },
    )
    broker = rest_topic.served.broker
    monkeypatch.setattr(
        broker.clients, "of_topic", lambda name: live if str(name) == rest_topic.name else LiveTopicState()
    )
    of_one = rest_topic.ask("GET", "/stats").json()
    everything = rest_topic.served.ask("GET", f"{ADMIN}/broker-stats/topics").json()
    (of_all,) = (
        some["persistent"][rest_topic.name]
        for some in everything["public/default"].values()
        if rest_topic.name in some["persistent"]
    )
    renamed = {
        "msgInCount": "msgInCounter",
        "bytesInCount": "bytesInCounter",
        "msgOutCount": "msgOutCounter",
        "bytesOutCount": "bytesOutCounter",
    }
    compared = 0
    for name, value in of_all.items():
        if renamed.get(name, name) in of_one and name not in {"publishers", "subscriptions"}:
            assert (name, value) == (name, of_one[renamed.get(name, name)])
            compared += 1
    assert compared == 12
    assert of_all["producerCount"] == 1
    producers = zip(of_all["publishers"], of_one["publishers"], strict=True)
    assert all(item == {field: other[field] for field in item} for item, other in producers)
    assert of_all["subscriptions"].keys() == of_one["subscriptions"].keys() == {"cursor", "reader"}
    for name, subscription in of_all["subscriptions"].items():
        whole = of_one["subscriptions"][name]
        same = subscription.keys() & whole.keys() - {"consumers"}
        assert {"msgBacklog", "type", "msgRateOut", "messageAckRate"} <= same
        assert {field: subscription[field] for field in same} == {field: whole[field] for field in same}
        consumers = zip(subscription["consumers"], whole["consumers"], strict=True)
        assert all(item == {field: other[field] for field in item} for item, other in consumers)
    assert of_all["subscriptions"]["cursor"]["msgBacklog"] == 1


def test_a_topic_whose_figures_cannot_be_had_is_left_out_of_all_stats_and_logged(
    served: Served, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = RestTopic(served, f"{rest_topic.local}-other")
    assert other.ask("PUT").status_code == 204
    of_one = broker_stats.stats_snapshot

    def away(broker: Any, name: TopicName) -> Any:
        if str(name) == rest_topic.name:
            raise Misconfigured("log.uid holds nonsense", "restore it")
        return of_one(broker, name)

    monkeypatch.setattr(broker_stats, "stats_snapshot", away)
    by_namespace = served.ask("GET", f"{ADMIN}/broker-stats/topics").json()
    assert other.name in json.dumps(by_namespace)
    assert f'"{rest_topic.name}"' not in json.dumps(by_namespace)
    assert [record.message for record in caplog.records if "is left out" in record.message] == [
        f"{rest_topic.name} is left out of the stats of all topics: log.uid holds nonsense: restore it"
    ]
