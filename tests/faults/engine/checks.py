"""The comparison of a topic that was read with the model of it, for every driver of the random engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from storage.model import MessageId
from tests.faults.engine.history import Fate, History, ReadMessage, Sender, SentMessage
from tests.faults.engine.report import Kind


def entry_of(at: MessageId) -> tuple[int, int]:
    """Return the ledger id and the entry id of a message."""
    return at.ledger_id, at.entry_id


def rank(history: History, message: ReadMessage) -> tuple[int, MessageId]:
    """Return what decides which message of a key is the newest."""
    return (message.time if history.traits.by_event_time else 0), message.id


def fold(history: History, messages: list[ReadMessage]) -> dict[str, ReadMessage]:
    """Return the newest message of each key, tombstones included."""
    newest: dict[str, ReadMessage] = {}
    for message in messages:
        if message.key is None:
            continue
        before = newest.get(message.key)
        if before is None or rank(history, message) >= rank(history, before):
            newest[message.key] = message
    return newest


def check_log(
    history: History, log: str, raw: list[ReadMessage], view: list[ReadMessage], horizon: MessageId | None
) -> None:
    """Check that offsets are dense and, where all raw is stored, that the view is the fold of raw."""
    offsets = [item.offset for item in raw]
    if offsets and offsets != list(range(offsets[0], offsets[0] + len(offsets))):
        raise history.violation(Kind.OFFSETS, f"the offsets of {log} are not dense: {offsets}", log)
    if history.traits.loses_raw:
        return
    below = [item for item in raw if horizon is not None and entry_of(item.id) <= entry_of(horizon)]
    winners = fold(history, below)
    expected = [item.id for item in below if item.value and item.key and winners[item.key] is item]
    expected += [item.id for item in raw[len(below) :]]
    tombstones = {item.id for item in winners.values() if not item.value}
    actual = [item.id for item in view if item.id not in tombstones]
    if actual != expected:
        missing, extra = set(expected) - set(actual), set(actual) - set(expected)
        text = (
            f"the compacted view of {log} is not the fold of raw at the horizon {horizon}: missing "
            f"{_few(missing)}, extra {_few(extra)}; {len(actual)} messages instead of {len(expected)}"
        )
        raise history.violation(Kind.VIEW, text, f"{log} {_few(missing)} {_few(extra)}")


def check_stored(history: History, raw: list[ReadMessage]) -> None:
    """Check that nothing acknowledged is lost: it is at the acknowledged id; only a prefix may be trimmed."""
    if history.traits.expires and not raw:
        return
    ids: dict[str, set[MessageId]] = defaultdict(set)
    for message in raw:
        ids[message.serial].add(message.id)
        if history.hidden_to is not None and message.id < history.hidden_to:
            text = f"{message} is stored below {history.hidden_to}, where the topic was trimmed to"
            raise history.violation(Kind.RETURNED, text, message.serial)
    first = raw[0] if raw else None
    first_sent = history.sent[first.serial] if first is not None else None
    lost: list[SentMessage] = []
    for item in history.must_be_stored():
        if item.serial in ids:
            stays = item.acknowledged is not None and not history.traits.loses_raw
            if stays and item.acknowledged not in ids[item.serial]:
                text = f"{item} is stored at {_few(ids[item.serial])}"
                history.report.add(history.violation(Kind.MOVED, text, item.serial))
            continue
        trimmable = history.traits.loses_raw or history.may_be_hidden(item)
        at = item.acknowledged or item.id
        if first is not None and first_sent is not None and trimmable:
            is_later = at > first.id if at is not None else item.sent_at > (first_sent.known or first_sent.sent_at)
            trimmable = not is_later or history.traits.changing
        if not trimmable:
            lost.append(item)
    for item in lost:
        item.never = True  # the same loss is one violation
    if lost:
        text = f"{len(lost)} acknowledged messages are lost; raw begins with {first}: {'; '.join(map(str, lost[:6]))}"
        raise history.violation(Kind.LOST, text, lost[0].serial)
    missed = [item for item in history.missed if item.serial in ids and item.acknowledged in ids[item.serial]]
    history.missed.clear()
    if missed:
        text = f"a raw read passed over stored messages: {'; '.join(map(str, missed[:5]))}"
        raise history.violation(Kind.READER, text, missed[0].serial)


def check_state(
    history: History, keys: Sequence[str], state: Mapping[str, str | None], name: str, *, keeps_gone: bool
) -> None:
    """Check that a whole read of the topic ended with an acceptable value of each key."""
    for key in keys:
        acceptable = history.acceptable(key, keeps_gone=keeps_gone)
        value = state.get(key) or None
        if value not in acceptable:
            text = f"{name} has {key}={value!r}, not one of {acceptable}{_lately(history, key)}"
            raise history.violation(Kind.KEY, text, f"{name} {key} {value}")


def check_order(history: History, raws: Mapping[str, list[ReadMessage]]) -> None:
    """Check that the messages of each producer are stored in the order in which it sent, by their first copies.

    Under deduplication no message has two copies. Raises Violation.
    """
    for log, raw in raws.items():
        of_sender: dict[tuple[Sender, str | None], list[tuple[int, MessageId, SentMessage]]] = defaultdict(list)
        stored: set[str] = set()
        for item in raw:
            sent = history.sent[item.serial]
            if item.serial in stored:
                if not sent.sender.repeats and history.fate(sent) is Fate.THERE:
                    raise history.violation(Kind.TWICE, f"{sent} is stored twice in {log}", item.serial)
                continue
            stored.add(item.serial)
            of_sender[sent.sender, None if sent.sender.ordered else sent.key].append((sent.number, item.id, sent))
        for messages in of_sender.values():
            messages.sort(key=lambda message: message[0])
            for (_, at, before), (_, next_at, after) in pairwise(messages):
                if next_at < at:
                    text = f"in {log}, {after} is stored before {before}, which its producer sent earlier"
                    raise history.violation(Kind.ORDER, text, after.serial)


def _few(ids: set[MessageId]) -> str:
    return ", ".join(map(str, sorted(ids)[:6])) or "none"


def _lately(history: History, key: str) -> str:
    of_key = [item for item in history.sent.values() if item.key == key and not item.never]
    last = sorted(of_key, key=lambda item: item.sent_at)[-6:]
    return "; of the key lately:\n" + "\n".join(f"    {history.fate(item).name} {item} {item.value!r}" for item in last)
