"""Bounds of a test that tries many examples: it ends with its examples or its seconds.

`make test` and CI have seconds, so that both end in time on a slow machine too; `make soak` has none, and tries every
example. At least `LEAST` examples are tried in any case.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis.errors import FlakyStrategyDefinition

IN_CI = os.environ.get("CI") == "true"
IN_SOAK = os.environ.get("COMPACTOR_SOAK") == "true"
LEAST = 5
SPARK_EXAMPLES = 12 if IN_SOAK else 2
"""The examples of a property that is tried on Spark, too: each takes seconds there."""


def examples(count: int) -> int:
    """Return how many of a property's examples are tried: in CI, which draws the same ones each time, a third.

    `make test`, which draws others each time, tries a half.
    """
    return -(-count // (3 if IN_CI else 1 if IN_SOAK else 2))


class _OutOfTime(pytest.skip.Exception):
    """The end of a budget. A skip, since hypothesis draws no example after one; `within` takes it for a pass."""


def within(fast: float, ci: float) -> Callable[[Any], Any]:
    """Above `given`: begin no example later than that many seconds after the first.

    An example that fails ends the budget, so that hypothesis can make it smaller.
    """
    seconds = ci if IN_CI else fast

    def decorate(test: Any) -> Any:
        example = test.hypothesis.inner_test
        deadlines: list[float] = []
        tried = 0
        failed = IN_SOAK
        is_over = False

        @functools.wraps(example)
        def run(*args: object, **kwargs: object) -> None:
            nonlocal tried, failed, is_over
            if not deadlines:
                deadlines.append(time.monotonic() + seconds)
            if not failed and tried >= LEAST and time.monotonic() > deadlines[0]:
                is_over = True
                raise _OutOfTime(f"{tried} examples")
            tried += 1
            try:
                example(*args, **kwargs)
            except BaseException:
                failed = True
                raise

        @functools.wraps(test)
        def bounded(*args: object, **kwargs: object) -> None:
            try:
                test(*args, **kwargs)
            except _OutOfTime:
                pass
            except FlakyStrategyDefinition:  # an example that was not begun drew nothing, where an earlier one did
                if not is_over or failed:
                    raise

        test.hypothesis.inner_test = run
        return pytest.mark.budgeted(bounded)

    return decorate
