"""Shares: an amount by name, such as the number of requests of each role. A name without an amount takes no memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)


class Shares(Counter[Name]):
    """The amounts of all names; 0 for a name without one. For one thread, or under the caller's lock."""

    def add(self, name: Name, amount: int) -> None:
        """Add to the amount of a name; a negative number is subtracted."""
        self[name] += amount
        if not self[name]:
            del self[name]

    @contextmanager
    def counting(self, name: Name) -> Iterator[None]:
        """Add 1 to the amount of a name inside the context."""
        self.add(name, 1)
        try:
            yield
        finally:
            self.add(name, -1)
