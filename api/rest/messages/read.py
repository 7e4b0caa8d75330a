"""Reading a topic over REST: pages, or all of it as one stream, as JSON Lines or as an Arrow stream.

A page holds at most the messages and bytes that were asked for (R10), and at least one message if there is one; the
header `X-Compactor-Next` is the `start` of the next page, which any service can give.
Going on so keeps R7: no id twice, and no deletion missed without an error. With `stream=true` everything up to the
present end comes in one answer, from any start, also one of a page; an error in the middle breaks the connection, so
that it is not mistaken for the end. With `token=true` a stream ends with the `start` of the next read, which only then
is known.

JSON Lines are the same objects as `compactor read` prints, each chunked message as one. Arrow is rows as they are
stored (`storage.ledger.rows.SCHEMA`), chunks by themselves.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing
from typing import Annotated, Any

import pyarrow as pa
from fastapi import Header, Query, Request
from starlette.responses import Response, StreamingResponse

from api.broker import names
from api.broker.positions import check_start
from api.broker.threads import WaitsFor
from api.formats.jsonl import JsonLinesWriter
from api.formats.position_text import parse_start
from api.formats.text_encoding import TextEncoding
from api.http.access import AuthAction, caller_of
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.owner_proxy import FORWARDED
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException, refusals, reported_as
from api.http.router import Routes
from storage.errors import InvalidInput, OffsetOutOfRange, SegmentNotLocal
from storage.ledger import rows
from storage.model import Message, TopicName
from storage.positions import ContinuationToken, OffsetReset
from storage.reading.page_reader import MessagesPage, PageReader, ReadLimits, RowsPage
from storage.topic import Topic as OpenTopic

router = Routes("read", known_query=True)

JSON_LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
NEXT = "X-Compactor-Next"
PAGE_MESSAGES = 1000
"""Messages in a page, if nothing else is asked for."""
MOST_WAIT_MS = 60_000
_LINES_AT_ONCE = 256
_REMEDY = "ask with keyEncoding=base64 or valueEncoding=base64"

_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The messages.",
        "content": {JSON_LINES: {"schema": {"type": "string"}}, ARROW: {"schema": {"type": "string"}}},
        "headers": {
            NEXT: {
                "description": "The `start` of the next page; of a stream, see `token`.",
                "schema": {"type": "string"},
            }
        },
    },
    **refusals(400, 404, 405, 406, 409, 412, 416, 507),
}

KeyEncoding = Annotated[TextEncoding, Query(alias="keyEncoding", description="How keys are shown.")]
ValueEncoding = Annotated[TextEncoding, Query(alias="valueEncoding", description="How values are shown.")]


@router.get(TOPIC_PATH + "/messages", AuthAction.CONSUME, response_class=Response, responses=_RESPONSES)
async def read_messages(
    broker: Broker,
    request: Request,
    topic: Topic,
    read_compacted: Annotated[
        bool, Query(alias="readCompacted", description="The compacted ledger first, then raw after its horizon.")
    ] = False,
    start: Annotated[
        str,
        Query(description="earliest, latest, a message id, an offset, @ and a time, or the value of X-Compactor-Next."),
    ] = "earliest",
    limit: Annotated[int | None, Query(ge=1, le=2**31, description="At most this many messages.")] = None,
    max_bytes: Annotated[int | None, Query(alias="maxBytes", ge=1, description="At most this many bytes.")] = None,
    wait_ms: Annotated[
        int, Query(alias="waitMs", ge=0, le=MOST_WAIT_MS, description="How long to wait for a first message.")
    ] = 0,
    reset: Annotated[
        OffsetReset, Query(description="Where a raw read begins if its start was trimmed.")
    ] = OffsetReset.EARLIEST,
    stream: Annotated[bool, Query(description="All up to the end of now, in one answer.")] = False,
    token: Annotated[
        bool,
        Query(description='End a stream with the `start` of the next read: a line `{"next": …}`, or Arrow metadata.'),
    ] = False,
    key_encoding: KeyEncoding = TextEncoding.UTF8,
    value_encoding: ValueEncoding = TextEncoding.UTF8,
    accept: Annotated[str, Header(include_in_schema=False)] = "*/*",
) -> Response:
    """Messages of a topic, raw or compacted, from a place on."""
    state = ContinuationToken.from_token(start, parse_start)
    if state.compacted is not None and not read_compacted:
        raise RestException(400, f"the start {start} is one of a read with readCompacted=true: ask with it")
    if token and not stream:
        raise RestException(400, "token=true needs stream=true: each page has X-Compactor-Next")
    kind = _kind_of(accept)
    waiting = broker.pools[WaitsFor.STORE]
    source = await broker.pools[WaitsFor.DATABASE].run(_opened, broker, topic, state)
    encodings = key_encoding, value_encoding
    if stream:
        await waiting.run(check_start, source, state.start)
        reader = source.reader(state, read_compacted, reset)
        body = waiting.each(_all(reader, ReadLimits(limit, max_bytes), kind, token, *encodings))
        first = await anext(body, b"")  # what is wrong from the beginning has a status of its own
        return StreamingResponse(_behind(first, body), media_type=kind)
    settings = broker.settings
    limits = ReadLimits(
        min(limit or PAGE_MESSAGES, settings.read_max_messages),
        min(max_bytes or settings.read_max_bytes, settings.read_max_bytes),
    )
    reader = source.reader(state, read_compacted, reset)
    deadline = broker.environment.clock.now_ms() + wait_ms
    if FORWARDED in request.headers:  # or the service that asks would take the silence for a dead one
        deadline -= max(wait_ms - settings.forwarding_timeout_ms // 2, 0)
    page, is_empty = await waiting.run(_page, reader, kind, limits)
    if is_empty:  # a page with messages has a valid start
        await waiting.run(check_start, source, state.start)
    if is_empty and deadline > broker.environment.clock.now_ms():
        polls = context_of(request).polls
        changes = polls.changes(source.record.id, deadline, request.is_disconnected)
        with polls.turn(caller_of(request).name):
            async with aclosing(changes):
                async for _ in changes:
                    try:
                        page, is_empty = await waiting.run(_page, reader, kind, limits)
                    except SegmentNotLocal:  # another service appends since then: the next page is asked of it
                        break
                    if not is_empty:
                        break
    content = await waiting.run(_encoded, page, *encodings)
    return Response(content, media_type=kind, headers={NEXT: page.next.to_token()})


def _opened(broker: Broker, name: TopicName, state: ContinuationToken) -> OpenTopic:
    """Return the topic if this service can read it from there. Raises RestException, NotTheOwner, OffsetOutOfRange."""
    reason = f"{name} is a partitioned topic: read its partitions, {name}-partition-0 and on"
    with reported_as(partitioned=reason):
        names.check_not_partitioned(broker.environment, name)
    record = names.topic(broker.environment, name)
    broker.ownership.check_for_reading(record, state.start)
    source = OpenTopic(broker.environment, record)
    if state.compacted is not None:
        _check_ledger(broker, source, state)
    return source


def _check_ledger(broker: Broker, source: OpenTopic, state: ContinuationToken) -> None:
    """Raise OffsetOutOfRange for a state in a compacted ledger that the topic never had."""
    ledger_id = None if state.compacted is None else state.compacted.ledger_id
    if ledger_id is not None and not broker.environment.metadata.runs.has_published(source.record.id, ledger_id):
        raise OffsetOutOfRange(
            f"the start {state.to_token()} names the compacted ledger {ledger_id}, which {source.name} has never had",
            "read again from earliest, into an empty state",
        )


def _kind_of(accept: str) -> str:
    """Return the content type that the caller accepts; JSON Lines if it accepts any. Raises RestException (406)."""
    accepted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    for item in accepted:
        if item == ARROW:
            return ARROW
        if item in ("*/*", "application/*", JSON_LINES, "application/json", "application/jsonl", "text/*", ""):
            return JSON_LINES
    raise RestException(406, f"messages come as {JSON_LINES} or {ARROW}")


def _page(reader: PageReader, kind: str, limits: ReadLimits) -> tuple[RowsPage | MessagesPage, bool]:
    if kind == ARROW:
        with closing(reader):
            rows_page = reader.rows(limits)
        return rows_page, not rows_page.batches
    page = reader.messages(limits)
    return page, not page.messages


def _encoded(page: RowsPage | MessagesPage, key: TextEncoding, value: TextEncoding) -> bytes:
    return b"".join(_arrow(page.batches) if isinstance(page, RowsPage) else _lines(page.messages, key, value))


def _all(
    reader: PageReader, limits: ReadLimits, kind: str, with_token: bool, key: TextEncoding, value: TextEncoding
) -> Generator[bytes, None, None]:
    """Yield the pieces of a stream; its token comes last."""
    if kind == ARROW:
        yield from _arrow(reader.stream_rows(limits), (lambda: reader.next) if with_token else None)
        return
    yield from _lines(reader.stream(limits), key, value)
    if with_token:
        yield json.dumps({"next": reader.next.to_token()}).encode() + b"\n"


def _lines(messages: Iterable[Message], key: TextEncoding, value: TextEncoding) -> Iterator[bytes]:
    buffer = io.BytesIO()
    lines = JsonLinesWriter(buffer, key, value)
    for count, message in enumerate(messages, 1):
        try:
            lines.write(message)
        except InvalidInput as error:
            raise InvalidInput(error.message, _REMEDY) from error
        if not count % _LINES_AT_ONCE:
            yield _taken(buffer)
    if buffer.tell():
        yield _taken(buffer)


def _arrow(batches: Iterable[pa.RecordBatch], token: Callable[[], ContinuationToken] | None = None) -> Iterator[bytes]:
    """Yield an Arrow stream. Its end is marked: one without has been cut off. `token`: in a last, empty batch."""
    buffer = io.BytesIO()
    writer = pa.ipc.new_stream(buffer, rows.SCHEMA)
    for batch in batches:
        writer.write_batch(batch)
        yield _taken(buffer)
    if token is not None:
        empty = pa.RecordBatch.from_pylist([], rows.SCHEMA)
        writer.write_batch(empty, custom_metadata={NEXT: token().to_token()})
    writer.close()
    yield _taken(buffer)


def _taken(buffer: io.BytesIO) -> bytes:
    """Return the content of a buffer, and empty it."""
    content = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return content


async def _behind(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        if first:
            yield first
        async for item in rest:
            yield item
