"""`compactor get`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit import exit_codes
from api.cli.kit.names import EncodingName, Topic
from api.cli.kit.stderr import say
from api.cli.kit.terminal import data_stream
from api.components import open_environment, open_topic
from storage.errors import InvalidInput
from storage.model import TopicName

if TYPE_CHECKING:
    from api.formats.text_encoding import TextEncoding
    from storage.model import Message


class MessageOutputName(StrEnum):
    """Output formats of one message."""

    JSONL = "jsonl"
    TABLE = "table"


def get_value(
    context: typer.Context,
    topic: Topic,
    key: Annotated[str, typer.Argument(metavar="KEY", help='The key; "" is a key like any other.')],
    output: Annotated[MessageOutputName, typer.Option(help="How the message is shown.")] = MessageOutputName.JSONL,
    key_encoding: Annotated[EncodingName, typer.Option(help="How KEY is given, and shown.")] = EncodingName.UTF8,
    value_encoding: Annotated[EncodingName, typer.Option(help="How the value is shown.")] = EncodingName.UTF8,
    sealed_only: Annotated[
        bool, typer.Option("--sealed-only", help="Leave out the newest messages, which are not sealed yet.")
    ] = False,
) -> None:
    """Show the newest value of one key.

    The key indexes of the compacted ledger and of what was appended since name it: a few small reads,
    whatever the topic's size. Exit code 8 if the key has no value: there is none, or it was deleted.
    """
    name = TopicName.parse(topic)
    from api.formats.text_encoding import TextEncoding

    encodings = TextEncoding(key_encoding.value), TextEncoding(value_encoding.value)
    wanted = _key_bytes(key, encodings[0])
    with open_environment(context.obj) as environment:
        message = open_topic(environment, name).get(wanted, sealed_only=sealed_only)
    if message is None:
        say(f"compactor: the key {key!r} of {name} has no value")
        raise typer.Exit(exit_codes.NO_VALUE)
    _print(message, output, *encodings)


def _key_bytes(key: str, encoding: TextEncoding) -> bytes:
    from api.formats.text_encoding import to_bytes

    try:
        return to_bytes(key, encoding)
    except ValueError as error:
        raise InvalidInput(f"the key is not of the given encoding: {error}", "see --key-encoding") from error


def _print(message: Message, output: MessageOutputName, key_encoding: TextEncoding, value: TextEncoding) -> None:
    if output is MessageOutputName.TABLE:
        from api.cli.local.read_command import print_messages

        print_messages([message], key_encoding, value)
        return
    from api.formats.jsonl import JsonLines

    stdout = data_stream()
    JsonLines(stdout, key_encoding, value).write(message)
    stdout.flush()
