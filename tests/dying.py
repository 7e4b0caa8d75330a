"""A process that dies at a step, played by an exception that nobody catches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from storage.failpoints import Failpoint, observed


class _Died(BaseException):
    pass


@contextmanager
def dying_at(step: Failpoint) -> Iterator[None]:
    """What is done inside must come to `step`, and gets no further."""

    def die(failpoint: Failpoint) -> None:
        if failpoint is step:
            raise _Died

    with observed(die), pytest.raises(_Died):
        yield
