"""Entries as producers send them, for tests of the log."""

from __future__ import annotations

from collections.abc import Iterable

from storage.entries.encode import encode_batch, encode_message
from storage.ledger.rows import CompressionType
from storage.topic import Topic
from tests.clocks import ManualClock
from tests.workbench import content

NOW = ManualClock().now_ms()


def single(key: bytes | None, payload: bytes | None, publish_time: int = NOW, event_time: int | None = None) -> bytes:
    """An entry of one message."""
    return encode_message(key, payload, producer="p", sequence_id=0, publish_time=publish_time, event_time=event_time)


def batch(
    *messages: tuple[bytes | None, bytes | None], publish_time: int = NOW, codec: CompressionType = CompressionType.NONE
) -> bytes:
    """An entry of a batch."""
    table = content(*messages)
    return encode_batch(table, producer="p", first_sequence_id=0, publish_time=publish_time, codec=codec)


def produce(topic: Topic, entries: Iterable[bytes]) -> None:
    """Append entries to the topic's log, as one writer."""
    with topic.append_log(0) as log:
        for entry in entries:
            log.append(entry)
