"""Calls that run ahead of their caller, in order and a bounded number of them.

For requests that wait for an answer, and for work that another core can do meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def run_ahead(calls: Iterable[Callable[[], Result]], ahead: int) -> Iterator[Result]:
    """Yield the results of `calls`, in order. Up to `ahead` calls run, or have run, beside the result that is in use.

    `ahead` 0: each call runs when its result is asked for, in the thread of the caller; 1: the calls follow each other
    in another thread. An error of a call is raised in its place, after those that run have ended; no other call begins.
    If the caller stops before the end, calls that run may end later.
    """
    if ahead == 0:
        for call in calls:
            yield call()
        return
    running: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(ahead, "ahead")
    waits = True
    try:
        for call in calls:
            running.append(pool.submit(call))
            if len(running) > ahead:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    except GeneratorExit:
        waits = False  # the garbage collector may be the caller, in a thread that holds a lock of the interpreter
        raise
    finally:
        pool.shutdown(waits, cancel_futures=True)
