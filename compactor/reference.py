"""The result of a compaction in a page of plain Python: the oracle of the tests.

Nothing here is fast, bounded or clever. It says what semantics.md P3–P6 say, and nothing else does it this way.
"""

from __future__ import annotations

from collections.abc import Iterable

from storage.model import Message


def compact(previous: Iterable[Message], raw: Iterable[Message], retain_null_key: bool = False) -> list[Message]:
    """Live messages of the previous compacted ledger, then raw after the horizon, to the new compacted ledger.

    P4: the newest id per key stays. P5: a tombstone that is the newest of its key removes the key. P6: messages
    without a key are dropped, or all of them stay.
    """
    newest: dict[bytes, Message] = {}
    unkeyed: list[Message] = []
    for message in [*previous, *raw]:
        if message.key is not None:
            newest[message.key] = message
        elif retain_null_key:
            unkeyed.append(message)
    live = [message for message in newest.values() if not message.is_tombstone]
    return sorted([*live, *unkeyed], key=lambda message: message.message_id)


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
