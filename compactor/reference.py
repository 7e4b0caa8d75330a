"""Reference compaction in two pages of plain Python: the oracle of the tests.

It implements semantics.md P3–P6, P9, P10, T1, T2 and C2 without regard to speed or memory, and shares no code with the
kernels. To replay a schedule of runs, pass each run the result of the previous one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from compactor.run.plan import RunPolicies
from storage.model import Message


@dataclass(frozen=True)
class ReferenceLedger:
    """A compacted ledger.

    `messages`: its rows; each chunk is a row. `retained_at`: by offset, the time at which a run first kept a tombstone.
    `markers`: in event-time order, by key, (event time, offset) of a removed message. `dropped_to`: highest offset of a
    message that a reader may miss here: a removed winner of its key, or a message that was trimmed before any run.
    """

    messages: tuple[Message, ...] = ()
    retained_at: Mapping[int, int] = field(default_factory=dict)
    markers: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    dropped_to: int = -1


def run(
    state: ReferenceLedger,
    raw: Iterable[Message],
    policies: RunPolicies,
    now: int,
    cursor_floor: int | None = None,
    raw_from: int = 0,
) -> ReferenceLedger:
    """Run a compaction over the previous state and the rows after the horizon, in offset order.

    `now`: milliseconds. `cursor_floor`: tombstones above this offset wait for a cursor (T1); None: none waits.
    `raw_from`: the topic's start; rows of `raw` below it are trimmed.
    """
    raw = list(raw)
    trimmed = [message.offset for message in raw if message.offset < raw_from]
    raw = [message for message in raw if message.offset >= raw_from]
    newest: dict[bytes, Message] = {}
    unkeyed: list[Message] = []
    messages, rows_of, pending = assemble_messages([*state.messages, *raw])
    for message in messages:
        if message.key is None:
            unkeyed.append(message)
        elif message.key not in newest or _order_within_key(message, policies) >= _order_within_key(
            newest[message.key], policies
        ):
            newest[message.key] = message
    markers = {key: marker for key, marker in state.markers.items() if _needs_marker(marker[0], policies, now)}

    too_old = {at for at, parts in rows_of.items() if any(_is_removed_by_limits(row, policies, now) for row in parts)}
    stay = [message for message in unkeyed if message.offset not in too_old]
    kept: list[Message] = stay if policies.retain_null_key else []
    retained_at: dict[int, int] = {}
    dropped_to = max([state.dropped_to, *trimmed])
    for key, message in newest.items():
        if key in markers and markers[key] > _order_within_key(message, policies):
            continue  # too late: a removed message of the key has a larger event time
        markers.pop(key, None)
        kept_at = state.retained_at.get(message.offset, now)
        removed = message.offset in too_old
        if not removed and not message.is_tombstone and not _is_expired(message, policies, now):
            kept.append(message)
        elif not removed and message.is_tombstone and _tombstone_stays(message, kept_at, policies, now, cursor_floor):
            kept.append(message)
            retained_at[message.offset] = kept_at
        else:
            dropped_to = max(dropped_to, message.offset)
            if _needs_marker(message.event_time, policies, now):
                markers[key] = _order_within_key(message, policies)
    live = [row for message in kept for row in rows_of[message.offset]]
    for chunks in pending:
        too_long = policies.incomplete_removed_to(now)
        remaining = [chunk for chunk in chunks if not _is_removed_by_limits(chunk, policies, now)]
        if too_long is None or any(chunk.publish_time > too_long for chunk in remaining):
            live += remaining
    return ReferenceLedger(tuple(sorted(live, key=lambda row: row.message_id)), retained_at, markers, dropped_to)


class AssembledMessages(NamedTuple):
    """Messages in order; the rows of each, by its offset; and the pending chunks of each incomplete message."""

    messages: list[Message]
    rows: dict[int, list[Message]]
    pending: list[list[Message]]


def assemble_messages(rows: Iterable[Message]) -> AssembledMessages:
    """Assemble messages from rows (P10).

    Chunk 0 begins a message, or restarts it. The next chunk by index continues it. Other chunks are ignored.
    """
    messages: list[Message] = []
    rows_of: dict[int, list[Message]] = {}
    begun: dict[object, list[Message]] = {}
    pending: dict[object, list[Message]] = {}
    for row in rows:
        chunks = [row]
        if row.chunk_uuid is not None:
            message_of = (row.chunk_uuid, row.key, row.chunk_count)
            pending.setdefault(message_of, []).append(row)
            if row.chunk_index == 0:
                begun[message_of] = []
            chunks = begun.get(message_of, [])
            if row.chunk_index != len(chunks):
                continue
            chunks.append(row)
            if len(chunks) < (row.chunk_count or 0):
                continue
            del begun[message_of], pending[message_of]
        payloads = [chunk.payload for chunk in chunks if chunk.payload is not None]
        first = chunks[0]
        whole = replace(row, payload=b"".join(payloads) if payloads else None, event_time=first.event_time)
        whole = replace(whole, properties=first.properties, chunk_uuid=None, chunk_index=None, chunk_count=None)
        messages.append(whole)
        rows_of[row.offset] = chunks
    return AssembledMessages(messages, rows_of, list(pending.values()))


def _order_within_key(message: Message, policies: RunPolicies) -> tuple[int, int]:
    """Return the order of a message within its key: offset (P4); or event time, None first, then offset (P9)."""
    if not policies.event_time_order:
        return (0, message.offset)
    return (-(2**63) if message.event_time is None else message.event_time, message.offset)


def _is_expired(message: Message, policies: RunPolicies, now: int) -> bool:
    return policies.key_ttl_ms is not None and message.publish_time + policies.key_ttl_ms <= now


def _is_removed_by_limits(message: Message, policies: RunPolicies, now: int) -> bool:
    """Return whether the topic's limits remove a message of any kind: its retention time or its start (C2)."""
    too_old = policies.retention_ms is not None and now - message.publish_time > policies.retention_ms
    return too_old or message.offset < policies.start_offset


def _tombstone_stays(message: Message, kept_at: int, policies: RunPolicies, now: int, floor: int | None) -> bool:
    """Return whether a tombstone stays: for its retention time from `kept_at` on, and until no cursor needs it
    (T1)."""
    if kept_at + policies.tombstone_retention_ms > now:
        return True
    return floor is not None and message.offset > floor


def _needs_marker(event_time: int | None, policies: RunPolicies, now: int) -> bool:
    lateness = policies.event_time_max_lateness_ms
    return policies.event_time_order and event_time is not None and event_time > now - lateness


def compact(previous: Iterable[Message], raw: Iterable[Message], retain_null_key: bool = False) -> list[Message]:
    """Return the live messages after a run without policies by time, from the previous ones and the raw ones."""
    return list(run(ReferenceLedger(tuple(previous)), raw, RunPolicies(retain_null_key=retain_null_key), 0).messages)


def newest_payloads(messages: Iterable[Message]) -> dict[bytes, bytes | None]:
    """Return the newest payload per key, without deleted keys: the final state of a reader of all messages."""
    state: dict[bytes, bytes | None] = {}
    for message in messages:
        if message.key is None:
            continue
        if message.is_tombstone:
            state.pop(message.key, None)
        else:
            state[message.key] = message.payload
    return state
