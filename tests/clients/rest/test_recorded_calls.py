"""Every call that was recorded of a real broker (../shared/docs/pulsar-admin-rest.md), asked of this service in order.

Status, content type and body must be the broker's, but for what `DIFFERENT` lists with its reason; there what this
service answers is asserted as well, so nothing is passed over. Bodies that the page cuts short are compared as far as
they go: the same names in the same order with values of the same kind. `VARYING` are values that name places or times.
What a call needs to have happened before it (messages, another topic) is in `BEFORE`, by the page's own notes.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compactor.engines.engine import InProcessEngine, TaskFailure
from storage.errors import Unavailable
from tests.serving import Served, serving
from tests.workbench import content

PAGE = Path(__file__).resolve().parents[4] / "shared" / "docs" / "pulsar-admin-rest.md"
CALLS_ON_THE_PAGE = 165
_ROW = re.compile(r"\| `(\w+) (\S+)` \| (?:`(.*?)`)? ?\| (\d+) \| ([^|]*?) ?\| `(.*)` \| (.*?) ?\|")
NS = "/admin/v2/persistent/lab/rest"


@dataclass(frozen=True)
class Call:
    """One row of the page. `number` counts from 1."""

    number: int
    verb: str
    path: str
    body: str | None
    status: int
    content_type: str
    answer: str
    note: str

    @property
    def name(self) -> str:
        return f"{self.verb} {self.path}" + (f" ({self.note})" if self.note else "")


def recorded() -> list[Call]:
    """The page's rows, all of them."""
    if not PAGE.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{PAGE.name} is missing: CI needs ../shared beside the clone")
        pytest.skip(f"{PAGE.name} is not beside this clone (../shared/docs)")
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    calls = []
    for number, row in enumerate(rows, 1):
        match = _ROW.fullmatch(row)
        assert match is not None, f"this row cannot be read: {row}"
        verb, path, body, status, content_type, answer, note = match.groups()
        calls.append(Call(number, verb, path, body, int(status), content_type, answer, note))
    return calls


class Breaking(InProcessEngine):
    """An engine whose tasks fail while it is `broken`."""

    broken = False

    def run(self, count: int, task: Any, on_progress: Any, weights: Any = None) -> list[Any]:
        if self.broken:
            return [TaskFailure(Unavailable("the workers are away", "try again later"))] * count
        return super().run(count, task, on_progress, weights)


# What happens before a call


def _append(served: Served, topic: str, count: int, keys: int) -> None:
    rows = content(*((b"key-%d" % (number % keys), b"value-%d" % number) for number in range(count)))
    served.topic(f"persistent://lab/rest/{topic}").bulk_append().append([rows])


def _new(served: Served, topic: str, count: int) -> None:
    assert served.ask("PUT", f"{NS}/{topic}").status_code == 204
    _append(served, topic, count, 300)


def _append_to_partitions(served: Served) -> None:
    for partition in range(3):
        _append(served, f"pt-partition-{partition}", 5, 5)


def _again(served: Served) -> None:
    """The broker refused to delete `big` while it was compacted; here it is gone, so it is made once more."""
    _new(served, "big", 100)
    assert served.ask("PUT", f"{NS}/big/compaction").status_code == 204


def _break(served: Served) -> None:
    _new(served, "err", 10)
    assert isinstance(served.engine, Breaking)
    served.engine.broken = True


def _made(path: str) -> Callable[[Served], None]:
    def make(served: Served) -> None:
        body = '{"allowedClusters": ["standalone"]}'
        assert served.ask("PUT", path, body if "/tenants/" in path else None).status_code == 204

    return make


BEFORE: Mapping[str, Callable[[Served], None]] = {
    "GET /admin/v2/tenants": _made("/admin/v2/tenants/lab"),
    "trigger, 100 messages, 10 keys": lambda served: _append(served, "t1", 100, 10),
    "partitioned topic: triggers every partition": _append_to_partitions,
    "trigger, 60,000 unbatched messages": lambda served: _new(served, "big", 60_000),
    "every distinct answer until it ended (after the DELETE above)": _again,
    "big2: trigger": lambda served: _new(served, "big2", 6_000),
    "before": _break,
}
"""By note, or by call; everything else only needs the calls before it."""


# What is answered otherwise, and why


@dataclass(frozen=True)
class Different:
    """The answer of this service. `body` None: not compared; a function judges."""

    reason: str
    status: int
    body: Callable[[Any], bool] | None = None
    content_type: str | None = "application/json"


def _is(expected: object) -> Callable[[Any], bool]:
    return lambda body: bool(body == expected)


def _reason(text: str) -> Callable[[Any], bool]:
    return lambda body: list(body) == ["reason"] and text in body["reason"]


_JETTY = "the page of HTML is Jetty's own; the status is the same"
_S7 = "status and history survive (S7, Pulsar #21634); a broker forgets them when it unloads a topic"
_ONLY_PERSISTENT = "only persistent topics are stored; a broker fails with a ClassCastException"
_S8 = "a topic can be deleted while it is compacted: the run is stopped and never publishes (S8, Pulsar #23980)"
_SUCCESS = {"status": "SUCCESS", "lastError": ""}
_RUNNING = {"status": "RUNNING", "lastError": ""}

DIFFERENT: Mapping[str, Different] = {
    "GET /admin/v2/tenants": Different(
        "there are no system topics, so there is no tenant `pulsar` for them", 200, _is(["lab", "public"])
    ),
    "POST /admin/v2/persistent/lab/rest/t1/compaction (wrong verb)": Different(_JETTY, 405),
    "DELETE /admin/v2/persistent/lab/rest/t1/compaction (wrong verb)": Different(
        "a refusal has a reason here, not an empty body", 405
    ),
    "PUT /admin/v2/persistent/lab/rest/t1/compactionThreshold (wrong verb)": Different(
        "a refusal has a reason here, not an empty body", 405
    ),
    "POST /admin/v2/namespaces/lab/rest/compactionThreshold (wrong verb)": Different(_JETTY, 405),
    "PUT /admin/v2/nosuchdomain/lab/rest/t1/compaction (bad domain)": Different(
        "a refusal has a reason here, not an empty body", 404, _reason("Not Found")
    ),
    "PUT /admin/v2/non-persistent/lab/rest/np1/compaction (non-persistent topic)": Different(
        _ONLY_PERSISTENT, 412, _reason("Only persistent topics")
    ),
    "GET /admin/v2/non-persistent/lab/rest/np1/compaction (non-persistent topic)": Different(
        _ONLY_PERSISTENT, 412, _reason("Only persistent topics")
    ),
    "GET /admin/v2/non-persistent/lab/rest/np1/compactionThreshold (non-persistent)": Different(
        "there is no such topic to have a policy", 412, _reason("Only persistent topics")
    ),
    "GET /admin/v2/persistent/lab/rest/pt/compaction (partitioned topic)": Different(
        "the status of a partitioned topic is the sum of its partitions' (issue 6)", 200, _is(_SUCCESS)
    ),
    "DELETE /admin/v2/persistent/lab/rest/big (delete while running)": Different(_S8, 204, None, None),
    "GET /admin/v2/persistent/lab/rest/big2/compaction (big2: after unload)": Different(_S7, 200, _is(_RUNNING)),
    "PUT /admin/v2/persistent/lab/rest/big2/compaction (big2: trigger after unload)": Different(
        "the compaction still runs, so a second one is refused (S4)",
        409,
        _is({"reason": "Compaction already in progress"}),
    ),
    "POLL /admin/v2/persistent/lab/rest/big2/compaction (big2)": Different(
        "the run that was asked for first continues; a broker's second one meets the first one's consumer",
        200,
        _is([_RUNNING, _SUCCESS]),
    ),
    "GET /admin/v2/persistent/lab/rest/t1/compaction (t1 after unload: status is in memory only)": Different(
        _S7, 200, _is(_SUCCESS)
    ),
    "GET /admin/v2/persistent/lab/rest/t1/compaction (after deleting __compaction)": Different(_S7, 200, _is(_SUCCESS)),
    "GET /admin/v2/persistent/lab/rest/pt/stats (stats of a partitioned topic)": Different(
        "the reason says what to ask for instead",
        404,
        _reason("Topic persistent://lab/rest/pt not found: it is a partitioned topic, ask for partitioned-stats"),
    ),
    "GET /admin/v2/brokers/configuration": Different(
        "no setting of this service can be changed while it runs, so none is listed", 200, _is([])
    ),
    "GET /admin/v2/persistent/lab/rest/err/compaction (after)": Different(
        "the error is of this service's kind",
        200,
        lambda body: body["status"] == "ERROR" and "away" in body["lastError"],
    ),
}
"""By call and note. A name that stands for several rows holds for each."""

VARYING = frozenset(
    {
        *("brokerUrl", "httpUrl", "nativeUrl"),
        *("ledgerId", "brokerName", "storageSize", "statGeneratedAt"),
        *("lastCompactionFailedTimestamp", "lastCompactionDurationTimeInMills"),
    }
)
"""Names whose values are places, times, or sizes of a store of one's own; their kind is compared."""


# Comparing


def _told(text: str) -> Any:
    """The answer as the page shows it: JSON, or a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _prefix(text: str) -> Any:
    """Return the part of a JSON document that was recorded of one that is cut short."""
    decoder = json.JSONDecoder()
    opening, at = text[0], 1
    members: list[Any] = []
    while at < len(text):
        at += len(text[at:]) - len(text[at:].lstrip(" ,"))
        try:
            value, at = decoder.raw_decode(text, at)
            if opening == "{":
                name = value
                value, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip(" :")))
                members.append((name, value))
            else:
                members.append(value)
        except ValueError:
            break
    return dict(members) if opening == "{" else members


def _like(own: Any, theirs: Any) -> bool:
    """Equal, but for what varies, of which the kind is compared."""
    if isinstance(theirs, dict):
        return (
            isinstance(own, dict)
            and list(own) == list(theirs)
            and all(_kind(own[k]) == _kind(v) if k in VARYING else _like(own[k], v) for k, v in theirs.items())
        )
    return bool(own == theirs)


def _begins(own: Any, theirs: Any) -> bool:
    """Ours begins with the same names, in their order, each with a value of the same kind."""
    if isinstance(theirs, list):
        return isinstance(own, list)
    names = list(theirs)
    return list(own)[: len(names)] == names and all(_kind(own[name]) == _kind(theirs[name]) for name in names)


def _kind(value: Any) -> type:
    return type(value)


def _spaces(text: str) -> str:
    return " ".join(text.split())


@dataclass(frozen=True)
class Answer:
    """The result of a call."""

    status: int
    content_type: str
    text: str

    @property
    def body(self) -> Any:
        return _told(self.text)


def _ask(served: Served, call: Call) -> Answer:
    """Make a call of the page. POLL repeats it until the compaction has ended, and returns every distinct answer."""
    if call.verb != "POLL":
        body = call.body
        if call.note == "empty body":
            body = ""
        response = served.ask(call.verb, call.path, body)
        return Answer(response.status_code, response.headers.get("content-type", ""), response.text)
    seen: list[Any] = []
    for _ in range(2):
        response = served.ask("GET", call.path)
        if response.json() not in seen:
            seen.append(response.json())
        served.compact_requested()
    return Answer(response.status_code, response.headers.get("content-type", ""), json.dumps(seen))


def _problems(call: Call, answer: Answer) -> Iterator[str]:
    """Yield the problems of an answer."""
    different = DIFFERENT.get(call.name)
    if different is not None:
        if answer.status != different.status:
            yield f"status {answer.status}, not {different.status} ({different.reason})"
        if different.body is not None and not different.body(answer.body):
            yield f"{answer.text[:300]} is not what differs ({different.reason})"
        if (different.content_type or "") != answer.content_type:
            yield f"content type {answer.content_type!r}"
        return
    if answer.status != call.status:
        yield f"status {answer.status}, not {call.status}"
    if answer.content_type != call.content_type:
        yield f"content type {answer.content_type!r}, not {call.content_type!r}"
    if call.answer in ("(empty)", '""'):
        if answer.text:
            yield f"{answer.text[:300]!r}, not an empty body"
    elif call.answer.endswith("…"):
        if not _begins(answer.body, _prefix(call.answer)):
            yield f"{answer.text[:900]} does not begin as {call.answer}"
    elif call.note in ONE_PART:
        if not _like(answer.body[ONE_PART[call.note]], _told(call.answer)):
            yield f"{answer.text[:900]} has not {call.answer}"
    elif isinstance(_told(call.answer), str):
        if _spaces(answer.text) != _spaces(call.answer):
            yield f"{answer.text[:300]!r}, not {call.answer!r}"
    elif not _like(answer.body, _told(call.answer)):
        yield f"{answer.text[:900]}, not {call.answer}"


ONE_PART = {"only .compaction kept": "compaction"}
ENDED = ("SUCCESS", "ERROR")
"""A recorded status that says that a compaction is over."""


def _is_over(call: Call) -> bool:
    """Return whether the broker had executed the earlier calls when it got this one."""
    return call.verb == "GET" and (any(f'"{item}"' in call.answer for item in ENDED) or call.note in OVER)


OVER = frozenset(
    {
        "after compaction of the empty topic",
        "partitioned topic",  # the broker has no status of it: here it is the partitions'
        "one partition",
        "only .compaction kept",
    }
)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Call, Answer]]:
    """Every call's answer, in the page's order, by number."""
    answers = {}
    with serving(tmp_path_factory.mktemp("recorded"), Breaking()) as served:
        for call in recorded():
            for key in (call.name, call.note):
                if key in BEFORE and key:
                    BEFORE[key](served)
                    break
            if _is_over(call):
                served.compact_requested()
            answers[call.number] = (call, _ask(served, call))
    return answers


@pytest.mark.slow
def test_every_row_of_the_page_is_asked(replayed: dict[int, tuple[Call, Answer]]) -> None:
    assert len(replayed) == CALLS_ON_THE_PAGE


def test_every_call_is_answered_as_recorded(replayed: dict[int, tuple[Call, Answer]]) -> None:
    wrong = [
        f"{number}. {call.name}: {problem}"
        for number, (call, answer) in replayed.items()
        for problem in _problems(call, answer)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_difference_is_one(replayed: dict[int, tuple[Call, Answer]]) -> None:
    names = {call.name for call, _ in replayed.values()}
    assert not DIFFERENT.keys() - names, "these calls are not on the page"
    for call, answer in replayed.values():
        if call.name in DIFFERENT:
            same = answer.status == call.status and answer.content_type == call.content_type
            assert not (same and answer.body == _told(call.answer)), f"{call.name} does not differ any more"
