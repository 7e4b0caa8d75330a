"""Producers and readers over REST. Each actor is one thread with its own chance."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage.model import MessageId
from tests.faults.engine.history import Fate, History, ReadMessage, Sender, SentMessage, id_of, parsed_slot
from tests.faults.engine.report import Kind, Report
from tests.faults.histories.calls import NEXT, UNKNOWN, Answer, Caller, parsed

KEYS = [f"k{number}" for number in range(16)]


def draw(history: History, chance: random.Random, sender: Sender, number: int) -> SentMessage:
    """Return a message that is about to be sent, of the shape that chance picks."""
    timed = history.traits.by_event_time or chance.random() < 0.1
    return history.sending(
        None if chance.random() < 0.05 else chance.choice(KEYS),
        None if chance.random() < 0.18 else "v" * chance.choice([0, 5, 50, 120, 300]),
        time.monotonic(),
        sender,
        number,
        int(time.time() * 1000) + chance.randrange(-20_000, 20_000) if timed else None,
    )


class RestProducer:
    """A producer over REST; receipts must come in the order in which it sent."""

    def __init__(self, topics: Sequence[History], call: Caller, chance: random.Random, report: Report) -> None:
        self._topics = [topic for topic in topics if not topic.traits.deduplicates]
        self._call = call
        self._chance = chance
        self._report = report
        self._last: dict[str, MessageId] = {}

    def step(self) -> None:
        """Send one request of some messages to one topic."""
        history, chance = self._chance.choice(self._topics), self._chance
        sender = Sender(ordered=not history.partitions)
        sent = [draw(history, chance, sender, number) for number in range(chance.choice([1, 1, 2, 5, 12]))]
        body = {
            "messages": [
                {
                    "key": item.key,
                    "payload": item.value,
                    "properties": {"n": item.serial},
                    **({} if item.event_time is None else {"eventTime": item.event_time}),
                }
                for item in sent
            ]
        }
        answer = self._call("POST", f"/topics/persistent/public/{history.name}/{history.name}", json=body)
        self._report.count("messages sent", len(sent))
        if answer.status == 200:
            self._take_answers(history, sent, answer.json()["messagePublishResults"])
        elif answer.status not in UNKNOWN:
            for item in sent:
                history.refuse(item)

    def _take_answers(self, history: History, sent: list[SentMessage], results: list[dict[str, Any]]) -> None:
        if len(results) != len(sent):
            raise history.violation(Kind.ANSWER, f"{len(sent)} messages were sent, and {len(results)} answers came")
        failed: set[str | None] = set()
        for item, result in zip(sent, results, strict=True):
            if result["errorCode"] == 0:
                at = parsed_slot(result["messageId"])
                last = self._last.get(history.name)
                if last is not None and at <= last and not history.partitions:
                    text = f"{item} has the id {at}, and a message that was sent before it {last}"
                    raise history.violation(Kind.ORDER, text, item.serial)
                # Messages without a key go to several partitions, which have no order among them.
                if item.key in failed and (item.key is not None or not history.partitions):
                    text = f"{item} was stored, and a message of its key before it was not: {results}"
                    raise history.violation(Kind.ORDER, text, item.serial)
                self._last[history.name] = at
                history.acknowledge(item, at)
                self._report.count("messages acknowledged")
            else:
                failed.add(item.key)
                if result["errorCode"] == 2:
                    history.refuse(item)


@dataclass
class Follower:
    """A compacted reader over REST that continues with the tokens of its answers, and keeps the state that it read."""

    history: History
    call: Caller
    chance: random.Random
    report: Report
    state: dict[str, ReadMessage] = field(default_factory=dict)
    token: str = "earliest"
    last: ReadMessage | None = None
    incarnation: int = 0
    since: int = 0

    def step(self) -> bool:
        """Read one page; return whether the reader is at the end."""
        history = self.history
        incarnation, now = history.incarnation, history.now()
        if self.token == "earliest":
            self.since, self.incarnation = now, incarnation
        parameters = {"start": self.token, "readCompacted": "true", "limit": self.chance.choice([1, 5, 40, 200])}
        answer = self.call("GET", f"{history.admin}/messages", params=parameters)
        if history.incarnation != self.incarnation:
            self._restart("deleted")
            return False
        if answer.status == 200:
            return self._take(answer, list(parsed(answer.text)))
        if answer.status == 409 and "read again from earliest" in answer.text:
            self._check_stale(answer)
            self._restart("StateMayBeStale")
        elif answer.status in (400, 416) and history.was_cleared_since(self.since):
            self._restart("cleared")
        elif answer.status not in UNKNOWN and not (answer.status == 404 and history.was_cleared_since(self.since)):
            text = f"a reader at {self.token} was answered {answer.status} {answer.text[:500]}"
            raise history.violation(Kind.ANSWER, text, f"follow {answer.status}")
        return False

    def _take(self, answer: Answer, page: list[ReadMessage]) -> bool:
        at_end = not page and answer.headers[NEXT] == self.token
        self.token = answer.headers[NEXT]
        self.report.count("messages followed", len(page))
        for item in page:
            last, self.last = self.last, item
            self.history.check_read(item, self.since)
            if last is not None and item.id <= last.id:
                raise self.history.violation(Kind.READER, f"a reader received {item} after {last} (R7)", item.serial)
            if item.key is None:
                continue
            if item.value:
                self.state[item.key] = item
            else:
                self.state.pop(item.key, None)
        return at_end

    def _check_stale(self, answer: Answer) -> None:
        """Check R7: the error comes only where something is gone that was not read."""
        if not self.history.traits.loses_raw and not self.history.was_cleared_since(self.since):
            text = f"all raw is stored, and a reader at {self.token} was answered {answer.text[:500]}"
            raise self.history.violation(Kind.READER, text, "stale")

    def _restart(self, reason: str) -> None:
        self.report.count(f"reader restarts: {reason}")
        self.state.clear()
        self.token, self.last = "earliest", None


class RestReader:
    """A client that reads raw from the beginning to the end, and looks keys up."""

    def __init__(self, topics: Sequence[History], call: Caller, chance: random.Random, report: Report) -> None:
        self._topics = topics
        self._folded = [topic for topic in topics if topic.traits.folds_by_id]
        self._call = call
        self._chance = chance
        self._report = report

    def look_up(self) -> None:
        """Read the newest value of a key: it is not older than one acknowledged before, and not deleted (T4)."""
        history, key = self._chance.choice(self._folded), self._chance.choice(KEYS)
        since = history.now()
        newest = history.last_known(key, since)
        answer = self._call("GET", f"{history.admin}/key/{key}")
        self._report.count(f"look-ups: {answer.status}")
        if answer.status == 200:
            (message,) = parsed(json.dumps(_line(answer.json())))
            history.check_read(message, since)
            stays = newest is not None and history.fate(newest) is Fate.THERE
            if stays and newest is not None and newest.is_final and message.id < id_of(newest):
                text = f"a look-up of {key} returned {message}, and {newest} was stored before"
                raise history.violation(Kind.KEY, text, message.serial)
        elif answer.status == 404 and newest is not None and newest.value:
            self._check_absent(history, key, newest, since)
        elif answer.status not in (*UNKNOWN, 404):
            text = f"a look-up of {key} was answered {answer.status} {answer.text[:500]}"
            raise history.violation(Kind.ANSWER, text, f"key {answer.status}")

    def _check_absent(self, history: History, key: str, newest: SentMessage, since: int) -> None:
        """Check that a key that has a value is absent only if it was deleted or cleared meanwhile."""
        with history.lock:
            if history.fate(newest) is not Fate.THERE or history.may_be_hidden(newest):
                return
            deletes = [
                item
                for item in history.sent.values()
                if item.key == key and not item.value and not item.never
                if not item.is_final or not item.ids or id_of(item) > id_of(newest)
            ]
        if not deletes:
            text = f"a look-up of {key} since {since} found nothing, and {newest} was acknowledged"
            raise history.violation(Kind.KEY, text, newest.serial)

    def read_raw(self) -> None:
        """Read from the first raw message to the end: nothing twice, nothing out of order, and no gap (L4)."""
        history = self._chance.choice(self._topics)
        log = self._chance.choice(history.logs)
        token, last, since = "earliest", None, history.now()
        serials: set[str] = set()
        first: ReadMessage | None = None
        while True:
            parameters = {"start": token, "limit": self._chance.choice([30, 200, 1000])}
            began = history.now()
            answer = self._call("GET", f"{history.admin_of(log)}/messages", params=parameters)
            if answer.status != 200:
                if answer.status not in (*UNKNOWN, 404, 416):
                    text = f"a raw read at {token} was answered {answer.status} {answer.text[:500]}"
                    raise history.violation(Kind.ANSWER, text, f"raw {answer.status}")
                return
            page = list(parsed(answer.text))
            for item in page:
                history.check_read(item, began)
                if last is not None and item.id <= last.id:
                    raise history.violation(Kind.ORDER, f"a raw read returned {item} after {last}", item.serial)
                first, last = first or item, item
                serials.add(item.serial)
            if not page:
                break
            token = answer.headers[NEXT]
        self._report.count("raw reads")
        if first is not None and not history.partitions:
            history.missed += [
                item
                for item in history.must_be_stored()
                if item.known is not None and item.known < since and item.serial not in serials and item.acknowledged
                if item.acknowledged > first.id
            ]


def _line(newest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a key's newest message as a line of a page has it."""
    return {"offset": -1, **newest}
