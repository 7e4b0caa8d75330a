"""`compactor import`."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Self, TypeVar

import typer

from api.cli.kit.quantity_parsers import parse_bytes
from api.cli.kit.shared_arguments import KeyEncoding, Topic, ValueEncoding
from api.cli.kit.stderr import counted, say, say_created, size
from api.components import open_for_writing
from api.formats.inputs import InputFormat, read_messages
from api.formats.text_encoding import TextEncoding
from storage.errors import CompactorError, InvalidRecord, NotFound, TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyarrow import Table

    from storage.environment import Environment
    from storage.errors import LeaseHeld
    from storage.log.bulk_append import BulkAppendResult
    from storage.model import TopicName
    from storage.topic import Topic as OpenTopic


Writer = TypeVar("Writer")

WAIT_SECONDS = 30
"""Maximum wait for another writer, in seconds."""


def with_file_name(message: str, file: str) -> str:
    """Return a message about a file with the file's name in front, unless the message contains it. `file` `-`: standard
    input."""
    name = "standard input" if file == "-" else file
    return message if name in message else f"{name}: {message}"


class AppendTarget:
    """The topic that a command appends to: created if it does not exist. A context manager.

    At its end it reports the creation. After a failure it deletes a topic that it created and that was not used, and
    reports what stays: the topic if it was used, else a tenant and namespace that were created with it.
    """

    def __init__(self, environment: Environment, name: TopicName) -> None:
        """Raises Unavailable or Conflict if the topic's backlog exceeds a quota that refuses producers, InvalidInput
        for a partition that its partitioned topic does not have."""
        self._environment = environment
        self._name = name
        self._created_scopes = _missing_scopes(environment, name)
        self._open()

    def _open(self) -> None:
        from api.broker import names
        from compactor.maintenance.backlog_limits import BacklogLimits
        from storage.topic import Topic as OpenTopic

        existing = self._environment.metadata.topics.by_names([self._name]).get(self._name)
        record = existing or names.ensure_with_namespace(self._environment, self._name)
        self._is_new = existing is None
        BacklogLimits(self._environment).check(record)
        self.topic = OpenTopic(self._environment, record)

    @contextmanager
    def writing(self, open_writer: Callable[[OpenTopic], AbstractContextManager[Writer]]) -> Iterator[Writer]:
        """Hold the writer of the topic inside the context. `open_writer`: waits for the topic's lease.

        A topic that was deleted before the writer had its lease is created again: a failed command that created the
        topic deletes it, also while others wait for its lease.
        """
        with ExitStack() as stack:
            while True:
                try:
                    writer = stack.enter_context(open_writer(self.topic))
                    break
                except TopicNotFound:
                    self._open()
            yield writer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if not self._is_new:
            return
        if failure is None or not self._delete_unused():
            say_created(self._name)
        elif self._created_scopes:
            say(f"The {' and the '.join(self._created_scopes)} did not exist: created, and kept after the failure")

    def _delete_unused(self) -> bool:
        """Delete the topic if it was not used. Return whether it does not exist any more; the caller reports it if
        it does."""
        try:
            return self._environment.metadata.tenancy.delete_unused_topic(self.topic.record.id)
        except CompactorError:
            return False


def _missing_scopes(environment: Environment, name: TopicName) -> list[str]:
    """Return the tenant and namespace of a topic, as texts, as far as they do not exist."""
    tenancy, namespace = environment.metadata.tenancy, f"{name.tenant}/{name.namespace}"
    missing = []
    for scope, find in (
        (f"tenant {name.tenant}", lambda: tenancy.tenant(name.tenant)),
        (f"namespace {namespace}", lambda: tenancy.namespace(namespace)),
    ):
        try:
            find()
        except NotFound:
            missing.append(scope)
    return missing


def lease_wait_reporter(max_seconds: int) -> Callable[[LeaseHeld], object]:
    """Return a callback that reports that another writer has the topic. `max_seconds`: the longest wait, for the
    message."""
    return lambda held: say(f"compactor: {held.message}: waiting for it to end, for {max_seconds} s at most")


def import_files(
    context: typer.Context,
    topic: Topic,
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Files to import, in order; - is standard input.")],
    input_format: Annotated[
        InputFormat | None,
        typer.Option(help="Format of the files. [default: parquet for names that end in .parquet, else jsonl]"),
    ] = None,
    ledger_size: Annotated[
        str, typer.Option(metavar="BYTES", help="Logical bytes per ledger; K, M and G are allowed.")
    ] = "128M",
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
) -> None:
    """Append files to a topic.

    They become sealed ledgers, each file as a whole or not at all; a missing topic is created. JSON Lines
    may be compressed by gzip.
    """
    ledger_bytes = parse_bytes("--ledger-size", ledger_size, least=1)
    sources = [(file, read_messages(file, input_format, key_encoding, value_encoding)) for file in files]
    with (
        open_for_writing(context.obj) as environment,
        AppendTarget(environment, topic) as target,
        target.writing(lambda opened: _writer(opened, ledger_bytes)) as append,
    ):
        for file, tables in sources:
            started = time.perf_counter()
            try:
                appended = append(tables)
            except InvalidRecord as error:
                raise InvalidRecord(with_file_name(error.message, file), error.remedy) from error
            seconds = time.perf_counter() - started
            say(
                f"{'standard input' if file == '-' else file}: {counted(appended.messages, 'message')}, "
                f"{size(appended.logical_bytes)} in {counted(len(appended.ledgers), 'ledger')} "
                f"({size(appended.stored_bytes)} stored) in {seconds:.2f} s"
            )


@contextmanager
def _writer(topic: OpenTopic, ledger_bytes: int) -> Iterator[Callable[[Iterable[Table]], BulkAppendResult]]:
    """Hold the topic's lease inside the context; yield the function that appends a file's messages under it."""
    writer = topic.bulk_append(
        ledger_bytes=ledger_bytes, wait_ms=WAIT_SECONDS * 1000, on_held=lease_wait_reporter(WAIT_SECONDS)
    )
    with writer.lease() as lease:
        yield lambda tables: writer.append_under(lease, tables)
