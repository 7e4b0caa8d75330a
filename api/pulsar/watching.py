"""Watchers of namespaces: clients learn which topics that match their patterns appear and disappear.

Once a second each watched namespace is listed. A list that has changed is matched again, once for all watchers with the
same pattern, and compared once for all that were sent the same matches. Threads do both. Watching takes at most a tenth
of a core: after a long pass the next pass starts later. Must not know: sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from api.broker.serving.loop_turns import in_turns
from api.broker.threads import Workers
from api.pulsar.codec.responses import WatchTopicUpdate
from api.pulsar.errors import Refused, ServerError
from api.pulsar.topic_patterns import Matches

MAX_WATCHERS = 100
"""The watchers of one connection."""
NAMES_AT_ONCE = 1_000
"""Names that are sent before other tasks have a turn, besides those of one update."""
WATCHERS_AT_ONCE = 5_000
"""Watchers that are visited before other tasks have a turn."""
_PAUSE = 9
"""The time from a pass to the next one, as a multiple of the pass's duration."""


@dataclass(frozen=True)
class WatchedTopics:
    """The topics of a namespace that match a client's pattern. `namespace_topics`: those that the pattern was matched
    with."""

    namespace: str
    pattern: str
    namespace_topics: tuple[str, ...]
    matches: Matches


class Watchers:
    """The watchers of topic lists of one connection, by their ids."""

    def __init__(self) -> None:
        self._by_id: dict[int, WatchedTopics | None] = {}
        """The watched topics of each watcher; None: their first list is not complete yet."""

    @property
    def with_first_list(self) -> list[tuple[int, WatchedTopics]]:
        """Return the id and the topics of each watcher that has its first list."""
        return [(watcher_id, topics) for watcher_id, topics in self._by_id.items() if topics is not None]

    def reserve(self, watcher_id: int) -> None:
        """Add a watcher before its list is read, so that a close meanwhile ends it. Raise Refused (TooManyRequests)."""
        if watcher_id not in self._by_id and len(self._by_id) >= MAX_WATCHERS:
            raise Refused(
                ServerError.TooManyRequests,
                f"this connection has {MAX_WATCHERS} watchers: close some, or connect again",
            )
        self._by_id[watcher_id] = None

    def note_sent(self, watcher_id: int, topics: WatchedTopics) -> None:
        """Note the topics that a watcher was sent. Ignore a watcher that was closed meanwhile."""
        if watcher_id in self._by_id:
            self._by_id[watcher_id] = topics

    def is_current(self, watcher_id: int, topics: WatchedTopics) -> bool:
        """Return whether a watcher still has these topics: it was not closed and not created again."""
        return self._by_id.get(watcher_id) is topics

    def remove(self, watcher_id: int) -> None:
        """Remove a watcher by its id. Idempotent."""
        self._by_id.pop(watcher_id, None)

    def clear(self) -> None:
        """Remove all watchers."""
        self._by_id.clear()


class WatchingClient(Protocol):
    """A client's session that has watchers of topic lists."""

    @property
    def watchers(self) -> Watchers: ...

    def send(self, response: WatchTopicUpdate) -> None: ...


class NamespaceWatch:
    """The watch of namespaces, which sends clients the changes of their topics. For one event loop.

    It keeps the last list of each namespace.
    """

    def __init__(
        self, topics_of: Callable[[str], Awaitable[list[str]]], threads: Workers, now: Callable[[], float]
    ) -> None:
        """`topics_of`: returns the topics of a namespace, none of a deleted one; `threads`: match; `now`: seconds."""
        self._topics_of = topics_of
        self._threads = threads
        self._now = now
        self._lists: dict[str, tuple[str, ...]] = {}
        self._next = 0.0

    async def send_changes(self, clients: Iterable[WatchingClient]) -> None:
        """List the watched namespaces, and send each client the changes since its last update.

        Do nothing until the next pass is due, which is later after a long pass.
        """
        started = self._now()
        if started < self._next:
            return
        watchers: list[tuple[WatchingClient, int, WatchedTopics]] = []
        namespaces: set[str] = set()
        async for client in in_turns(clients, WATCHERS_AT_ONCE // MAX_WATCHERS):
            for watcher_id, topics in client.watchers.with_first_list:
                watchers.append((client, watcher_id, topics))
                namespaces.add(topics.namespace)
        for namespace in self._lists.keys() - namespaces:
            del self._lists[namespace]
        for namespace in namespaces:
            names = tuple(await self._topics_of(namespace))
            if names != self._lists.get(namespace):
                self._lists[namespace] = names
        changed: dict[tuple[str, str, int], list[tuple[WatchingClient, int, WatchedTopics]]] = {}
        async for client, watcher_id, topics in in_turns(watchers, WATCHERS_AT_ONCE):
            if topics.namespace_topics is not self._lists[topics.namespace]:
                key = topics.namespace, topics.pattern, id(topics.matches)
                changed.setdefault(key, []).append((client, watcher_id, topics))
        matches: dict[tuple[str, str], Matches] = {}
        for (namespace, pattern, _), group in changed.items():
            names = self._lists[namespace]
            if (namespace, pattern) not in matches:
                matches[namespace, pattern] = await self._threads.run(Matches.of, pattern, names)
            current = WatchedTopics(namespace, pattern, names, matches[namespace, pattern])
            await self._send_changes_to_group(group, current)
        self._next = self._now() + _PAUSE * (self._now() - started)

    async def _send_changes_to_group(
        self, group: Iterable[tuple[WatchingClient, int, WatchedTopics]], current: WatchedTopics
    ) -> None:
        """Send the changes to watchers that were all sent the same matches."""
        change: _TopicListChange | None = None
        sent = 0
        for client, watcher_id, topics in group:
            if change is None:
                change = await self._threads.run(_topic_list_change, topics.matches, current.matches)
            if not client.watchers.is_current(watcher_id, topics):
                continue
            client.watchers.note_sent(watcher_id, current)
            if change.topic_count:
                client.send(WatchTopicUpdate(watcher_id, change.new, change.deleted, current.matches.hash))
            sent += 1 + change.topic_count
            if sent >= NAMES_AT_ONCE:
                sent = 0
                await asyncio.sleep(0)


@dataclass(frozen=True)
class _TopicListChange:
    """The topics that are only in the newer, and only in the older of two lists, sorted."""

    new: list[str]
    deleted: list[str]

    @property
    def topic_count(self) -> int:
        return len(self.new) + len(self.deleted)


def _topic_list_change(earlier: Matches, current: Matches) -> _TopicListChange:
    before, after = set(earlier.topics), set(current.topics)
    return _TopicListChange(sorted(after - before), sorted(before - after))
