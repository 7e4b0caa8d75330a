"""Errors as Spark shows them: it prints the whole traceback above the message.

An error of this project says what happened and what to do, so its traceback and its causes are cut. Those of faults of
the program stay. The errors of the client are imported when an error is raised: tasks need no HTTP library to read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isfunction
from typing import Any, TypeVar

from storage.errors import CompactorError

Kind = TypeVar("Kind")


def brief_errors(kind: type[Kind]) -> type[Kind]:
    """Wrap the public methods of a class so that the project's own errors leave them without traceback and cause.

    Errors of iterators that the methods return are included. Decorator; returns the class.
    """
    for name, method in list(vars(kind).items()):
        if isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _with_brief_errors(method))
    return kind


def _with_brief_errors(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that does the same, and raises errors of the project without traceback and cause."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            result = method(*arguments, **named)
        except Exception as error:
            if not _is_explained(error):
                raise
            raise error.with_traceback(None) from None
        return _iterate_with_brief_errors(result) if isinstance(result, Iterator) else result

    return call


def _iterate_with_brief_errors(rows: Iterator[Any]) -> Iterator[Any]:
    """Yield all items of an iterator, and raise errors of the project without traceback and cause."""
    try:
        yield from rows
    except Exception as error:
        if not _is_explained(error):
            raise
        raise error.with_traceback(None) from None


def _is_explained(error: Exception) -> bool:
    """Return whether an error is one of this project, which states what happened and what to do."""
    if isinstance(error, CompactorError):
        return True
    from compactor.client.errors import ClientError

    return isinstance(error, ClientError)
