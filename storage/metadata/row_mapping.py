"""Rows to records and back: a field is the column of its name, and a field that is a value of several parts (a message
id, a position, an object) is as many columns, `field_part`.

Pure: no connection, no clock. A record whose columns come from `*_values` is read back equal by the function of the
record's name; a message id or position whose columns are null is None. The column `holder` is the field `owner`.
"""

from __future__ import annotations

import functools
from typing import Any, TypeVar

from sqlalchemy import RowMapping

from storage.errors import ErrorText
from storage.metadata.records import (
    Attempt,
    AttemptKind,
    CompactedLedgerRecord,
    CursorRecord,
    DeletedTopic,
    Lease,
    PartitionedTopic,
    Pin,
    RunRecord,
    RunState,
    SegmentContent,
    SegmentRecord,
    SegmentState,
    TopicRecord,
)
from storage.model import IndexLocation, LedgerRecord, LogPosition, MessageId, SourcePosition, StoredObject, TopicName

Value = TypeVar("Value")
_INDEX = ("name", "offset", "length", "directory")
"""The fields of the location of a key index that are columns."""


@functools.lru_cache(maxsize=1 << 14)
def stored_name(text: str) -> TopicName:
    """Parse a topic's full name from a row. The results are cached, since reads of all topics repeat."""
    return TopicName.parse(text)


def topic(row: RowMapping) -> TopicRecord:
    return record(TopicRecord, row, name=stored_name(row["name"]))


def deleted_topic(row: RowMapping) -> DeletedTopic:
    return record(DeletedTopic, row, name=TopicName.parse(row["name"]))


def partitioned_topic(row: RowMapping) -> PartitionedTopic:
    return record(PartitionedTopic, row, name=TopicName.parse(row["name"]))


def attempt(row: RowMapping) -> Attempt:
    return record(Attempt, row, kind=AttemptKind(row["kind"]), owner=row["holder"])


def attempt_values(attempt: Attempt) -> dict[str, Any]:
    return {**_columns_except(attempt, "kind", "owner"), "kind": attempt.kind.value, "holder": attempt.owner}


def lease(row: RowMapping) -> Lease:
    return record(Lease, row, owner=row["holder"])


def pin(row: RowMapping) -> Pin:
    return record(Pin, row, owner=row["holder"])


def pin_values(pin: Pin) -> dict[str, Any]:
    return {**_columns_except(pin, "owner"), "holder": pin.owner}


def ledger(row: RowMapping) -> LedgerRecord:
    return record(
        LedgerRecord,
        row,
        last_message_id=_nested_value(MessageId, row, "last_message"),
        rows=_nested_value(StoredObject, row, "rows"),
        index=IndexLocation(first_offset=row["first_offset"], **{name: row[f"index_{name}"] for name in _INDEX}),
    )


def ledger_values(topic_id: int, ledger: LedgerRecord) -> dict[str, Any]:
    return {
        "topic_id": topic_id,
        **_columns_except(ledger, "last_message_id", "rows", "index"),
        **_nested_columns(MessageId, "last_message", ledger.last_message_id),
        **_nested_columns(StoredObject, "rows", ledger.rows),
        **{f"index_{name}": getattr(ledger.index, name) for name in _INDEX},
    }


def segment(row: RowMapping) -> SegmentRecord:
    last = _message_id(row, "last_message")
    content = record(SegmentContent, row, last_message_id=last) if last is not None else None
    return record(SegmentRecord, row, state=SegmentState(row["state"]), content=content)


def segment_values(topic_id: int, segment: SegmentRecord) -> dict[str, Any]:
    content = content_values(segment.content) if segment.content is not None else {}
    return {
        "topic_id": topic_id,
        **_columns_except(segment, "state", "content"),
        "state": segment.state.value,
        **content,
    }


def content_values(content: SegmentContent) -> dict[str, Any]:
    """Return the columns of a segment that are known once it is rolled."""
    return {
        **_columns_except(content, "last_message_id"),
        **_nested_columns(MessageId, "last_message", content.last_message_id),
    }


def cursor(row: RowMapping) -> CursorRecord:
    return record(CursorRecord, row, mark_delete=_position(row, "mark_delete"))


def compacted_ledger(row: RowMapping) -> CompactedLedgerRecord:
    return record(
        CompactedLedgerRecord,
        row,
        horizon=_position(row, "horizon"),
        manifest=_nested_value(StoredObject, row, "manifest"),
        last_message_id=_message_id(row, "last_message"),
        table_metadata=None
        if row["table_metadata_name"] is None
        else _nested_value(StoredObject, row, "table_metadata"),
        source_horizon=None if row["source_horizon_ledger_id"] is None else _source_position(row, "source_horizon"),
    )


def compacted_ledger_values(topic_id: int, compacted: CompactedLedgerRecord) -> dict[str, Any]:
    source = compacted.source_horizon
    return {
        "topic_id": topic_id,
        **_columns_except(compacted, "horizon", "manifest", "last_message_id", "table_metadata", "source_horizon"),
        **position_values("horizon", compacted.horizon),
        **_nested_columns(StoredObject, "manifest", compacted.manifest),
        **_nested_columns(MessageId, "last_message", compacted.last_message_id),
        **_nested_columns(StoredObject, "table_metadata", compacted.table_metadata),
        "source_horizon_ledger_id": None if source is None else source.ledger_id,
        "source_horizon_entry_id": None if source is None else source.entry_id,
    }


def run(row: RowMapping) -> RunRecord:
    return record(
        RunRecord,
        row,
        state=RunState(row["state"]),
        owner=row["holder"],
        error=ErrorText.from_fields("error", row),
        horizon=_position(row, "horizon"),
    )


def position_values(prefix: str, position: LogPosition | None) -> dict[str, Any]:
    """Return the five columns of a position, by name; all null for None."""
    return {
        f"{prefix}_offset": position.offset if position else None,
        **_nested_columns(MessageId, prefix, position.message_id if position else None),
    }


def _position(row: RowMapping, prefix: str) -> LogPosition | None:
    message_id = _message_id(row, prefix)
    return None if message_id is None else LogPosition(row[f"{prefix}_offset"], message_id)


def _message_id(row: RowMapping, prefix: str) -> MessageId | None:
    return None if row[f"{prefix}_ledger_id"] is None else _nested_value(MessageId, row, prefix)


def record(kind: type[Value], row: RowMapping, /, **others: object) -> Value:
    """Build a dataclass from the columns of a row. `others`: the fields that are no column of their name."""
    return kind(**others, **{name: row[name] for name in field_names(kind) if name not in others})


def _columns_except(value: object, *others: str) -> dict[str, Any]:
    """Return the columns of a record, by name, except the fields `others`."""
    return {name: getattr(value, name) for name in field_names(type(value)) if name not in others}


def _nested_value(kind: type[Value], row: RowMapping, prefix: str) -> Value:
    """Build a value from the columns `prefix_field`, one for each of its fields."""
    return kind(*(row[f"{prefix}_{name}"] for name in field_names(kind)))


def _source_position(row: RowMapping, prefix: str) -> SourcePosition:
    return SourcePosition(row[f"{prefix}_ledger_id"], row[f"{prefix}_entry_id"])


def _nested_columns(kind: type[Value], prefix: str, value: Value | None) -> dict[str, Any]:
    """Return the columns `prefix_field` of a value, one for each of its fields; all null for None."""
    return {f"{prefix}_{name}": getattr(value, name, None) for name in field_names(kind)}


def field_names(kind: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's fields, in order. `dataclasses.fields` takes ten times as long."""
    return tuple(kind.__dataclass_fields__)
