"""`compactor produce`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from api.cli.kit.shared_arguments import KeyEncoding, Topic, ValueEncoding
from api.cli.kit.stderr import counted, discard_output, say
from api.cli.local.append_target import AppendTarget, lease_wait_reporter, with_file_name
from api.components import open_for_writing
from api.formats.text_encoding import TextEncoding, parse_key
from storage.errors import CompactorError, Unavailable
from storage.model import MessageId

if TYPE_CHECKING:
    from storage.log.group_commit import AppendOutcome
    from storage.log.segment import AppendResult


_REMEDY = "correct it and produce from there on; the lines before it, if any, were appended"


CompressionName = Literal["none", "lz4", "zlib", "zstd", "snappy"]
"""Compressions of entries: the names of `storage.ledger.rows.CompressionType`."""


def produce_messages(
    context: typer.Context,
    topic: Topic,
    file: Annotated[str, typer.Argument(metavar="FILE", help="JSON Lines; - is standard input.")] = "-",
    key: Annotated[str | None, typer.Option(metavar="K", help="The key of lines that have none.")] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, max=262_144, help="Maximum number of messages in an entry.")
    ] = 1,
    linger: Annotated[
        int, typer.Option(metavar="MS", min=1, help="Time that a batch that is not full waits for more lines.")
    ] = 100,
    compression: Annotated[CompressionName, typer.Option(help="Compression of entries.")] = "none",
    ids: Annotated[bool, typer.Option("--ids", help="Print the id of each message once it is acknowledged.")] = False,
    wait: Annotated[int, typer.Option(metavar="SECONDS", min=0, help="Time to wait for another writer.")] = 30,
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
) -> None:
    """Append messages to a topic's log, each line as it arrives.

    The topic's flush policy decides when messages are acknowledged: by default when they are flushed to disk. A missing
    topic is created. Full segments are sealed in the background.
    """
    from api.background.sealer_process import BackgroundSealer
    from api.formats.batch_container import BatchMessageContainer, rows_and_pauses
    from api.formats.inputs import check_file
    from api.formats.jsonl import read_json_lines
    from storage.errors import InvalidRecord
    from storage.ledger.rows import CompressionType

    default_key = None if key is None else parse_key(key, key_encoding)
    if file != "-":
        check_file(file)
    started = time.perf_counter()
    with (
        open_for_writing(context.obj) as environment,
        BackgroundSealer(context.obj, topic, say) as sealer,
        AppendTarget(environment, topic) as target,
    ):
        rows = read_json_lines(file, key_encoding, value_encoding, lambda _: _REMEDY, default_key)
        limit = environment.metadata.policies.effective(target.topic.record).max_message_bytes
        container = BatchMessageContainer(batch, limit, CompressionType[compression.upper()], environment.clock)
        produced = AppendReceipts(topic.partition, ids)
        is_complete = False
        try:
            with target.hold_writer(
                lambda opened: opened.append_log(wait * 1000, sealer.wake, on_held=lease_wait_reporter(wait))
            ) as log:
                for entry in container.encode_entries(rows_and_pauses(rows, linger / 1000) if batch > 1 else rows):
                    # No message may be appended after one that failed.
                    log.submit(entry, produced.add_outcome, produced.raise_first_error)
            produced.raise_first_error()
            is_complete = True
        except InvalidRecord as error:
            raise InvalidRecord(
                with_file_name(container.prefix_with_last_entry_lines(error.message), file), error.remedy
            ) from error
        finally:
            rest = "" if is_complete else f"; lines from {produced.messages + 1} on, if any, were not"
            seconds = time.perf_counter() - started
            say(f"{counted(produced.messages, 'message')} acknowledged in {seconds:.2f} s{rest}")


class AppendReceipts:
    """The receipts of appended entries. The log calls `add_outcome` in the order of the entries, from a thread of its
    own.

    `messages`: the number of messages that were acknowledged.
    """

    def __init__(self, partition: int, show_ids: bool) -> None:
        self.messages = 0
        self._partition = partition
        self._show_ids = show_ids
        self._error: CompactorError | None = None

    def add_outcome(self, answer: AppendOutcome) -> None:
        """Count the messages of an appended entry, and print their ids if requested; keep the first error for
        `raise_first_error`."""
        if isinstance(answer, CompactorError):
            self._error = self._error or answer
            return
        self.messages += answer.messages
        if self._show_ids:
            try:
                self._print_ids(answer)
            except OSError as error:  # the log accepts no errors from its callback, and continues
                self._show_ids = False
                discard_output()
                self._error = self._error or Unavailable(
                    f"the id of an acknowledged message cannot be printed, {error.strerror or error}",
                    "acknowledged messages are kept: see them with `compactor read`, then produce the lines after them",
                )

    def _print_ids(self, appended: AppendResult) -> None:
        first = appended.first.message_id
        for number in range(appended.messages):
            index = first.batch_index + number if first.batch_index >= 0 else -1
            print(MessageId(first.ledger_id, first.entry_id, self._partition, index), flush=True)  # noqa: T201

    def raise_first_error(self) -> None:
        """Raise the first error that the log answered, or that occurred while an id was printed."""
        if self._error is not None:
            raise self._error
