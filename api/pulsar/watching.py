"""Watching the topics of namespaces: clients learn which topics appear and disappear that fit their patterns.

Each namespace that is watched is listed once a second, and matched again only if its list has changed, once for all
that watch it with the same pattern. Of a core, watching takes a tenth at most: after a pass that took long, the next
one comes later. Must not know: sockets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from api.pulsar.admission import Threads
from api.pulsar.codec.responses import WatchTopicUpdate
from api.pulsar.errors import Refused, ServerError
from api.pulsar.topic_patterns import Matches

MOST_WATCHERS = 100
"""Of one connection."""
_REST = 9
"""Times the length of a pass until the next one."""


@dataclass(frozen=True)
class Watched:
    """What a client watches: the topics of a namespace that a pattern fits. `names`: of which list they were taken."""

    namespace: str
    pattern: str
    names: tuple[str, ...]
    matches: Matches


class Watchers:
    """The watchers of one connection."""

    def __init__(self) -> None:
        self._by_id: dict[int, Watched | None] = {}
        """None: the first list is being made."""

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def all(self) -> list[tuple[int, Watched]]:
        """Those that have their first list."""
        return [(number, watched) for number, watched in self._by_id.items() if watched is not None]

    def reserve(self, number: int) -> None:
        """Take a place, before anything waits. Raises Refused (TooManyRequests)."""
        if number not in self._by_id and len(self._by_id) >= MOST_WATCHERS:
            raise Refused(
                ServerError.TooManyRequests,
                f"this connection has {MOST_WATCHERS} watchers: close some, or connect again",
            )
        self._by_id[number] = None

    def set(self, number: int, watched: Watched) -> None:
        """Keep what a watcher was sent last; nothing if it was closed meanwhile."""
        if number in self._by_id:
            self._by_id[number] = watched

    def is_current(self, number: int, watched: Watched) -> bool:
        """Return whether a watcher still is the one that was listed."""
        return self._by_id.get(number) is watched

    def remove(self, number: int) -> None:
        """Close a watcher."""
        self._by_id.pop(number, None)

    def clear(self) -> None:
        """Close all."""
        self._by_id.clear()


class WatchingClient(Protocol):
    """A connection with watchers."""

    @property
    def watchers(self) -> Watchers: ...

    def send(self, response: WatchTopicUpdate) -> None: ...


class NamespaceWatch:
    """The lists of all namespaces that are watched. For one event loop."""

    def __init__(
        self, topics_of: Callable[[str], Awaitable[list[str]]], threads: Threads, now: Callable[[], float]
    ) -> None:
        """`topics_of`: lists a namespace, empty if it was deleted; `threads`: for matching; `now`: seconds."""
        self._topics_of = topics_of
        self._threads = threads
        self._now = now
        self._lists: dict[str, tuple[str, ...]] = {}
        self._next = 0.0

    async def notify(self, clients: Iterable[WatchingClient]) -> None:
        """Tell clients what has changed since they were told last."""
        started = self._now()
        if started < self._next:
            return
        watching = [(client, number, watched) for client in clients for number, watched in client.watchers.all]
        namespaces = {watched.namespace for _, _, watched in watching}
        for namespace in self._lists.keys() - namespaces:
            del self._lists[namespace]
        for namespace in namespaces:
            names = tuple(await self._topics_of(namespace))
            if names != self._lists.get(namespace):
                self._lists[namespace] = names
        matched: dict[tuple[str, str], Matches] = {}
        for client, number, watched in watching:
            names = self._lists[watched.namespace]
            if watched.names is names:
                continue
            key = watched.namespace, watched.pattern
            if key not in matched:
                matched[key] = await self._threads.run(Matches.of, watched.pattern, names)
            if client.watchers.is_current(number, watched):
                client.watchers.set(number, Watched(watched.namespace, watched.pattern, names, matched[key]))
                if matched[key] != watched.matches:
                    client.send(_update(number, set(watched.matches.topics), matched[key]))
        self._next = self._now() + _REST * (self._now() - started)


def _update(number: int, before: set[str], matches: Matches) -> WatchTopicUpdate:
    after = set(matches.topics)
    return WatchTopicUpdate(number, sorted(after - before), sorted(before - after), matches.hash)
