"""`compactor log dump`, `compactor log seal` and `compactor topics roll`: inspection and maintenance of the log."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.kit import exit_codes
from api.cli.kit.failures import report_error
from api.cli.kit.shared_arguments import TOPIC_HELP, KeyEncoding, Topic, ValueEncoding
from api.cli.kit.stderr import counted, say
from api.cli.kit.terminal import json_lines_stdout, print_line
from api.cli.local.opening import open_topic
from api.components import open_existing_for_writing, open_for_reading
from api.formats.text_encoding import TextEncoding, to_text
from api.observability.error_text import text_if_error
from storage.errors import CompactorError, DataLoss, ErrorText, InvalidInput, Misconfigured, NotFound
from storage.model import TopicName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from storage.environment import Environment
    from storage.log.segment_dump import ScannedFrame
    from storage.metadata.records import SegmentRecord, TopicRecord
    from storage.model import LedgerRecord, Message
    from storage.topic import Topic as OpenTopic

Line = dict[str, Any]


def dump_log(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="SEGMENT|LEDGER", help="A segment's file, or the id of a ledger.")],
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Omit values and properties.")] = False,
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
) -> None:
    """Show the content of a segment or sealed ledger as JSON lines, one for each message and each damaged range.

    Changes nothing. Ends with exit code 7 if the segment or ledger is damaged.
    """
    document = partial(_message_document, keys_only=keys_only, key_encoding=key_encoding, value_encoding=value_encoding)
    if not (what.isascii() and what.isdigit() and len(what) < 20):
        good = _print_lines_and_check_intact(_segment_lines(Path(what), -1), document)
    else:
        with open_for_reading(context.obj) as environment:
            topic, extent = _find_extent(environment, int(what))
            good = _print_lines_and_check_intact(_extent_lines(environment, topic, extent), document)
    if not good:
        raise typer.Exit(exit_codes.DATA_LOSS)


def seal_segments(
    context: typer.Context,
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help=f"All, if none. {TOPIC_HELP}")] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Seal the readable part of damaged and lost segments; the rest is lost."),
    ] = False,
) -> None:
    """Seal rolled segments into ledgers, and remove the files of segments that were sealed long enough ago.

    Without a TOPIC, open segments that are older than segment.ms and have no writer are rolled and sealed, too. A
    segment that is damaged, or whose sealing was abandoned because it took too much memory, is skipped: the others are
    sealed, then the command fails. With a TOPIC, its abandoned segments are tried again.
    """
    names = [TopicName.parse(topic) for topic in topics or []]
    if accept_loss and not names:
        raise InvalidInput("--accept-loss needs the name of a topic", "name the TOPIC with the damaged segment")
    with open_existing_for_writing(context.obj) as environment:
        from storage.log.log_manager import LogManager
        from storage.metadata.records import SegmentState

        failing: dict[str, ErrorText] = {}
        if not names:
            LogManager(environment).roll_old_segments(failing)
        for topic_name, reason in failing.items():
            say(f"{topic_name} cannot be rolled: {text_if_error(reason)}")
        opened = [open_topic(environment, name) for name in names] or [
            open_topic(environment, record.name)
            for record in environment.metadata.segments.topics_with_segments([SegmentState.ROLLED, SegmentState.SEALED])
        ]
        remaining: list[CompactorError] = []
        for topic in opened:
            try:
                _seal_rolled_segments(topic, accept_loss, retry_abandoned=bool(names))
            except (DataLoss, Misconfigured) as error:
                remaining.append(error)
        if opened:
            removed = sum(topic.log_manager().remove_sealed_files(topic.record) for topic in opened)
            say(f"{counted(removed, 'segment file')} removed")
        for problem in remaining[1:]:
            report_error(problem)
        if remaining:
            raise remaining[0]
        for topic in opened if names else []:
            for unsealed in topic.log_manager().rolled_segments(topic.record)[:1]:
                environment.log.check_is_local(topic.name, unsealed)


def _seal_rolled_segments(topic: OpenTopic, accept_loss: bool, *, retry_abandoned: bool = False) -> None:
    """Seal the rolled segments of a topic, and report it. `retry_abandoned`: also segments whose sealing was abandoned.

    Raises DataLoss, Misconfigured.
    """
    if accept_loss:
        for remains in topic.log_manager().seal_accepting_loss(topic.record):
            _report_sealed(topic, remains.ledger, remains.lost)
        return
    for ledger in topic.log_manager().seal(topic.record, retry_abandoned=retry_abandoned):
        _report_sealed(topic, ledger)


def _report_sealed(topic: OpenTopic, ledger: LedgerRecord, lost: int = 0) -> None:
    messages = counted(ledger.messages - lost, "message")
    loss = f", {counted(lost, 'message')} lost" if lost else ""
    say(f"{topic.name}: segment {ledger.ledger_id} sealed, {messages}{loss}")


def roll_topic(
    context: typer.Context,
    topic: Topic,
    seal: Annotated[bool, typer.Option("--seal", help="Also seal the rolled segments.")] = False,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Also a damaged one, and seal its readable part; the rest is lost."),
    ] = False,
) -> None:
    """Close the topic's open segment; an active writer continues in a new one."""
    with open_existing_for_writing(context.obj) as environment:
        opened = open_topic(environment, topic)
        log_manager = opened.log_manager()
        log_manager.roll(opened.record, accept_loss=accept_loss)
        before = len(log_manager.rolled_segments(opened.record))
        if seal or accept_loss:
            _seal_rolled_segments(opened, accept_loss)
        waiting = len(log_manager.rolled_segments(opened.record))
    result = f", {counted(before - waiting, 'segment')} sealed" if seal or accept_loss else ""
    print_line(f"Topic {opened.name} rolled{result}, {counted(waiting, 'segment')} to be sealed")


def _find_extent(environment: Environment, ledger_id: int) -> tuple[TopicRecord, LedgerRecord | SegmentRecord]:
    """Return the topic and the raw ledger or unsealed segment with an id. Raises NotFound."""
    from storage.metadata.records import SegmentState

    for topic in environment.metadata.topics.all():
        for ledger in environment.metadata.ledgers.of_topic(topic.id):
            if ledger.ledger_id == ledger_id:
                return topic, ledger
        for segment in environment.metadata.segments.of_topic(topic.id):
            if segment.ledger_id == ledger_id and segment.state is not SegmentState.SEALED:
                return topic, segment
    raise NotFound(f"there is no raw ledger {ledger_id}", "see `compactor topics stats`, or give a segment's file")


def _extent_lines(environment: Environment, topic: TopicRecord, extent: LedgerRecord | SegmentRecord) -> Iterator[Line]:
    from storage.log.segment import SegmentPaths
    from storage.model import LedgerRecord

    if isinstance(extent, LedgerRecord):
        return _ledger_lines(environment, topic, extent)
    environment.log.check_is_local(topic.name, extent)
    file = SegmentPaths(environment.log.topic_folder(topic.uid), extent.first_offset).log
    return _segment_lines(file, topic.name.partition)


def _segment_lines(file: Path, partition: int) -> Iterator[Line]:
    from storage.log.segment_dump import SegmentScan

    if not file.is_file():
        raise InvalidInput(
            f"{file} is neither a segment's file nor a ledger's id", "give the path of a .log file, or an id"
        )
    with SegmentScan(file) as scanned:
        header = scanned.header
        say(f"{file}: " + (f"ledger {header.ledger_id} from offset {header.first_offset}" if header else "no header"))
        if scanned.problem:
            yield {"position": 0, "frame": "damaged", "problem": scanned.problem}
        for frame in scanned.frames():
            yield from _frame_lines(frame, header.ledger_id if header else -1, partition)


def _frame_lines(frame: ScannedFrame, ledger_id: int, partition: int) -> Iterator[Line]:
    """Yield a line for each message of a frame; without ids if the frame's position in the topic is unknown."""
    from storage.entries.decode import StoredEntry, unpack

    place: Line = {"position": frame.position, "length": frame.length, "frame": frame.state.value}
    if frame.data is None or frame.header is None:
        yield place | {"problem": frame.problem}
        return
    placed = frame.entry_id is not None and frame.offset is not None
    entry = StoredEntry(frame.entry_id or 0, frame.offset or 0, frame.data, frame.header)
    for message, slot in _messages_with_row_types(unpack([entry], ledger_id), partition):
        if not placed:
            message = replace(message, offset=-1)
        yield place | {"slot": slot, "message": message}


def _ledger_lines(environment: Environment, topic: TopicRecord, ledger: LedgerRecord) -> Iterator[Line]:
    from storage.ledger.rows_file import RowsReader

    try:
        reader = RowsReader(environment.store, ledger.rows_object)
        groups = reader.groups
    except DataLoss as error:
        yield {"object": ledger.rows.name, "frame": "damaged", "problem": error.message}
        return
    for number, group in enumerate(groups):
        place: Line = {"row_group": number, "position": group.start, "length": group.end - group.start}
        try:
            table = reader.read(number)
        except DataLoss as error:
            yield place | {"frame": "damaged", "first_offset": group.first_offset, "problem": error.message}
            continue
        for message, slot in _messages_with_row_types(table, topic.name.partition):
            yield place | {"frame": "ok", "slot": slot, "message": message}


def _messages_with_row_types(table: pa.Table, partition: int) -> Iterator[tuple[Message, str]]:
    """Yield each row as a message, with the name of its row type."""
    from storage.entries.chunk_assembler import row_messages
    from storage.ledger.rows import RowType

    slots = table.column("slot").to_pylist()
    for message, slot in zip(row_messages(iter(table.to_batches()), partition), slots, strict=True):
        yield message, RowType(slot).name.lower()


def _print_lines_and_check_intact(lines: Iterator[Line], document: Callable[[Message], Line]) -> bool:
    """Print all lines as JSON, with the fields of their messages. Return whether no line reports damage."""
    import msgspec

    encode: Callable[[Line], bytes] = msgspec.json.Encoder().encode
    good, output = True, json_lines_stdout()
    for line in lines:
        good = good and line["frame"] == "ok"
        message = line.pop("message", None)
        output.write(encode(line if message is None else line | document(message)) + b"\n")
    output.flush()
    return good


def _message_document(
    message: Message, keys_only: bool, key_encoding: TextEncoding, value_encoding: TextEncoding
) -> Line:
    has_id = message.offset >= 0
    document: Line = {
        "message_id": str(message.message_id) if has_id else None,
        "offset": message.offset if has_id else None,
        "key": _escaped_text(message.key, key_encoding),
        "publish_time": message.publish_time,
    }
    if not keys_only:
        document["value"] = _escaped_text(message.payload, value_encoding)
        document["properties"] = dict(message.properties)
    return document


def _escaped_text(data: bytes | None, encoding: TextEncoding) -> str | None:
    """Return bytes as text; bytes that are not UTF-8 are escaped, because a dump must not fail."""
    if data is None:
        return None
    return to_text(data, encoding) if encoding is TextEncoding.BASE64 else data.decode(errors="backslashreplace")
