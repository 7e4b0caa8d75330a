"""Clients of a topic for its page: its producers, and its subscriptions with their consumers, as its stats have them.

Another service may have a topic's clients; then the page names it, since this process knows none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from api.broker.broker import Broker
from api.broker.refusals import NotTheOwner
from api.broker.serving.connected_clients import LiveTopicState
from api.broker.stats import StatsSnapshot, topic_stats
from api.broker.stats_tree import TopicStats
from storage.metadata.stats import CursorStatsRecord


@dataclass(frozen=True)
class TopicClients:
    """The clients of a topic, in its stats. `cursors`: by the names of subscriptions. `reader_next_offsets`: of
    readers, which have no cursor, the offset that the service sends next. `owner_url`: the URL of the service to which
    the clients are connected; empty: this one."""

    stats: TopicStats
    cursors: Mapping[str, CursorStatsRecord]
    reader_next_offsets: Mapping[str, int] = field(default_factory=dict)
    owner_url: str = ""


def topic_clients(broker: Broker, snapshot: StatsSnapshot, live: LiveTopicState) -> TopicClients:
    """Return the clients of a topic for its page. `live`: those of this process. Reads the database."""
    owner_url = ""
    try:
        broker.ownership.check_not_owned_elsewhere(snapshot.stats.topic)
    except NotTheOwner as error:
        owner_url = error.service.url or error.service.name
    cursors = {cursor.record.name: cursor for cursor in snapshot.stats.cursors}
    stats = topic_stats(snapshot, live, with_backlog_bytes=False)
    reader_next_offsets = {
        name: max(item.delivered_end, snapshot.first_offset)
        for name, item in live.subscriptions.items()
        if not item.stats.durable and name in stats.subscriptions
    }
    return TopicClients(stats, cursors, reader_next_offsets, owner_url)
