"""`compactor import`."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from api.cli.kit.quantity_parsers import parse_bytes
from api.cli.kit.shared_arguments import KeyEncoding, Topic, ValueEncoding
from api.cli.kit.stderr import counted, say, say_created, size
from api.components import open_for_writing
from api.formats.inputs import InputFormat, read_messages
from api.formats.text_encoding import TextEncoding
from storage.errors import CompactorError, InvalidRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from storage.environment import Environment
    from storage.errors import LeaseHeld
    from storage.model import TopicName
    from storage.topic import Topic as OpenTopic


WAIT_SECONDS = 30
"""Maximum wait for another writer, in seconds."""


class AppendTarget(NamedTuple):
    """A topic to append to. `is_new`: it did not exist before."""

    topic: OpenTopic
    is_new: bool


def with_file_name(message: str, file: str) -> str:
    """Return a message about a file with the file's name in front, unless the message contains it. `file` `-`: standard
    input."""
    name = "standard input" if file == "-" else file
    return message if name in message else f"{name}: {message}"


def open_to_append(environment: Environment, name: TopicName) -> AppendTarget:
    """Return a topic, which is created if it does not exist.

    Raise Unavailable or Conflict if the topic's backlog exceeds a quota that refuses producers, InvalidInput for a
    partition that its partitioned topic does not have.
    """
    from api.broker import names
    from compactor.maintenance.backlog_limits import BacklogLimits
    from storage.topic import Topic as OpenTopic

    existing = environment.metadata.topics.by_names([name]).get(name)
    record = existing or names.ensure_with_namespace(environment, name)
    BacklogLimits(environment).check(record)
    return AppendTarget(OpenTopic(environment, record), existing is None)


@contextmanager
def reporting_creation(environment: Environment, topic: OpenTopic, is_new: bool) -> Iterator[None]:
    """Report at the end that the command created the topic. After a failure the topic is removed again if it holds
    nothing, and reported if it does.

    `is_new`: the command created it.
    """
    try:
        yield
    except BaseException:
        if is_new and not _remove_unused(environment, topic):
            say_created(topic.name)
        raise
    if is_new:
        say_created(topic.name)


def _remove_unused(environment: Environment, topic: OpenTopic) -> bool:
    """Delete the topic if it holds nothing. Return whether it is gone; the caller reports it if not."""
    try:
        return environment.metadata.tenancy.delete_unused_topic(topic.record.id)
    except CompactorError:
        return False


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
    with open_for_writing(context.obj) as environment:
        sources = [(file, read_messages(file, input_format, key_encoding, value_encoding)) for file in files]
        opened, is_new = open_to_append(environment, topic)
        with reporting_creation(environment, opened, is_new):
            writer = opened.bulk_append(
                ledger_bytes=ledger_bytes, wait_ms=WAIT_SECONDS * 1000, on_held=lease_wait_reporter(WAIT_SECONDS)
            )
            for file, tables in sources:
                started = time.perf_counter()
                try:
                    appended = writer.append(tables)
                except InvalidRecord as error:
                    raise InvalidRecord(with_file_name(error.message, file), error.remedy) from error
                seconds = time.perf_counter() - started
                say(
                    f"{'standard input' if file == '-' else file}: {counted(appended.messages, 'message')}, "
                    f"{size(appended.logical_bytes)} in {counted(len(appended.ledgers), 'ledger')} "
                    f"({size(appended.stored_bytes)} stored) in {seconds:.2f} s"
                )
