"""`compactor-admin topics produce`, `read` and `get-key`: messages as JSON Lines, over REST."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Annotated, Literal, NoReturn

import typer

from api.cli.admin.requests import Command
from api.cli.admin.session import session_of, topic_path
from api.cli.kit import exit_codes
from api.cli.kit.quantity_parsers import size_option
from api.cli.kit.shared_arguments import (
    START_HELP,
    START_PLACES,
    KeyEncoding,
    ReadCompacted,
    Reset,
    SealedOnly,
    TypedTopic,
    ValueEncoding,
)
from api.cli.kit.stderr import counted, say
from api.cli.kit.terminal import json_lines_stdout, print_line
from api.formats.text_encoding import TextEncoding
from storage.errors import InvalidInput, NotFound

_LINES_AT_ONCE = 1000
_BYTES_AT_ONCE = 1 << 20
_JSON_LINES = "application/x-ndjson"
_ARROW = "application/vnd.apache.arrow.stream"
_RETRY = 1
"""The error code of a message that the service may accept later."""
_NAMED = 20
"""The most refused lines that an error names."""
_LINE = re.compile(r"line (\d{1,9})(?=: )")


def produce_messages(
    context: typer.Context,
    topic: TypedTopic,
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="JSON Lines; -: standard input.")] = "-",
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    ids: Annotated[bool, typer.Option("--ids", help="Print the id of each message.")] = False,
) -> None:
    """Append messages, one per line, in the form of `compactor produce`.

    Messages that were acknowledged before an error stay. stderr reports their number, the refused lines, and the line
    to continue from.
    """
    admin = session_of(context)
    query = {"keyEncoding": key_encoding, "valueEncoding": value_encoding}
    path = topic_path(topic).replace("/admin/v2/", "/topics/", 1)
    acknowledged, rest = 0, 1
    is_complete = False
    opened = _open_input(file)
    try:
        with opened as lines:
            for first, batch in _batches_by_first_line(lines):
                with (
                    _convert_line_numbers(first),
                    admin.service.stream(
                        "POST", path, query, content=iter([batch]), Content_Type=_JSON_LINES
                    ) as answer,
                ):
                    answer.read()
                results = list(enumerate(answer.json()["messagePublishResults"], first))
                refused = [(line, result) for line, result in results if result.get("errorCode")]
                acknowledged += len(results) - len(refused)
                rest = first + len(results)
                if ids:
                    for _, result in results:
                        if not result.get("errorCode"):
                            print_line(result["messageId"])
                if refused:
                    _exit_with_refusals(refused)
        is_complete = True
    finally:
        unsent = "" if is_complete else f"; lines from {rest} on, if any, were not"
        admin.report_change(f"{counted(acknowledged, 'message')} of {topic} acknowledged{unsent}")


def read_messages(
    context: typer.Context,
    topic: TypedTopic,
    read_compacted: ReadCompacted = False,
    start: Annotated[str, typer.Option("--from", "--start", metavar=START_PLACES, help=START_HELP)] = "earliest",
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most this many messages.")] = None,
    max_bytes: Annotated[int | None, size_option("--max-bytes", "At most this many bytes: 64M.")] = None,
    reset: Reset = "earliest",
    format_: Annotated[
        Literal["jsonl", "arrow"], typer.Option("--format", help="JSON Lines, or an Arrow stream.")
    ] = "jsonl",
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
) -> None:
    """Read a topic up to its current end, to standard output."""
    admin = session_of(context)
    query = {
        "stream": True,
        "readCompacted": read_compacted,
        "start": start,
        "limit": limit,
        "maxBytes": max_bytes,
        "reset": reset,
        "keyEncoding": key_encoding,
        "valueEncoding": value_encoding,
    }
    kind = _ARROW if format_ == "arrow" else _JSON_LINES
    with admin.service.stream("GET", topic_path(topic, "messages"), query, Accept=kind) as answer:
        output = json_lines_stdout()
        for piece in answer.iter_bytes():
            output.write(piece)


def show_newest_value(
    context: typer.Context,
    topic: TypedTopic,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key.")],
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    sealed_only: SealedOnly = False,
) -> None:
    """Show the value of a key's newest message; with JSON output, the message.

    Ends with exit code 8 if the key has no value.
    """
    admin = session_of(context)
    encodings = {"keyEncoding": key_encoding, "valueEncoding": value_encoding}
    try:
        answer = admin.service.get(topic_path(topic, "key"), key=key, sealedOnly=sealed_only or None, **encodings)
    except NotFound:
        admin.service.get(topic_path(topic, "partitions"))  # an error if the topic itself does not exist
        say(f"compactor-admin: the key {key!r} of {topic} has no value")
        raise typer.Exit(exit_codes.NO_VALUE) from None
    if admin.as_json:
        admin.show(answer)
    else:
        print_line(answer["value"] or "")


def _open_input(file: str) -> IO[bytes]:
    if file != "-":
        try:
            return open(file, "rb")
        except OSError as error:
            raise InvalidInput(f"{file} cannot be read ({error.strerror})", "name a file of JSON Lines") from error
    if sys.stdin is None or sys.stdin.closed:
        raise InvalidInput("there is no standard input", "name a file")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _batches_by_first_line(lines: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Group lines into request bodies of bounded size. Yield each body with the number of its first line."""
    gathered: list[bytes] = []
    size, first = 0, 1
    for at, line in enumerate(lines, 1):
        gathered.append(line)
        size += len(line)
        if len(gathered) == _LINES_AT_ONCE or size >= _BYTES_AT_ONCE:
            yield first, b"".join(gathered)
            gathered, size, first = [], 0, at + 1
    if gathered:
        yield first, b"".join(gathered)


@contextmanager
def _convert_line_numbers(first: int) -> Iterator[None]:
    """Convert the line numbers of errors to those of the file: the service counts each request's lines from 1.

    `first`: the number of the request's first line. Nothing of that request was appended; the requests before it were.
    """
    try:
        yield
    except InvalidInput as error:
        match = _LINE.match(error.message)
        if match is None or first == 1:
            raise
        line = f"line {first + int(match[1]) - 1}{error.message[match.end() :]}"
        raise InvalidInput(line, f"correct it; the lines before line {first} were appended") from error


def _exit_with_refusals(refused: Sequence[tuple[int, Mapping[str, object]]]) -> NoReturn:
    """Report the refused messages by their lines, and exit; the other messages of the request are appended."""
    (line, result), *further = refused
    text = f"line {line} was refused: {' '.join(str(result.get('errorMsg')).split())}"
    if further:
        numbers = ", ".join(str(at) for at, _ in further[:_NAMED])
        more = f" and {len(further) - _NAMED:,} more" if len(further) > _NAMED else ""
        text += f"; so were lines {numbers}{more}"
    say(f"compactor-admin: {text}")
    retry = all(result.get("errorCode") == _RETRY for _, result in refused)
    raise typer.Exit(exit_codes.UNAVAILABLE if retry else exit_codes.INVALID_INPUT)


OF_TOPICS: Mapping[str, Command] = {"produce": produce_messages, "read": read_messages, "get-key": show_newest_value}
