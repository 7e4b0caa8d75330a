"""Bounds of a test that tries many examples: it ends with its examples or its seconds.

`make test` and CI have seconds, so that both end in time on a slow machine too; `make soak` has none, and tries every
example. At least `LEAST` examples are tried in any case.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable

import pytest

IN_CI = os.environ.get("CI") == "true"
IN_SOAK = os.environ.get("COMPACTOR_SOAK") == "true"
LEAST = 10


def within(fast: float, ci: float) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Below `given`: leave out the examples that begin later than that many seconds after the first.

    An example that fails ends the budget, so that hypothesis can make it smaller.
    """
    seconds = ci if IN_CI else fast

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        deadlines: list[float] = []
        tried = 0
        failed = IN_SOAK

        @functools.wraps(test)
        def run(*args: object, **kwargs: object) -> None:
            nonlocal tried, failed
            if not deadlines:
                deadlines.append(time.monotonic() + seconds)
            if not failed and tried >= LEAST and time.monotonic() > deadlines[0]:
                return
            tried += 1
            try:
                test(*args, **kwargs)
            except BaseException:
                failed = True
                raise

        return pytest.mark.budgeted(run)

    return decorate
