"""Clients on a topic's page, rendered from the statistics tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace

from jinja2 import Environment, PackageLoader, StrictUndefined

from api.broker.stats_tree import ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from api.dashboard.formats import FILTERS
from api.dashboard.topic_clients import TopicClients
from storage.metadata.records import CursorRecord
from storage.metadata.stats import CursorStatsRecord
from storage.model import LogPosition, MessageId

SINCE = "1970-01-01T00:00:02.500Z"
SHOWN = 100


def rendered(
    stats: TopicStats, cursors: Mapping[str, CursorStatsRecord], sent_ends: Mapping[str, int] = MappingProxyType({})
) -> str:
    templates = Environment(loader=PackageLoader("api.dashboard"), autoescape=True, undefined=StrictUndefined)
    templates.filters.update(FILTERS)
    view = SimpleNamespace(clients=TopicClients(stats, cursors, sent_ends))
    template = templates.get_template("topic_clients.html")
    return template.render(view=view, may_consume=True, now=3_500, path="/topic", segment=str)


def test_producers_and_consumers_have_their_numbers() -> None:
    producer = ProducerStats(
        producer_name="p", address="/10.0.0.1:5", client_version="java", connected_since=SINCE, msg_rate_in=1.5
    )
    consumer = ConsumerStats(consumer_name="c", available_permits=7, unacked_messages=3, msg_throughput_out=20.0)
    subscription = SubscriptionStats(type="Shared", msg_backlog=9, unacked_messages=3, consumers=(consumer,))
    cursor = CursorStatsRecord(CursorRecord("s", LogPosition(3, MessageId(1, 3)), {}), 0, 0, acknowledged=400)
    text = rendered(TopicStats(publishers=(producer,), subscriptions={"s": subscription}), {"s": cursor})
    assert '<th scope="row">p<small>10.0.0.1:5, java</small><small>connected <time datetime="1970-01-01' in text
    assert "1.5 msg/s<small>0 B/s</small>" in text
    assert '<a href="/topic/subscriptions/s">s</a>' in text
    assert "<small>Shared; acknowledged: all up to offset 3, and 400 messages after it</small>" in text
    assert '<th scope="row">c<small></small><small>connected –</small><small>7 permits</small>' in text
    for label, number in (("Backlog", 9), ("Unacked", 3)):
        assert f'<td class="number" data-label="{label}">{number}</td>' in text
    assert "0 msg/s<small>20 B/s</small>" in text


def test_a_consumer_that_gets_nothing_says_why() -> None:
    waits = ConsumerStats(consumer_name="waits", available_permits=0)
    blocked = ConsumerStats(consumer_name="blocked", available_permits=9, blocked_consumer_on_unacked_msgs=True)
    served = ConsumerStats(consumer_name="served", available_permits=9)
    for backlog, reasons in (
        (9, ["until its program takes those that were sent", "until it acknowledges some"]),
        (0, []),
    ):
        subscription = SubscriptionStats(msg_backlog=backlog, consumers=(waits, blocked, served))
        text = rendered(TopicStats(subscriptions={"s": subscription}), {})
        assert re.findall("gets no messages ([^<]*)<", text) == reasons


def test_a_subscription_without_consumers_or_cursor() -> None:
    text = rendered(TopicStats(subscriptions={"s": SubscriptionStats(durable=False)}), {})
    assert '<th scope="rowgroup">s<small>no consumer, not durable</small></th>' in text


def test_a_reader_has_its_backlog_and_what_it_was_sent() -> None:
    stats = TopicStats(subscriptions={"r": SubscriptionStats(type="Exclusive", durable=False, msg_backlog=9)})
    text = rendered(stats, {}, {"r": 7})
    assert "not durable; sent: all before offset 7</small>" in text
    assert '<td class="number" data-label="Backlog">9</td>' in text


def test_a_page_lists_a_bounded_number_of_clients() -> None:
    subscription = SubscriptionStats(consumers=(ConsumerStats(),) * (SHOWN + 1))
    stats = TopicStats(publishers=(ProducerStats(producer_name="p"),) * (SHOWN + 2), subscriptions={"s": subscription})
    text = rendered(stats, {})
    assert text.count('<th scope="row">p') == SHOWN
    assert "The first 100." in text
    assert text.count('<th scope="row">unnamed') == SHOWN
    assert "and 1 more consumers" in text
