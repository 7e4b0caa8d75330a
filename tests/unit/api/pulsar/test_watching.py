"""Watchers: bounded before anything waits; a namespace is matched again only if its topics have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from api.pulsar import watching
from api.pulsar.codec.responses import WatchTopicUpdate
from api.pulsar.errors import Refused, ServerError
from api.pulsar.topic_patterns import Matches
from api.pulsar.watching import MAX_WATCHERS, NAMES_AT_ONCE, NamespaceWatch, WatchedTopics, Watchers
from tests.event_loop import in_event_loop

TOPICS = ("persistent://a/b/x1", "persistent://a/b/y")


class Threads:
    """Threads that count what they do."""

    size = 1

    def __init__(self) -> None:
        self.runs = 0

    async def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.runs += 1
        return work(*arguments)

    run_without_deadline = run


class Client:
    def __init__(self, count: int) -> None:
        self.watchers = Watchers()
        self.sent: list[WatchTopicUpdate] = []
        matches = Matches.of("a/b/x.*", TOPICS)
        for number in range(count):
            self.watchers.reserve(number)
            self.watchers.note_sent(number, WatchedTopics("a/b", "a/b/x.*", TOPICS, matches))

    def send(self, response: WatchTopicUpdate) -> None:
        self.sent.append(response)


class Namespace:
    """A namespace that is watched, and a clock that a listing moves."""

    def __init__(self) -> None:
        self.topics = list(TOPICS)
        self.threads = Threads()
        self.now = 0.0
        self.listing_seconds = 0.0
        self.listings = 0
        self.watch = NamespaceWatch(self._listed, self.threads, lambda: self.now)

    async def _listed(self, _: str) -> list[str]:
        self.listings += 1
        self.now += self.listing_seconds
        return list(self.topics)


def test_places_are_taken_before_the_first_list_is_made() -> None:
    watchers = Watchers()
    for number in range(MAX_WATCHERS):
        watchers.reserve(number)
    with pytest.raises(Refused) as refused:
        watchers.reserve(MAX_WATCHERS)
    assert refused.value.error == ServerError.TooManyRequests
    watchers.reserve(0)
    watchers.remove(1)
    watchers.reserve(MAX_WATCHERS)
    with pytest.raises(Refused):
        watchers.reserve(MAX_WATCHERS + 1)


def test_a_watcher_that_was_closed_meanwhile_stays_closed() -> None:
    watchers = Watchers()
    watchers.reserve(1)
    watchers.remove(1)
    watchers.note_sent(1, WatchedTopics("a/b", "x", (), Matches((), "")))
    assert not watchers.with_first_list


@in_event_loop
async def test_a_change_is_matched_once_for_all_watchers_of_a_pattern() -> None:
    namespace, clients = Namespace(), [Client(100), Client(100)]
    await namespace.watch.send_changes(clients)
    namespace.threads.runs = 0
    for _ in range(5):
        await namespace.watch.send_changes(clients)
    assert namespace.threads.runs == 0
    namespace.topics.append("persistent://a/b/x2")
    namespace.topics.remove("persistent://a/b/x1")
    await namespace.watch.send_changes(clients)
    await namespace.watch.send_changes(clients)
    assert namespace.threads.runs == 2, "matched once, compared once"
    updates = clients[0].sent
    assert len(updates) == 100
    assert list(updates[0].new_topics) == ["persistent://a/b/x2"]
    assert list(updates[0].deleted_topics) == ["persistent://a/b/x1"]


@in_event_loop
async def test_updates_leave_other_tasks_their_turns() -> None:
    """100 watchers of one connection and one new topic of 10,000 occupied the loop for 0.4 s."""
    namespace, client = Namespace(), Client(100)
    await namespace.watch.send_changes([client])
    namespace.topics += [f"persistent://a/b/x-{number}" for number in range(NAMES_AT_ONCE // 2)]
    notifying = asyncio.create_task(namespace.watch.send_changes([client]))
    in_turns = []
    while not notifying.done():
        before = len(client.sent)
        await asyncio.sleep(0)
        in_turns.append(len(client.sent) - before)
    assert sum(in_turns) == 100
    assert max(in_turns) <= 3


@in_event_loop
async def test_a_pass_that_takes_long_is_rare() -> None:
    namespace, clients = Namespace(), [Client(1)]
    namespace.listing_seconds = 1.0
    for _ in range(40):
        await namespace.watch.send_changes(clients)
        namespace.now += 0.5
    assert namespace.listings <= 3


@in_event_loop
async def test_a_pass_without_changes_leaves_other_tasks_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 connections with 100 watchers each were visited in one step."""
    monkeypatch.setattr(watching, "WATCHERS_AT_ONCE", 200)
    namespace, clients = Namespace(), [Client(100) for _ in range(20)]
    await namespace.watch.send_changes(clients)
    work, turns = asyncio.create_task(namespace.watch.send_changes(clients)), 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 2_000 / 200 * 2
