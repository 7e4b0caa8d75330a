"""Errors as Spark shows them: it prints the whole traceback above the message.

An error of this project says what happened and what to do, so its traceback and its causes are cut. Those of faults of
the program stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar

from compactor.client.errors import ClientError
from storage.errors import CompactorError

Kind = TypeVar("Kind")
_EXPLAINED = (CompactorError, ClientError)


def brief_errors(kind: type[Kind]) -> type[Kind]:
    """Cut the tracebacks of errors that leave the public methods of a class, also while an iterator of theirs runs."""
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _brief(method))
    return kind


def _brief(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            result = method(*arguments, **named)
        except _EXPLAINED as error:
            raise error.with_traceback(None) from None
        return _briefly(result) if isinstance(result, Iterator) else result

    return call


def _briefly(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except _EXPLAINED as error:
        raise error.with_traceback(None) from None
