"""Transactions: functions of a connection hold the SQL, and stores bind them to a database.

    class RunStore(Store):
        get = reads(runs.get)      # runs.get(connection, run_id)
        fail = writes(runs.fail)   # runs.fail(connection, context, run, error)

    reads        what one statement sees
    snapshots    everything as of one moment, over several statements
    writes       all or nothing
    writes_once  as `writes`, for a change that must not count as failed when only the answer to its COMMIT was lost

A bound function is a method without its connection. A second parameter named `context` gets the time and the settings
of the transaction, so functions know no clock. Functions call each other with the connection that they were given.
Must not know: tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from sqlalchemy import Connection

from storage.clock import Clock
from storage.failpoints import Failpoint, failpoint
from storage.metadata.engine import Database

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Context:
    """The time and the settings of one transaction.

    `broker_defaults`: the broker's default policies by name (policy_store.py). `run_dead_ms`: the age of a heartbeat
    from which its run is dead.
    """

    clock: Clock
    broker_defaults: Mapping[str, object]
    run_dead_ms: int

    @cached_property
    def now(self) -> int:
        """The time of the transaction, in milliseconds since the Unix epoch; the same each time.

        The first access reads the clock. Read it after the locks of a function are held: by an earlier time, a lease
        that another process renewed meanwhile counts as one of a clock that was set back.
        """
        return self.clock.now_ms()


class Store:
    """Base of the stores of a MetadataStore, one per noun, whose methods are functions bound to the database.

    Safe to share between threads.
    """

    def __init__(
        self, database: Database, clock: Clock, broker_defaults: Mapping[str, object], run_dead_ms: int
    ) -> None:
        """Create a store of one noun. `broker_defaults`, `run_dead_ms`: see Context."""
        self._database = database
        self._clock = clock
        self.broker_defaults = broker_defaults
        self.run_dead_ms = run_dead_ms

    def _context(self) -> Context:
        """Return the context of a new transaction: the clock and the settings."""
        return Context(self._clock, self.broker_defaults, self.run_dead_ms)


class TransactionBinding:
    """A kind of transaction, as a decorator that makes a method of a store out of a function of a connection.

    `begin`: opens a transaction of this kind.
    """

    def __init__(self, begin: Callable[[Database], AbstractContextManager[Connection]]) -> None:
        self._begin = begin

    @overload
    def __call__(
        self, query: Callable[Concatenate[Connection, Context, Arguments], Answer]
    ) -> Callable[Concatenate[Store, Arguments], Answer]: ...

    @overload
    def __call__(
        self, query: Callable[Concatenate[Connection, Arguments], Answer]
    ) -> Callable[Concatenate[Store, Arguments], Answer]: ...

    def __call__(self, query: Callable[..., Answer]) -> Callable[..., Answer]:
        """Return the method that calls `query` in a transaction of its store's database."""
        called = _with_store_arguments(query)

        @wraps(query)
        def method(store: Store, *arguments: Any, **named: Any) -> Answer:
            with self._begin(store._database) as connection:
                return called(store, connection, *arguments, **named)

        return method


reads = TransactionBinding(lambda database: database.read())
snapshots = TransactionBinding(lambda database: database.snapshot())
writes = TransactionBinding(lambda database: database.write())


def writes_once(
    change: Callable[Concatenate[Connection, Context, Arguments], Answer],
    happened: Callable[Concatenate[Connection, Answer, Arguments], bool],
    question: Callable[Arguments, str],
    committed: Failpoint | None = None,
) -> Callable[Concatenate[Store, Arguments], Answer]:
    """Return a method that finds out by itself whether a COMMIT whose answer was lost has happened.

    `happened(connection, answer, ...)`: see Database.write_once. `question(...)`: the text for what is not known, as
    "whether ...". Both get the arguments of the method. `committed`: a failpoint after the COMMIT.
    """

    @wraps(change)
    def method(store: Store, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Answer:
        answer = store._database.write_once(
            lambda connection: change(connection, store._context(), *arguments, **named),
            lambda connection, answer: happened(connection, answer, *arguments, **named),
            question(*arguments, **named),
        )
        if committed is not None:
            failpoint(committed)
        return answer

    return method


def _with_store_arguments(query: Callable[..., Answer]) -> Callable[..., Answer]:
    """Return `query` as a function of a store, a connection and its other arguments; the store creates its context."""
    if "context" in signature(query).parameters:
        return lambda store, connection, *arguments, **named: query(connection, store._context(), *arguments, **named)
    return lambda _, connection, *arguments, **named: query(connection, *arguments, **named)
