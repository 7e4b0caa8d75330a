"""The result of a compaction in two pages of plain Python: the oracle of the tests.

Nothing here is fast, bounded or clever. It says what semantics.md P3–P6, P9, T1 and T2 say, and nothing else does it
this way. A schedule of runs is replayed by handing each run the state that the one before left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compactor.plan import Policies
from storage.model import Message


@dataclass(frozen=True)
class State:
    """A compacted ledger. `retained_at`: by offset, when a tombstone was first kept. `markers`: in event-time order,
    by key, (event time, offset) of what left the data. `dropped_to`: the highest offset of a tombstone that left."""

    messages: tuple[Message, ...] = ()
    retained_at: Mapping[int, int] = field(default_factory=dict)
    markers: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    dropped_to: int = -1


def run(state: State, raw: Iterable[Message], policies: Policies, now: int, cursor_floor: int | None = None) -> State:
    """One run over the state before and the messages after the horizon, in offset order."""
    newest: dict[bytes, Message] = {}
    unkeyed: list[Message] = []
    for message in [*state.messages, *raw]:
        if message.key is None:
            unkeyed.append(message)
        elif message.key not in newest or _order(message, policies) >= _order(newest[message.key], policies):
            newest[message.key] = message
    markers = {key: marker for key, marker in state.markers.items() if _remembered(marker[0], policies, now)}

    kept: list[Message] = list(unkeyed) if policies.retain_null_key else []
    retained_at: dict[int, int] = {}
    dropped_to = state.dropped_to
    for key, message in newest.items():
        if key in markers and markers[key] > _order(message, policies):
            continue  # it came too late: something that is gone since has the larger event time
        markers.pop(key, None)
        first_kept = state.retained_at.get(message.offset, now)
        if not message.is_tombstone and not _expired(message, policies, now):
            kept.append(message)
        elif message.is_tombstone and _retained(message, first_kept, policies, now, cursor_floor):
            kept.append(message)
            retained_at[message.offset] = first_kept
        else:
            if message.is_tombstone:
                dropped_to = max(dropped_to, message.offset)
            if _remembered(message.event_time, policies, now):
                markers[key] = _order(message, policies)
    return State(tuple(sorted(kept, key=lambda message: message.message_id)), retained_at, markers, dropped_to)


def _order(message: Message, policies: Policies) -> tuple[int, int]:
    """P4: the newest id wins. P9: the largest event time, of equal ones the newest id; none is older than any."""
    if not policies.event_time_order:
        return (0, message.offset)
    return (-(2**63) if message.event_time is None else message.event_time, message.offset)


def _expired(message: Message, policies: Policies, now: int) -> bool:
    return policies.key_ttl_ms is not None and message.publish_time + policies.key_ttl_ms <= now


def _retained(message: Message, first_kept: int, policies: Policies, now: int, cursor_floor: int | None) -> bool:
    if first_kept + policies.tombstone_retention_ms > now:
        return True
    return cursor_floor is not None and message.offset > cursor_floor


def _remembered(event_time: int | None, policies: Policies, now: int) -> bool:
    lateness = policies.event_time_max_lateness_ms
    return policies.event_time_order and event_time is not None and event_time > now - lateness


def compact(previous: Iterable[Message], raw: Iterable[Message], retain_null_key: bool = False) -> list[Message]:
    """A run without policies that go by time: live messages before, raw after the horizon, to the new ones."""
    return list(run(State(tuple(previous)), raw, Policies(retain_null_key=retain_null_key), 0).messages)


def view(messages: Iterable[Message]) -> dict[bytes, bytes | None]:
    """What a reader who folds every message ends with: the newest payload per key, deleted keys left out."""
    state: dict[bytes, bytes | None] = {}
    for message in messages:
        if message.key is None:
            continue
        if message.is_tombstone:
            state.pop(message.key, None)
        else:
            state[message.key] = message.payload
    return state
