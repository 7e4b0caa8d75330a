"""Routes that read a topic: page by page, or as one stream; as JSON Lines or as an Arrow stream.

A page holds at most the requested messages and bytes (R10), and at least one message unless none is left. The header
`X-Compactor-Next` is the `start` of the next page, which any service can read. Such a sequence of pages keeps R7: no id
occurs twice, and a missed deletion is an error. With `stream=true` one answer holds all messages up to the present end.
An error in the middle of a stream closes the connection, so that a client does not take it for the end. With
`token=true` a stream ends with the `start` of the next read, which is not known before.

JSON Lines are the objects that `compactor read` prints; a chunked message is one object. Arrow holds the rows as they
are stored (`storage.ledger.rows.SCHEMA`), each chunk as a row.
"""

from __future__ import annotations

import io
import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, closing
from typing import Annotated, Any, NamedTuple

import pyarrow as pa
from fastapi import Header, Query, Request
from starlette.responses import Response, StreamingResponse

from api.broker import messages
from api.broker.positions import check_not_after_end
from api.broker.threads import WaitsFor
from api.formats.jsonl import JsonLinesWriter
from api.formats.position_text import parse_start
from api.http.access import AuthAction, caller_of
from api.http.context import context_of
from api.http.dependencies import Broker
from api.http.owner_proxy import FORWARDED
from api.http.paths import TOPIC_PATH, Topic
from api.http.problems import RestException, refusal_responses, reword_errors
from api.http.router import Routes
from api.rest.messages.encodings import Encodings, MessageEncodings
from storage.errors import SegmentNotLocal
from storage.ledger import rows
from storage.model import Message, TopicName
from storage.positions import ContinuationToken, OffsetReset
from storage.reading.page_reader import PageReader, ReadLimits
from storage.topic import Topic as OpenTopic

router = Routes("read", known_query=True)

JSON_LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
NEXT = "X-Compactor-Next"
PAGE_MESSAGES = 1000
"""The default number of messages in a page."""
MOST_WAIT_MS = 60_000
_LINES_AT_ONCE = 256

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
    **refusal_responses(400, 404, 405, 406, 409, 412, 416, 507),
}


@router.get(TOPIC_PATH + "/messages", AuthAction.CONSUME, response_class=Response, responses=_RESPONSES)
async def read_messages(
    broker: Broker,
    request: Request,
    topic: Topic,
    encodings: Encodings,
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
    stream: Annotated[bool, Query(description="All messages up to the present end, in one answer.")] = False,
    token: Annotated[
        bool,
        Query(description='End a stream with the `start` of the next read: a line `{"next": …}`, or Arrow metadata.'),
    ] = False,
    accept: Annotated[str, Header(include_in_schema=False)] = "*/*",
) -> Response:
    """Return the messages of a topic, raw or compacted, from a position on: one page, or all as a stream."""
    state = ContinuationToken.from_token(start, parse_start)
    if state.compacted is not None and not read_compacted:
        raise RestException(400, f"the start {start} is one of a read with readCompacted=true: ask with it")
    if token and not stream:
        raise RestException(400, "token=true needs stream=true: each page has X-Compactor-Next")
    content_type = _accepted_content_type(accept)
    waiting = broker.pools[WaitsFor.STORE]
    source = await broker.pools[WaitsFor.DATABASE].run(_open_topic, broker, topic, state)
    if stream:
        await waiting.run(check_not_after_end, source, state.start)
        reader = source.reader(state, read_compacted, reset)
        body = waiting.iterate(_stream_body(reader, ReadLimits(limit, max_bytes), content_type, token, encodings))
        first = await anext(body, b"")  # an error before the first byte gets its own status
        return StreamingResponse(_prepend_piece(first, body), media_type=content_type)
    settings = broker.settings
    limits = ReadLimits(
        min(limit or PAGE_MESSAGES, settings.read_max_messages),
        min(max_bytes or settings.read_max_bytes, settings.read_max_bytes),
    )
    reader = source.reader(state, read_compacted, reset)
    deadline = broker.environment.clock.now_ms() + wait_ms
    if FORWARDED in request.headers:  # the forwarding service takes a longer silence for a dead service
        deadline -= max(wait_ms - settings.forwarding_timeout_ms // 2, 0)
    content, is_empty, next_start = await waiting.run(_read_page, reader, content_type, limits, encodings)
    if is_empty:  # a page with messages has a valid start
        await waiting.run(check_not_after_end, source, state.start)
    if is_empty and deadline > broker.environment.clock.now_ms():
        polls = context_of(request).polls
        changes = polls.topic_changes(source.record.id, deadline, request.is_disconnected)
        with polls.counted_wait(caller_of(request).name):
            async with aclosing(changes):
                async for _ in changes:
                    try:
                        content, is_empty, next_start = await waiting.run(
                            _read_page, reader, content_type, limits, encodings
                        )
                    except SegmentNotLocal:  # another service appends now: it answers the next request
                        break
                    if not is_empty:
                        break
    return Response(content, media_type=content_type, headers={NEXT: next_start.to_token()})


class _PageBody(NamedTuple):
    """The body of one page of messages, whether the page is empty, and the start of the next page."""

    content: bytes
    is_empty: bool
    next_start: ContinuationToken


def _open_topic(broker: Broker, name: TopicName, state: ContinuationToken) -> OpenTopic:
    """Return a topic that is open for a read from `state` on. Raise RestException (405) for a partitioned topic."""
    with reword_errors(partitioned=f"{name} is a partitioned topic: read its partitions, {name}-partition-0 and on"):
        return messages.open_for_reading(broker, name, state)


def _accepted_content_type(accept: str) -> str:
    """Return the content type of the answer for an Accept header: Arrow, or JSON Lines, also for any type. Raise
    RestException (406) for other types."""
    accepted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    for item in accepted:
        if item == ARROW:
            return ARROW
        if item in ("*/*", "application/*", JSON_LINES, "application/json", "application/jsonl", "text/*", ""):
            return JSON_LINES
    raise RestException(406, f"messages come as {JSON_LINES} or {ARROW}")


def _read_page(reader: PageReader, content_type: str, limits: ReadLimits, encodings: MessageEncodings) -> _PageBody:
    """Read one page of messages, and return it in a content type."""
    if content_type == ARROW:
        with closing(reader):
            rows_page = reader.rows(limits)
        return _PageBody(b"".join(_arrow_stream(rows_page.batches)), not rows_page.batches, rows_page.next)
    page = reader.messages(limits)
    return _PageBody(b"".join(_json_lines(page.messages, encodings)), not page.messages, page.next)


def _stream_body(
    reader: PageReader, limits: ReadLimits, content_type: str, with_token: bool, encodings: MessageEncodings
) -> Generator[bytes, None, None]:
    """Yield the body of a stream of all messages in pieces, in a content type. `with_token`: it ends with the start of
    the next read."""
    if content_type == ARROW:
        yield from _arrow_stream(reader.stream_rows(limits), (lambda: reader.next) if with_token else None)
        return
    yield from _json_lines(reader.stream(limits), encodings)
    if with_token:
        yield json.dumps({"next": reader.next.to_token()}).encode() + b"\n"


def _json_lines(source: Iterable[Message], encodings: MessageEncodings) -> Iterator[bytes]:
    """Yield messages as JSON Lines, in pieces of many lines."""
    buffer = io.BytesIO()
    lines = JsonLinesWriter(buffer, *encodings)
    for count, message in enumerate(source, 1):
        lines.write(message)
        if not count % _LINES_AT_ONCE:
            yield _drain_buffer(buffer)
    if buffer.tell():
        yield _drain_buffer(buffer)


def _arrow_stream(
    batches: Iterable[pa.RecordBatch], token: Callable[[], ContinuationToken] | None = None
) -> Iterator[bytes]:
    """Yield record batches as an Arrow stream, in pieces. A stream without its end mark was cut off.

    `token`: returns the start of the next read, which a last, empty batch has in its metadata.
    """
    buffer = io.BytesIO()
    writer = pa.ipc.new_stream(buffer, rows.SCHEMA)
    for batch in batches:
        writer.write_batch(batch)
        yield _drain_buffer(buffer)
    if token is not None:
        empty = pa.RecordBatch.from_pylist([], rows.SCHEMA)
        writer.write_batch(empty, custom_metadata={NEXT: token().to_token()})
    writer.close()
    yield _drain_buffer(buffer)


def _drain_buffer(buffer: io.BytesIO) -> bytes:
    """Return the content of a buffer, and empty it."""
    content = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return content


async def _prepend_piece(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield `first`, unless it is empty, and then the pieces of `rest`, which is closed at the end."""
    async with aclosing(rest):
        if first:
            yield first
        async for item in rest:
            yield item
