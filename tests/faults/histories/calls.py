"""REST calls of the random histories: any service is asked, and each answer says what is known afterwards.

An answer that does not come, or one of `UNKNOWN`, leaves open whether the call took effect. 500 is a violation. Calls
that must take effect are repeated until they do (`Caller.until`).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.faults.engine.history import History, ReadMessage, parsed_slot
from tests.faults.engine.report import Kind, Report, Violation
from tests.faults.histories.services import LONGEST_STOP_SECONDS, Service

NO_ANSWER = 0
UNKNOWN = (NO_ANSWER, 429, 500, 502, 503, 504)
NEXT = "X-Compactor-Next"
AGAIN_SECONDS = 0.2
GIVES_UP_SECONDS = 180.0
_OUTLASTS_SECONDS = LONGEST_STOP_SECONDS + 30
"""How long the answer to a deletion may take."""
_LATE_SECONDS = 3.0
"""In that time a service that continues has executed what other services had forwarded to it."""


@dataclass(frozen=True)
class Answer:
    """`status` 0: none came."""

    status: int
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.text)


class Caller:
    """A client of the services' REST, for one thread."""

    def __init__(self, services: Sequence[Service], chance: random.Random, report: Report) -> None:
        self.services = services
        self._chance = chance
        self._report = report
        self._client = httpx.Client(timeout=httpx.Timeout(10.0, connect=2.0))

    def __call__(self, method: str, path: str, **options: Any) -> Answer:
        """Ask one of the services. Raises Violation for a 500."""
        service = self._chance.choice(self.services)
        if not service.url:
            time.sleep(0.05)
            return Answer(NO_ANSWER)
        try:
            response = self._client.request(method, service.url + path, **options)
        except httpx.HTTPError:
            self._report.count("no answer")
            return Answer(NO_ANSWER)
        if response.status_code == 500:
            text = f"{method} {path} at {service.name}: 500 {response.text[:300]}"
            self._report.add(Violation(text, Kind.ANSWER, path, f"{method} 500"))
        return Answer(response.status_code, response.text, response.headers)

    def until(self, method: str, path: str, good: Sequence[int], **options: Any) -> Answer:
        """Ask until the answer is one of `good`. Raises Violation if that takes too long.

        A deletion waits for its answer longer than a service is stopped: a service that continues executes what it
        was asked before, also where the caller has hung up. One service may have asked another; that has some time.
        """
        deletes = method == "DELETE"
        if deletes:
            options["timeout"] = httpx.Timeout(_OUTLASTS_SECONDS, connect=2.0)
        deadline = time.monotonic() + GIVES_UP_SECONDS
        tries = 1
        while (answer := self(method, path, **options)).status not in good:
            if time.monotonic() > deadline:
                text = f"{method} {path} does not succeed: {answer.status} {answer.text[:500]}"
                raise Violation(text, Kind.STUCK, path, method)
            time.sleep(AGAIN_SECONDS)
            tries += 1
        if deletes and tries > 1:
            time.sleep(_LATE_SECONDS)
        return answer

    def close(self) -> None:
        self._client.close()


def expect(history: History, answer: Answer, *good: int) -> None:
    """Check that an answer is one of `good`, or none. Raises Violation."""
    if answer.status not in (*good, *UNKNOWN):
        raise history.violation(Kind.ANSWER, f"answered {answer.status} {answer.text[:500]}", str(answer.status))


def parsed(text: str) -> Iterator[ReadMessage]:
    """Yield the messages of a page."""
    for text_line in text.splitlines():
        line = json.loads(text_line)
        at = parsed_slot(line["message_id"])
        when = line.get("event_time") or line.get("publish_time") or 0
        yield ReadMessage(
            line["properties"].get("n", "?"), at, line["key"], line["value"], line.get("offset", -1), when
        )


def read_all(
    call: Callable[..., Answer], history: History, log: str, compacted: bool, chance: random.Random
) -> list[ReadMessage]:
    """Read a log, page by page, while nothing is made to fail. Raises Violation for any answer but pages."""
    messages: list[ReadMessage] = []
    token, since = "earliest", history.now()
    deadline = time.monotonic() + GIVES_UP_SECONDS
    while True:
        parameters = {
            "start": token,
            "readCompacted": str(compacted).lower(),
            "limit": chance.choice([100, 1000, 2000]),
        }
        answer = call("GET", f"{history.admin_of(log)}/messages", params=parameters)
        if answer.status in UNKNOWN and time.monotonic() < deadline:
            time.sleep(AGAIN_SECONDS)
            continue
        if answer.status != 200:
            raise history.violation(Kind.ANSWER, f"a read of {parameters}: {answer.status} {answer.text[:500]}", "read")
        page = list(parsed(answer.text))
        for item in page:
            history.check_read(item, since)
            if messages and item.id <= messages[-1].id:
                raise history.violation(
                    Kind.ORDER, f"a read of {log} returned {item} after {messages[-1]}", item.serial
                )
            messages.append(item)
        if not page and answer.headers[NEXT] == token:
            return messages
        token = answer.headers[NEXT]


def run_until(
    ended: threading.Event, step: Callable[[], object], pause: Callable[[], float], report: Report
) -> Callable[[], None]:
    """Return a thread's work: step after step until the end; a violation ends its step."""

    def work() -> None:
        while not ended.is_set():
            with report.collecting():
                step()
            ended.wait(pause())

    return work
