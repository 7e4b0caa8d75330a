"""What works on the topics of the random histories, over REST: producers, readers, and who operates them.

Each actor is one thread with its own chance; any service is asked. An answer that does not come, or says 503, leaves
open what was done: the history knows. Every other answer has to be right.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from storage.model import MessageId
from tests.faults.histories.history import Fate, History, ReadMessage, SentMessage, Violation
from tests.faults.histories.services import LONGEST_STOP_SECONDS, Service

KEYS = [f"k{number}" for number in range(12)]
NO_ANSWER = 0
UNKNOWN = (NO_ANSWER, 429, 500, 502, 503, 504)
"""Statuses that say nothing of what was done. 500 is a defect, and counted as one."""
NEXT = "X-Compactor-Next"
_IN_EARNEST = {"dryRun": "false"}
_AGAIN_SECONDS = 0.2
_GIVES_UP_SECONDS = 180.0
_OUTLASTS_SECONDS = LONGEST_STOP_SECONDS + 30
"""How long what deletes may take."""
_LATE_SECONDS = 3.0
"""In that time a service that continues has done what others had asked it for."""


@dataclass(frozen=True)
class Answer:
    """`status` 0: none came."""

    status: int
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Tally:
    """What happened, over all actors. `defects`: answers that no fault excuses."""

    counts: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    def add(self, what: str, count: int = 1) -> None:
        self.counts[what] += count


class Caller:
    """Asks services over HTTP; for one thread."""

    def __init__(self, services: Sequence[Service], chance: random.Random, tally: Tally) -> None:
        self._services = services
        self._chance = chance
        self._tally = tally
        self._client = httpx.Client(timeout=httpx.Timeout(10.0, connect=2.0))

    def __call__(self, method: str, path: str, **options: Any) -> Answer:
        """The answer of one of the services, whichever."""
        service = self._chance.choice(self._services)
        if not service.url:
            time.sleep(0.05)
            return Answer(NO_ANSWER)
        try:
            found = self._client.request(method, service.url + path, **options)
        except httpx.HTTPError:
            self._tally.add("no answer")
            return Answer(NO_ANSWER)
        if found.status_code == 500:
            self._tally.defects.append(f"{method} {path} at {service.name}: 500 {found.text[:300]}")
        return Answer(found.status_code, found.text, found.headers)

    def until(self, method: str, path: str, good: Sequence[int], **options: Any) -> Answer:
        """Ask until the answer is one of the good ones. Raises Violation if that takes too long.

        What deletes waits for its answer longer than a service is stopped: a service that continues does what it was
        asked for before, also where the caller has given up. One service may have asked another; that has some time.
        """
        deletes = method == "DELETE"
        if deletes:
            options["timeout"] = httpx.Timeout(_OUTLASTS_SECONDS, connect=2.0)
        deadline = time.monotonic() + _GIVES_UP_SECONDS
        asked = 1
        while (found := self(method, path, **options)).status not in good:
            if time.monotonic() > deadline:
                raise Violation(f"{method} {path} does not succeed: {found.status} {found.text[:500]}")
            time.sleep(_AGAIN_SECONDS)
            asked += 1
        if deletes and asked > 1:
            time.sleep(_LATE_SECONDS)
        return found

    def close(self) -> None:
        self._client.close()


def admin(history: History) -> str:
    """The path of a topic's admin routes."""
    return f"/admin/v2/persistent/public/default/{history.name}"


class Producer:
    """Sends messages; what it is told must come in the order in which it sent."""

    def __init__(self, topics: Sequence[History], call: Caller, chance: random.Random, tally: Tally) -> None:
        self._topics = topics
        self._call = call
        self._chance = chance
        self._tally = tally
        self._last: dict[str, MessageId] = {}

    def step(self) -> None:
        """One request, of some messages to one topic."""
        history, chance = self._chance.choice(self._topics), self._chance
        sent = [
            history.sending(
                None if chance.random() < 0.05 else chance.choice(KEYS),
                None if chance.random() < 0.2 else "v" * chance.randrange(120),
                time.monotonic(),
            )
            for _ in range(chance.choice([1, 1, 2, 5, 12]))
        ]
        body = {
            "messages": [{"key": item.key, "payload": item.value, "properties": {"n": item.serial}} for item in sent]
        }
        answer = self._call("POST", f"/topics/persistent/public/default/{history.name}", json=body)
        self._tally.add("messages sent", len(sent))
        if answer.status == 200:
            self._take_answers(history, sent, answer.json()["messagePublishResults"])
        elif answer.status not in UNKNOWN:
            for item in sent:
                history.refuse(item)

    def _take_answers(self, history: History, sent: list[SentMessage], results: list[dict[str, Any]]) -> None:
        if len(results) != len(sent):
            raise history.violation(f"{len(sent)} messages were sent, and {len(results)} answers came")
        failed: set[str | None] = set()
        for one, result in zip(sent, results, strict=True):
            if result["errorCode"] == 0:
                at = MessageId.parse(result["messageId"])
                last = self._last.get(history.name)
                if last is not None and at <= last:
                    raise history.violation(f"{one} has the id {at}, and one that was sent before it {last}")
                if one.key in failed:
                    raise history.violation(f"{one} was taken, and one of its key before it was not: {results}")
                self._last[history.name] = at
                history.acknowledge(one, at)
                self._tally.add("messages acknowledged")
            else:
                failed.add(one.key)
                if result["errorCode"] == 2:
                    history.refuse(one)


def parsed(text: str) -> Iterator[ReadMessage]:
    """Messages of a page."""
    for line in text.splitlines():
        one = json.loads(line)
        serial = one["properties"]["n"]
        yield ReadMessage(serial, MessageId.parse(one["message_id"]), one["offset"], one["key"], one["value"])


def read_all(
    call: Callable[..., Answer], history: History, compacted: bool, chance: random.Random
) -> list[ReadMessage]:
    """A whole read, page by page. Raises Violation for anything but pages; so only when nothing is made to fail."""
    found: list[ReadMessage] = []
    place, since = "earliest", history.ticks.now()
    deadline = time.monotonic() + _GIVES_UP_SECONDS
    while True:
        parameters = {"start": place, "readCompacted": str(compacted).lower(), "limit": chance.choice([7, 100, 1000])}
        answer = call("GET", f"{admin(history)}/messages", params=parameters)
        if answer.status in UNKNOWN and time.monotonic() < deadline:
            time.sleep(_AGAIN_SECONDS)
            continue
        if answer.status != 200:
            raise history.violation(f"a read of {parameters} answers {answer.status} {answer.text[:500]}")
        page = list(parsed(answer.text))
        for item in page:
            history.check_read(item, since)
            if found and item.id <= found[-1].id:
                raise history.violation(f"a read gave {item} after {found[-1]}")
            found.append(item)
        if not page and answer.headers[NEXT] == place:
            return found
        place = answer.headers[NEXT]


@dataclass
class Follower:
    """A compacted reader that continues as messages come, with the tokens that it is given, and keeps what it read."""

    history: History
    call: Caller
    chance: random.Random
    tally: Tally
    state: dict[str, ReadMessage] = field(default_factory=dict)
    token: str = "earliest"
    last: ReadMessage | None = None
    incarnation: int = 0
    since: int = 0
    restarts: int = 0

    def step(self) -> bool:
        """One page; whether the reader is at the end."""
        history = self.history
        incarnation, now = history.incarnation, history.ticks.now()
        if self.token == "earliest":
            self.since, self.incarnation = now, incarnation
        parameters = {"start": self.token, "readCompacted": "true", "limit": self.chance.choice([1, 5, 40])}
        answer = self.call("GET", f"{admin(history)}/messages", params=parameters)
        if history.incarnation != self.incarnation:
            self._restart("deleted")
            return False
        if answer.status == 200:
            return self._take(answer, list(parsed(answer.text)))
        if answer.status == 409 and "read again from earliest" in answer.text:
            self._check_stale(answer)
            self._restart("StateMayBeStale")
        elif answer.status in (400, 416) and self._cleared():
            self._restart("cleared")
        elif answer.status not in UNKNOWN and not (answer.status == 404 and self._cleared()):
            raise history.violation(f"a reader at {self.token} was answered {answer.status} {answer.text[:500]}")
        return False

    def _take(self, answer: Answer, page: list[ReadMessage]) -> bool:
        for item in page:
            self.history.check_read(item, self.since)
            if self.last is not None and item.id <= self.last.id:
                raise self.history.violation(f"a reader was given {item} after {self.last} (R7)")
            self.last = item
            if item.key is None:
                continue
            if item.value:
                self.state[item.key] = item
            else:
                self.state.pop(item.key, None)
        self.tally.add("messages followed", len(page))
        at_end = not page and answer.headers[NEXT] == self.token
        self.token = answer.headers[NEXT]
        return at_end

    def _cleared(self) -> bool:
        """Whether the topic was cleared, or may have been, since this read began."""
        return any(clearing.end is None or clearing.end > self.since for clearing in self.history.clearings)

    def _check_stale(self, answer: Answer) -> None:
        """R7: it is told only where something is gone that was not read."""
        if not self.history.loses_raw and not self._cleared():
            raise self.history.violation(
                f"all raw is there, and a reader at {self.token} was told: {answer.text[:500]}"
            )

    def _restart(self, why: str) -> None:
        self.tally.add(f"reader restarts: {why}")
        self.restarts += 1
        self.state.clear()
        self.token, self.last = "earliest", None


class Reader:
    """Reads raw from the beginning to the end, and looks keys up."""

    def __init__(self, topics: Sequence[History], call: Caller, chance: random.Random, tally: Tally) -> None:
        self._topics = topics
        self._call = call
        self._chance = chance
        self._tally = tally

    def look_up(self) -> None:
        """The newest value of one key: not older than what was acknowledged before, and not what is cleared (T4)."""
        history, key = self._chance.choice(self._topics), self._chance.choice(KEYS)
        since = history.ticks.now()
        newest = history.last_known(key, since)
        answer = self._call("GET", f"{admin(history)}/key/{key}")
        self._tally.add(f"look-ups: {answer.status}")
        if answer.status == 200:
            (found,) = parsed(json.dumps(_line(answer.json())))
            history.check_read(found, since)
            stays = newest is not None and history.fate(newest) is Fate.THERE
            if stays and newest is not None and newest.id is not None and found.id < newest.id:
                raise history.violation(f"a look-up of {key} gave {found}, and {newest} was acknowledged before")
        elif answer.status == 404 and newest is not None and newest.value:
            self._check_absent(history, key, newest, since)
        elif answer.status not in (*UNKNOWN, 404):
            raise history.violation(f"a look-up of {key} was answered {answer.status} {answer.text[:500]}")

    def _check_absent(self, history: History, key: str, newest: SentMessage, since: int) -> None:
        """A key that has a value is absent only if it was deleted or cleared meanwhile."""
        with history.lock:
            if history.fate(newest) is not Fate.THERE or history.may_be_hidden(newest):
                return
            assert newest.id is not None
            deletes = [
                item
                for item in history.sent.values()
                if item.key == key
                and item.value is None
                and not item.never
                and (item.id is None or item.id > newest.id)
            ]
        if not deletes:
            raise history.violation(f"a look-up of {key} since {since} found nothing, and {newest} was acknowledged")

    def read_raw(self) -> None:
        """From the first raw message to the end: nothing twice, nothing out of order, and no hole (L4)."""
        history = self._chance.choice(self._topics)
        place, last, since = "earliest", None, history.ticks.now()
        given: set[str] = set()
        first: ReadMessage | None = None
        while True:
            parameters = {"start": place, "limit": self._chance.choice([3, 50, 500])}
            began = history.ticks.now()
            answer = self._call("GET", f"{admin(history)}/messages", params=parameters)
            if answer.status != 200:
                if answer.status not in (*UNKNOWN, 404, 416):
                    raise history.violation(f"a raw read at {place} was answered {answer.status} {answer.text[:500]}")
                return
            page = list(parsed(answer.text))
            for item in page:
                history.check_read(item, began)
                if last is not None and item.id <= last.id:
                    raise history.violation(f"a raw read gave {item} after {last}")
                first, last = first or item, item
                given.add(item.serial)
            if not page:
                break
            place = answer.headers[NEXT]
        self._tally.add("raw reads")
        if first is not None:
            history.missed += [
                item
                for item in history.must_be_there()
                if item.known is not None and item.known < since and item.serial not in given and item.id is not None
                if item.id > first.id
            ]


def _line(found: Mapping[str, Any]) -> dict[str, Any]:
    """A key's newest message as a line of a page has it."""
    return {"offset": -1, **found}


def unpause(history: History, call: Caller) -> None:
    """Resume until the topic is not paused. A stopped service executes later a pause that had no answer."""
    while True:
        control = call.until("GET", f"{admin(history)}/compaction/control", [200, 404])
        if control.status == 404 or not control.json()[0]["paused"]:
            return
        call("POST", f"{admin(history)}/compaction/resume")
        time.sleep(_AGAIN_SECONDS)


class Operator:
    """Compacts, pauses, trims, truncates, deletes; what must be done is asked for until it is."""

    def __init__(self, topics: Sequence[History], call: Caller, chance: random.Random, tally: Tally) -> None:
        self._topics = topics
        self._call = call
        self._chance = chance
        self._tally = tally
        self._operations: list[tuple[Callable[[History], None], int]] = [
            (self.compact, 10),
            (self.cancel, 2),
            (self.pause, 3),
            (self.abort, 1),
            (self.trim, 4),
            (self.trim_before, 3),
            (self.truncate, 1),
            (self.delete, 1),
            (self.collect, 1),
        ]

    def step(self) -> None:
        """One operation on one topic, where nobody else has one under way."""
        history = self._chance.choice(self._topics)
        (operation,) = self._chance.choices(*zip(*self._operations, strict=True))
        if not history.operating.acquire(blocking=False):
            return
        try:
            operation(history)
            self._tally.add(f"operations: {operation.__name__}")
        finally:
            history.operating.release()

    def compact(self, history: History) -> None:
        answer = self._call("PUT", f"{admin(history)}/compaction")
        self._expect(history, answer, 204, 409)
        history.note(f"compaction: {answer.status}")

    def cancel(self, history: History) -> None:
        found = self._call("GET", f"{admin(history)}/compactions", params={"state": "RUNNING", "limit": 1})
        self._expect(history, found, 200)
        for run in found.json() if found.status == 200 else ():
            answer = self._call("DELETE", f"/admin/v2/compactions/{run['run']}", params={"reason": "a random history"})
            self._expect(history, answer, 204, 404, 409)
            history.note(f"run {run['run']} cancelled: {answer.status}")

    def pause(self, history: History) -> None:
        """Pause, and resume until nothing of it is left, however often it was counted."""
        answer = self._call("POST", f"{admin(history)}/compaction/pause")
        self._expect(history, answer, 200, 204)
        history.note(f"paused: {answer.status}")
        time.sleep(self._chance.random() * 2)
        unpause(history, self._call)

    def abort(self, history: History) -> None:
        answer = self._call("POST", f"{admin(history)}/compaction/abort")
        self._expect(history, answer, 200, 204, 409)
        history.note(f"aborted: {answer.status}")

    def trim(self, history: History) -> None:
        """What the cleanup policies let go."""
        answer = self._call("POST", f"{admin(history)}/trim", params=_IN_EARNEST)
        self._expect(history, answer, 200, 409)
        history.note(f"trimmed: {answer.status} {answer.text[:300]}")

    def trim_before(self, history: History) -> None:
        """All before a message, even if a subscription needs it; where that hides it, in the compacted ledger too."""
        there = history.must_be_there()
        if not history.may_hide or not there:
            return
        before = self._chance.choice(there[: len(there) // 2 + 1]).id
        assert before is not None
        history.hide_maybe(before)
        wanted = {"before": str(before), "force": True}
        answer = self._call("POST", f"{admin(history)}/trim", params=_IN_EARNEST, json=wanted)
        self._expect(history, answer, 200, 409)
        history.note(f"trimmed before {before}: {answer.status} {answer.text[:300]}")
        if answer.status == 200 and answer.json()[0]["tail_left"] is None:
            history.hide(before)

    def truncate(self, history: History) -> None:
        with history.clearing() as clearing:
            history.note(f"truncate begins: {clearing}")
            self._call.until("DELETE", f"{admin(history)}/truncate", [204])
        history.note(f"truncated: {clearing}")

    def delete(self, history: History) -> None:
        """Delete and make again, with the policies that it had."""
        with history.clearing() as clearing:
            history.note(f"delete begins: {clearing}")
            self._call.until("DELETE", admin(history), [204, 404], params={"force": "true"})
            history.delete()
            self.create(history)
        history.note(f"deleted and created again: {clearing}")

    def create(self, history: History) -> None:
        self._call.until("PUT", admin(history), [204, 409])
        self._call.until("PUT", f"{admin(history)}/policies", [200, 204], json=history.policies)

    def collect(self, history: History) -> None:
        answer = self._call("POST", "/admin/v2/garbage", json={"dryRun": False, "graceMs": 60_000})
        self._expect(history, answer, 200, 409)

    def _expect(self, history: History, answer: Answer, *good: int) -> None:
        if answer.status not in (*good, *UNKNOWN):
            raise history.violation(f"answered {answer.status} {answer.text[:500]}")


def run_until(ended: threading.Event, step: Callable[[], object], pause: Callable[[], float]) -> Callable[[], None]:
    """A thread's work: step after step until the end."""

    def work() -> None:
        while not ended.is_set():
            step()
            ended.wait(pause())

    return work
