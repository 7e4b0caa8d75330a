"""Conversion of input messages to entries of a topic's log: one message per entry, or batches."""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Iterable, Iterator

from api.formats.jsonl import InputMessage, to_table
from storage.clock import Clock
from storage.entries.encode import encode_batch, encode_message
from storage.errors import InvalidRecord
from storage.ledger.rows import CompressionType

_WAITING_ROWS = 10_000


class BatchMessageContainer:
    """A builder of entries with at most `batch` messages and `batch_bytes` bytes, but at least one message.

    All messages of a batch have one publish time, so a message with another publish time begins a new batch.
    """

    def __init__(self, batch: int, batch_bytes: int, codec: CompressionType, clock: Clock) -> None:
        self._batch = batch
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._clock = clock
        self._producer = f"compactor-produce-{secrets.token_hex(4)}"
        self._pending: list[InputMessage] = []
        self._pending_bytes = 0
        self._encoded_rows = 0
        """Number of rows in all entries so far."""
        self._last_rows = 0
        """Number of rows in the last entry."""

    def encode_entries(self, rows: Iterable[InputMessage | None]) -> Iterator[bytes]:
        """Encode messages to log entries, and yield them. A None in `rows` flushes the pending rows, because no row
        arrived for a while.

        An unreadable row (InvalidRecord), or Ctrl-C, is raised after the entry of the rows before it.
        """
        item = iter(rows)
        ended: BaseException | None = None
        while ended is None:
            try:
                row = next(item)
            except StopIteration:
                break
            except (InvalidRecord, KeyboardInterrupt) as error:
                ended = error
                break
            if self._pending and (row is None or self._must_begin_entry(row)):
                yield self._encode_pending_rows()
            if row is not None:
                self._pending.append(row)
                self._pending_bytes += row.line_bytes
            if len(self._pending) == self._batch:
                yield self._encode_pending_rows()
        if self._pending:
            yield self._encode_pending_rows()
        if ended is not None:
            self._last_rows = 0
            raise ended

    def prefix_with_last_entry_lines(self, message: str) -> str:
        """Prefix an error message with the line numbers of the last encoded entry; unchanged if there is none."""
        if not self._last_rows:
            return message
        first = self._encoded_rows - self._last_rows + 1
        return f"{f'line {first}' if self._last_rows == 1 else f'lines {first} to {self._encoded_rows}'}: {message}"

    def _must_begin_entry(self, row: InputMessage) -> bool:
        """Return whether a row cannot join the pending rows: its publish time differs, or the entry would be too
        large."""
        has_other_time = row.publish_time != self._pending[0].publish_time
        return has_other_time or self._pending_bytes + row.line_bytes > self._batch_bytes

    def _encode_pending_rows(self) -> bytes:
        rows, self._pending, self._pending_bytes = self._pending, [], 0
        sequence_id = self._encoded_rows
        self._last_rows = len(rows)
        self._encoded_rows += self._last_rows
        first = rows[0].publish_time
        publish_time = self._clock.now_ms() if first is None else first
        if self._batch > 1:
            return encode_batch(
                to_table(rows),
                producer=self._producer,
                first_sequence_id=sequence_id,
                publish_time=publish_time,
                codec=self._codec,
            )
        return encode_message(
            rows[0].key,
            rows[0].payload,
            producer=self._producer,
            sequence_id=sequence_id,
            publish_time=publish_time,
            event_time=rows[0].event_time,
            properties=rows[0].properties or (),
            codec=self._codec,
        )


def rows_and_pauses(rows: Iterator[InputMessage], seconds: float) -> Iterator[InputMessage | None]:
    """Yield the rows, and a None each time no row arrives for `seconds`. A daemon thread reads them; its error is
    raised here."""
    waiting: queue.Queue[InputMessage | BaseException] = queue.Queue(_WAITING_ROWS)
    end = StopIteration()

    def read() -> None:
        try:
            for row in rows:
                waiting.put(row)
        except BaseException as error:
            waiting.put(error)
        else:
            waiting.put(end)

    threading.Thread(target=read, name="rows", daemon=True).start()
    while True:
        try:
            item = waiting.get(timeout=seconds)
        except queue.Empty:
            yield None
            continue
        if item is end:
            return
        if isinstance(item, BaseException):
            raise item
        yield item
