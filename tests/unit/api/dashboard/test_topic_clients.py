"""Clients on a topic's page, from the statistics tree."""

from __future__ import annotations

from api.broker.stats_tree import ConsumerStats, ProducerStats, SubscriptionStats, TopicStats
from api.dashboard.topic_clients import SHOWN, Client, clients_of

SINCE = "1970-01-01T00:00:02.500Z"


def test_producers_and_consumers_have_their_numbers() -> None:
    producer = ProducerStats(
        producer_name="p", address="/10.0.0.1:5", client_version="java", connected_since=SINCE, msg_rate_in=1.5
    )
    consumer = ConsumerStats(consumer_name="c", available_permits=7, unacked_messages=3, msg_throughput_out=20.0)
    subscription = SubscriptionStats(type="Shared", msg_backlog=9, unacked_messages=3, consumers=(consumer,))
    clients = clients_of(TopicStats(publishers=(producer,), subscriptions={"s": subscription}), {"s": 4})
    assert clients.producers == [Client("p", "10.0.0.1:5", "java", 2_500, 1.5, 0.0)]
    (listed,) = clients.subscriptions
    assert (listed.name, listed.type, listed.next_offset, listed.backlog, listed.unacked) == ("s", "Shared", 4, 9, 3)
    assert listed.consumers == [Client("c", "", "", 0, 0.0, 20.0, 7, 3)]


def test_a_subscription_without_consumers_or_cursor() -> None:
    (listed,) = clients_of(TopicStats(subscriptions={"s": SubscriptionStats(durable=False)}), {}).subscriptions
    assert (listed.type, listed.next_offset, listed.durable, listed.consumers) == ("", None, False, [])


def test_a_page_lists_a_bounded_number_of_clients() -> None:
    subscription = SubscriptionStats(consumers=(ConsumerStats(),) * (SHOWN + 1))
    stats = TopicStats(publishers=(ProducerStats(),) * (SHOWN + 2), subscriptions={"s": subscription})
    clients = clients_of(stats, {})
    assert (len(clients.producers), clients.number_of_producers) == (SHOWN, SHOWN + 2)
    assert len(clients.subscriptions[0].consumers) == SHOWN
    assert clients.subscriptions[0].number_of_consumers == SHOWN + 1
