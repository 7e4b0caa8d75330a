"""Replays tables of calls in a service of this process and returns every answer, byte by byte.

A file `NAME.calls` is a scene: a new service, and calls in their order.

    VERB PATH BODY          one call; BODY goes as JSON unless headers say otherwise; `$x(7)` is 7 letters
                            and `$token(R)` the token of the role R
        Header: value       indented lines are headers of the call above; an empty value removes one
    @ACTION ARGUMENTS       a preparation, one function of `preparations.py`
    @settings name=value    first line of a scene: settings of its service, by their Python names
    # …                     a comment

`$T`, `$N`, `$P` and `$S` are the paths of topics, of the namespace, of producing and of schemas in `public/default`.
Time stands still until `@advance`. What differs between two runs all the same is replaced by a name: `NORMALISED`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import storage.clock
from api.http.tokens import create_token
from tests.clients.rest.recorded import preparations
from tests.clients.rest.recorded.preparations import SECRET, Scene
from tests.clocks import ManualClock
from tests.serving import serving

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
SCENES = sorted(path.stem for path in HERE.glob("*.calls"))
HEADERS = (
    *("content-type", "retry-after", "location", "allow", "www-authenticate", "connection", "cache-control"),
    *("content-security-policy", "set-cookie", "deprecation", "link"),
)
"""Headers that are recorded, besides all that begin with `x-` but the random `X-Request-Id`."""

_PATHS = {
    "$T": "/admin/v2/persistent/public/default",
    "$N": "/admin/v2/namespaces/public/default",
    "$P": "/topics/persistent/public/default",
    "$S": "/admin/v2/schemas/public/default",
}
_LETTERS = re.compile(r"\$x\((\d+)\)")
_TOKEN = re.compile(r"\$token\((\w+)\)")
_SPOKEN = ("description", "summary", "title")
"""Names of texts in the OpenAPI document that say what something is."""
_PAGES = ("text/html", "text/css", "text/javascript")
"""Content of the dashboard, of which the title alone is recorded: tests of its own look at the pages."""
_TITLE = re.compile("<title>(.*?)</title>")


@dataclass(frozen=True)
class Normalised:
    """A part of answers that no two runs share, the name that replaces it, and the reason."""

    pattern: re.Pattern[str]
    name: str
    reason: str


def _named(pattern: str, name: str, reason: str) -> Normalised:
    return Normalised(re.compile(pattern), name, reason)


NORMALISED = (
    _named(r"[\w.-]+:\d+:[0-9a-f]{8}-[0-9a-f]+:[0-9a-f]{8}\b", "<owner>", "host, process and random part of an owner"),
    _named(r"\b[0-9a-f]{32}\b", "<uid>", "random uids of topics, log directories and attempts"),
    _named(r"\bin request [0-9a-f]{16}\b", "in request <request>", "a random id of each request"),
    _named(r"\bexpires=[^;]+", "expires=<time>", "a cookie that is deleted has the time of the machine"),
    _named(r"\b\d+\.\d\d s\b", "<time> s", "how long a command took"),
    _named(r"\bhas \d+ bytes, too few for start=0 length=\d+", "has too few bytes", "the owner in a manifest varies"),
    _named(r"\b\d+ bytes left", "<free> bytes left", "the free space of the machine's disk"),
)


@dataclass
class Call:
    """One line of a table. `text` is the line."""

    text: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, str, str | None]:
        """The verb, the path and the body."""
        verb, path, *body = self.text.split(None, 2)
        return verb, _expanded(path), _expanded(body[0]) if body else None

    @property
    def is_action(self) -> bool:
        return self.text.startswith("@")


def _expanded(text: str) -> str:
    for name, path in _PATHS.items():
        text = text.replace(name, path)
    text = _TOKEN.sub(lambda role: create_token(SECRET, role[1], {}), text)
    return _LETTERS.sub(lambda count: "x" * int(count[1]), text)


def calls_of(scene: str) -> list[Call]:
    """The lines of a scene's table."""
    calls: list[Call] = []
    for line in (HERE / f"{scene}.calls").read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            name, _, value = line.strip().partition(":")
            calls[-1].headers[name] = value.strip()
        else:
            calls.append(Call(line))
    return calls


def settings_of(calls: list[Call]) -> dict[str, Any]:
    """The settings of a scene's service."""
    settings: dict[str, Any] = {"limits_requests_per_second": 0.0}
    for call in calls:
        if call.text.startswith("@settings"):
            for item in call.text.split()[1:]:
                name, _, value = item.partition("=")
                setting = json.loads(value)
                settings[name] = tuple(setting) if isinstance(setting, list) else setting
    if settings.pop("tokens", False):
        settings |= {
            "auth_token_secret_key": "data:;base64," + base64.b64encode(SECRET).decode(),
            "auth_superuser_roles": ("root",),
        }
    return settings


def answers(scene: str, folder: Path) -> list[list[Any]]:
    """Each call of a scene with its answer: call, status, headers and body."""
    calls = calls_of(scene)
    with (
        pytest.MonkeyPatch.context() as patch,
        stopped_clock(patch) as clock,
        serving(folder, **settings_of(calls)) as served,
    ):
        return list(_replayed(calls, Scene(served, clock, patch, folder)))


@contextmanager
def stopped_clock(patch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    """Let the machine's clock stand still. Waiting takes its time, so no thread runs in circles."""
    clock = ManualClock()
    patch.setattr(storage.clock.SystemClock, "now_ms", lambda _: clock.now_ms())
    yield clock


def _replayed(calls: list[Call], scene: Scene) -> Iterator[list[Any]]:
    try:
        scene.begin()
        for call in calls:
            if call.is_action:
                action, *arguments = call.text[1:].split()
                if action != "settings":
                    prepare: Callable[..., None] = getattr(preparations, action)
                    prepare(scene, *arguments)
            else:
                yield _asked(scene, call)
    finally:
        scene.close()


def _asked(scene: Scene, call: Call) -> list[Any]:
    verb, path, body = call.parts
    headers = {"content-type": "application/json"} if body is not None else {}
    if scene.role:
        headers["authorization"] = f"Bearer {create_token(SECRET, scene.role, {})}"
    headers |= {name.lower(): _expanded(value) for name, value in call.headers.items()}
    headers = {name: value for name, value in headers.items() if value}
    content = None if body is None else body.encode()
    response = scene.client.request(verb, path, content=content, headers=headers, follow_redirects=False)
    recorded = {
        name: normalised(value, scene.folder)
        for name, value in sorted(response.headers.items())
        if (name in HEADERS or name.startswith("x-")) and name != "x-request-id"
    }
    return [call.text, response.status_code, recorded, _body(response, path, scene.folder)]


def _body(response: Any, path: str, folder: Path) -> str:
    if path == "/metrics":  # its numbers are of the process, and move
        return "".join(f"{line}\n" for line in response.text.splitlines() if line.startswith("#"))
    if path == "/openapi.json":
        return _openapi(response.json())
    if response.headers.get("content-type", "").startswith(_PAGES):
        return "".join(_TITLE.findall(response.text)[:1])  # pictures have titles, too
    try:
        text = response.content.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(response.content).decode()
    return normalised(text, folder)


def _openapi(document: Any) -> str:
    """Return each operation's id, statuses and checksum, and the checksum of each schema; texts do not count."""
    operations = {
        f"{verb.upper()} {path}": f"{item['operationId']} {' '.join(item['responses'])} {_checksum(item)}"
        for path, verbs in document["paths"].items()
        for verb, item in verbs.items()
    }
    schemas = {name: _checksum(item) for name, item in document["components"]["schemas"].items()}
    return json.dumps({"operations": operations, "schemas": schemas})


def _checksum(item: Any) -> str:
    return hashlib.sha256(json.dumps(_unspoken(item)).encode()).hexdigest()[:8]


def _unspoken(item: Any) -> Any:
    """Return a part of the OpenAPI document without its texts, which are docstrings."""
    if isinstance(item, list):
        return [_unspoken(value) for value in item]
    if not isinstance(item, dict):
        return item
    return {name: _unspoken(value) for name, value in item.items() if name not in _SPOKEN or not isinstance(value, str)}


def normalised(text: str, folder: Path) -> str:
    """The text with the names of `NORMALISED`, and without the folder of the test."""
    text = text.replace(str(folder), "<folder>")
    for item in NORMALISED:
        text = item.pattern.sub(item.name, text)
    return text


def document(recorded: dict[str, list[list[Any]]]) -> str:
    """The file of all scenes: an answer a line, so that a change is seen in a diff."""
    scenes = []
    for scene, lines in recorded.items():
        answers_of_scene = ",\n".join(f"    {json.dumps(line, ensure_ascii=False)}" for line in lines)
        scenes.append(f"  {json.dumps(scene)}: [\n{answers_of_scene}\n  ]")
    return "{\n" + ",\n".join(scenes) + "\n}\n"


def differences(file: Path, table: str, actual: list[list[Any]]) -> list[str]:
    """Return each line of a table that is not as the file has it, with both answers."""
    expected = json.loads(file.read_text())[table]
    assert [line[0] for line in actual] == [line[0] for line in expected], "record again: the table has other lines"
    return [f"{new}\n  recorded: {old[1:]}" for new, old in zip(actual, expected, strict=True) if new != old]
