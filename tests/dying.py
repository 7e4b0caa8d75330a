"""A process that dies at a step, in the form of an exception that no code catches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from storage.failpoints import Failpoint
from tests.failpoint_listeners import observed


class _Died(BaseException):
    pass


@contextmanager
def dying_at(step: Failpoint) -> Iterator[None]:
    """Require that the code inside reaches `step`, and end it there."""

    def die(failpoint: Failpoint) -> None:
        if failpoint is step:
            raise _Died

    with observed(die), pytest.raises(_Died):
        yield
