"""Shares: an amount by name, such as the number of requests of each role. A name without an amount takes no memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


class Shares(Counter[Name]):
    """A counter of amounts by name, such as the requests of each role; 0 for an absent name. Not thread-safe."""

    def add(self, name: Name, amount: int) -> None:
        """Add `amount`, which may be negative, to the amount of a name; remove a name whose amount is 0."""
        self[name] += amount
        if not self[name]:
            del self[name]

    @contextmanager
    def counting(self, name: Name) -> Iterator[None]:
        """Add 1 to the amount of a name during the context, and subtract it at the end."""
        self.add(name, 1)
        try:
            yield
        finally:
            self.add(name, -1)
