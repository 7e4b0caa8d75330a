"""Listeners at failpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from storage import failpoints
from storage.failpoints import Failpoint


@contextmanager
def observed(listener: Callable[[Failpoint], object]) -> Iterator[None]:
    """Call `listener` at each step of this process, in the thread that reached it, inside the context.

    Contexts nest, and must not be entered from several threads at once.
    """
    before = failpoints.listeners
    failpoints.listeners = (*before, listener)
    try:
        yield
    finally:
        failpoints.listeners = before
