"""Rows to records and back: the one place that knows which columns hold a message id, a position or an object.

Pure: no connection, no clock. What is written with `*_values` is read back equal with the function of the record's
name; a message id or position of which the first column is null is None.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import RowMapping

from storage.metadata.records import (
    Attempt,
    AttemptKind,
    CompactedLedgerRecord,
    CursorRecord,
    Pin,
    RunRecord,
    RunState,
    SegmentContent,
    SegmentRecord,
    SegmentState,
    TopicRecord,
)
from storage.model import IndexLocation, LedgerRecord, MessageId, Position, StoredObject, TopicName


def message_id_values(prefix: str, message_id: MessageId | None) -> dict[str, int | None]:
    """The four columns of a message id; all null for None."""
    return {
        f"{prefix}_ledger_id": message_id.ledger_id if message_id else None,
        f"{prefix}_entry_id": message_id.entry_id if message_id else None,
        f"{prefix}_partition": message_id.partition if message_id else None,
        f"{prefix}_batch_index": message_id.batch_index if message_id else None,
    }


def position_values(prefix: str, position: Position | None) -> dict[str, int | None]:
    """The five columns of a position; all null for None."""
    return {
        f"{prefix}_offset": position.offset if position else None,
        **message_id_values(prefix, position.message_id if position else None),
    }


def _message_id(row: RowMapping, prefix: str) -> MessageId | None:
    if row[f"{prefix}_ledger_id"] is None:
        return None
    parts = ("ledger_id", "entry_id", "partition", "batch_index")
    return MessageId(*(row[f"{prefix}_{part}"] for part in parts))


def _position(row: RowMapping, prefix: str) -> Position | None:
    message_id = _message_id(row, prefix)
    return None if message_id is None else Position(row[f"{prefix}_offset"], message_id)


def topic(row: RowMapping) -> TopicRecord:
    return TopicRecord(
        id=row["id"],
        uid=row["uid"],
        name=TopicName.parse(row["name"]),
        hash_seed=row["hash_seed"],
        generation=row["generation"],
        epoch=row["epoch"],
        next_offset=row["next_offset"],
        created_at=row["created_at"],
        start_offset=row["start_offset"],
    )


def attempt(row: RowMapping) -> Attempt:
    return Attempt(
        attempt_id=row["attempt_id"],
        topic_id=row["topic_id"],
        kind=AttemptKind(row["kind"]),
        holder=row["holder"],
        started_at=row["started_at"],
        heartbeat_at=row["heartbeat_at"],
        finished_at=row["finished_at"],
    )


def pin_values(pin: Pin) -> dict[str, Any]:
    return {
        "pin_id": pin.pin_id,
        "topic_id": pin.topic_id,
        "ledger_id": pin.ledger_id,
        "holder": pin.holder,
        "expires_at": pin.expires_at,
    }


def pin(row: RowMapping) -> Pin:
    return Pin(row["pin_id"], row["topic_id"], row["ledger_id"], row["holder"], row["expires_at"])


def ledger_values(topic_id: int, ledger: LedgerRecord) -> dict[str, Any]:
    return {
        "ledger_id": ledger.ledger_id,
        "topic_id": topic_id,
        "first_offset": ledger.first_offset,
        "last_offset": ledger.last_offset,
        "messages": ledger.messages,
        "entries": ledger.entries,
        **message_id_values("last_message", ledger.last_message_id),
        "logical_bytes": ledger.logical_bytes,
        "min_publish_time": ledger.min_publish_time,
        "max_publish_time": ledger.max_publish_time,
        "rows_name": ledger.rows.name,
        "rows_size": ledger.rows.size,
        "rows_crc32c": ledger.rows.crc32c,
        "footer_size": ledger.footer_size,
        "index_name": ledger.index.name,
        "index_offset": ledger.index.offset,
        "index_length": ledger.index.length,
        "index_directory": ledger.index.directory,
        "attempt_id": ledger.attempt_id,
        "created_at": ledger.created_at,
        "deleted_at": ledger.deleted_at,
    }


def ledger(row: RowMapping) -> LedgerRecord:
    last = _message_id(row, "last_message")
    assert last is not None, "ledgers.last_message_ledger_id is NOT NULL"
    return LedgerRecord(
        ledger_id=row["ledger_id"],
        first_offset=row["first_offset"],
        last_offset=row["last_offset"],
        messages=row["messages"],
        entries=row["entries"],
        last_message_id=last,
        logical_bytes=row["logical_bytes"],
        min_publish_time=row["min_publish_time"],
        max_publish_time=row["max_publish_time"],
        rows=StoredObject(row["rows_name"], row["rows_size"], row["rows_crc32c"]),
        footer_size=row["footer_size"],
        index=IndexLocation(row["index_name"], row["index_offset"], row["index_length"], bytes(row["index_directory"])),
        attempt_id=row["attempt_id"],
        created_at=row["created_at"],
        deleted_at=row["deleted_at"],
    )


def content_values(content: SegmentContent) -> dict[str, Any]:
    """The columns of a segment that are known once it is rolled."""
    return {
        "last_offset": content.last_offset,
        **message_id_values("last_message", content.last_message_id),
        "messages": content.messages,
        "entries": content.entries,
        "logical_bytes": content.logical_bytes,
        "min_publish_time": content.min_publish_time,
        "max_publish_time": content.max_publish_time,
        "size": content.size,
    }


def segment_values(topic_id: int, segment: SegmentRecord) -> dict[str, Any]:
    return {
        "ledger_id": segment.ledger_id,
        "topic_id": topic_id,
        "first_offset": segment.first_offset,
        "log_uid": segment.log_uid,
        "state": segment.state.value,
        "created_at": segment.created_at,
        "rolled_at": segment.rolled_at,
        "sealed_at": segment.sealed_at,
        "sealing_attempt_id": segment.sealing_attempt_id,
        "sealing_tries": segment.sealing_tries,
        **(content_values(segment.content) if segment.content is not None else {}),
    }


def segment(row: RowMapping) -> SegmentRecord:
    last = _message_id(row, "last_message")
    content = None
    if last is not None:
        content = SegmentContent(
            last_offset=row["last_offset"],
            last_message_id=last,
            messages=row["messages"],
            entries=row["entries"],
            logical_bytes=row["logical_bytes"],
            min_publish_time=row["min_publish_time"],
            max_publish_time=row["max_publish_time"],
            size=row["size"],
        )
    return SegmentRecord(
        ledger_id=row["ledger_id"],
        first_offset=row["first_offset"],
        log_uid=row["log_uid"],
        state=SegmentState(row["state"]),
        created_at=row["created_at"],
        rolled_at=row["rolled_at"],
        sealed_at=row["sealed_at"],
        sealing_attempt_id=row["sealing_attempt_id"],
        sealing_tries=row["sealing_tries"],
        content=content,
    )


def cursor(row: RowMapping) -> CursorRecord:
    return CursorRecord(row["name"], _position(row, "mark_delete"), dict(row["properties"]))


def compacted_ledger_values(topic_id: int, compacted: CompactedLedgerRecord) -> dict[str, Any]:
    return {
        "ledger_id": compacted.ledger_id,
        "topic_id": topic_id,
        "generation": compacted.generation,
        **position_values("horizon", compacted.horizon),
        "manifest_name": compacted.manifest.name,
        "manifest_size": compacted.manifest.size,
        "manifest_crc32c": compacted.manifest.crc32c,
        "messages": compacted.messages,
        "logical_bytes": compacted.logical_bytes,
        "stored_bytes": compacted.stored_bytes,
        **message_id_values("last_message", compacted.last_message_id),
        "attempt_id": compacted.attempt_id,
        "created_at": compacted.created_at,
        "retired_at": compacted.retired_at,
    }


def compacted_ledger(row: RowMapping) -> CompactedLedgerRecord:
    horizon = _position(row, "horizon")
    assert horizon is not None, "compacted_ledgers.horizon_ledger_id is NOT NULL"
    return CompactedLedgerRecord(
        ledger_id=row["ledger_id"],
        generation=row["generation"],
        horizon=horizon,
        manifest=StoredObject(row["manifest_name"], row["manifest_size"], row["manifest_crc32c"]),
        messages=row["messages"],
        logical_bytes=row["logical_bytes"],
        stored_bytes=row["stored_bytes"],
        last_message_id=_message_id(row, "last_message"),
        attempt_id=row["attempt_id"],
        created_at=row["created_at"],
        retired_at=row["retired_at"],
    )


def run(row: RowMapping) -> RunRecord:
    return RunRecord(
        run_id=row["run_id"],
        topic_id=row["topic_id"],
        attempt_id=row["attempt_id"],
        holder=row["holder"],
        epoch=row["epoch"],
        state=RunState(row["state"]),
        phase=row["phase"],
        policies=row["policies"],
        started_at=row["started_at"],
        heartbeat_at=row["heartbeat_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        horizon=_position(row, "horizon"),
        compacted_ledger_id=row["compacted_ledger_id"],
        statistics=row["statistics"],
        cause=row["cause"],
    )
