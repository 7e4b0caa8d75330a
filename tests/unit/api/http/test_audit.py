"""The audit log: a line for each change and each refusal, an id in every answer, and no secret in any line."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from fastapi import FastAPI

from api.http.access import AuthAction, Caller, permission_check
from api.http.audit import AuditMiddleware
from api.http.tokens import create_token
from api.observability import logs
from api.settings.settings import Settings
from tests.asgi import TestClient, access_of, application
from tests.clocks import ManualClock
from tests.event_loop import in_event_loop

SECRET = bytes(32)
OUTPUT = io.StringIO()


def changeable() -> FastAPI:
    clock = ManualClock()
    app = application(None, access_of(SECRET, "ops", clock=clock), Settings(), clock)

    @app.put("/change/{name}", name="change_it", dependencies=[permission_check(AuthAction.SUPERUSER)])
    def change(name: str, body: dict[str, str]) -> None:
        clock.advance(7)
        logging.getLogger("compactor.any").info("in the request", extra={"topic": "persistent://a/b/c", "run": 4})

    @app.get("/look")
    def look() -> None: ...

    @app.delete("/broken")
    def broken() -> None:
        raise RuntimeError("postgresql://me:planted@db/ said no")

    return app


@pytest.fixture
def client() -> Iterator[TestClient]:
    handler = logs.configure(Settings(logging_format="json"), OUTPUT)
    OUTPUT.seek(0)
    OUTPUT.truncate()
    yield TestClient(changeable(), raise_server_exceptions=False)
    root = logging.getLogger()
    root.removeHandler(handler)
    root.setLevel(logging.WARNING)
    logging.captureWarnings(False)
    structlog.contextvars.clear_contextvars()


def lines(event: str | None = None) -> list[dict[str, Any]]:
    """Return the logged lines; each is JSON."""
    logged = [json.loads(line) for line in OUTPUT.getvalue().splitlines()]
    return [item for item in logged if event in (None, item["event"])]


def test_a_change_is_one_line_that_says_who_what_and_how_it_ended(client: TestClient) -> None:
    headers = {"Authorization": f"Bearer {create_token(SECRET, 'ops', {})}", "X-Request-Id": "from-outside.1"}
    answer = client.put("/change/me?password=planted", json={"secret": "planted"}, headers=headers)
    assert (answer.status_code, answer.headers["X-Request-Id"]) == (200, "from-outside.1")
    (line,) = lines("change")
    del line["timestamp"]
    assert line == {
        "event": "change",
        "level": "info",
        "logger": "audit",
        "who": "ops",
        "address": "testclient",
        "method": "PUT",
        "target": "/change/me",
        "action": "change_it",
        "status": 200,
        "request_id": "from-outside.1",
        "duration_ms": 7,
    }
    assert "planted" not in OUTPUT.getvalue()


def test_what_is_logged_meanwhile_names_the_request_the_topic_and_the_run(client: TestClient) -> None:
    client.put("/change/x", json={}, headers={"Authorization": f"Bearer {create_token(SECRET, 'ops', {})}"})
    (inside,), (change,) = lines("in the request"), lines("change")
    assert inside["request_id"] == change["request_id"]
    assert (inside["topic"], inside["run"], inside["logger"]) == ("persistent://a/b/c", 4, "compactor.any")


def test_refusals_are_written_down_too(client: TestClient) -> None:
    client.put("/change/x", json={})
    client.put("/change/x", json={}, headers={"Authorization": f"Bearer {create_token(SECRET, 'other', {})}"})
    large = {"Content-Length": str(1 << 30), "Authorization": f"Bearer {create_token(SECRET, 'ops', {})}"}
    client.put("/change/x", content=b"{}", headers=large)
    assert [(line["status"], line["who"]) for line in lines("change")] == [
        (401, "anonymous@testclient"),
        (403, "other"),
        (413, "ops"),
    ]


def test_looking_is_no_change(client: TestClient) -> None:
    answer = client.get("/look")
    assert len(answer.headers["X-Request-Id"]) == 16
    assert lines() == []


def test_an_error_that_nobody_foresaw_is_written_down_with_its_request(client: TestClient) -> None:
    answer = client.delete("/broken", headers={"Authorization": f"Bearer {create_token(SECRET, 'ops', {})}"})
    assert answer.status_code == 500
    assert "planted" not in answer.text
    (line,) = lines("change")
    assert line["status"] == 500
    assert line["request_id"] in answer.json()["reason"]
    (error,) = [item for item in lines() if item["level"] == "error"]
    assert "RuntimeError" in error["exception"]
    assert "planted" not in OUTPUT.getvalue()


@pytest.mark.parametrize("sent", ["a b", "x" * 65, 'quote"', "new\tline"])
def test_an_id_that_is_no_plain_word_is_not_taken(sent: str, client: TestClient) -> None:
    assert client.get("/look", headers={"X-Request-Id": sent}).headers["X-Request-Id"] != sent


def test_values_of_fields_that_are_named_for_secrets_are_hidden(client: TestClient) -> None:
    extra = {"password": "planted", "nested": {"api_key": "planted", "list": ["Bearer planted-token"]}, "keys": 3}
    logging.getLogger("any").warning("with %s", "postgresql://me:planted@db/", extra=extra)
    (line,) = lines()
    assert line["keys"] == 3
    assert line["event"] == "with postgresql://me:***@db/"
    assert "planted" not in OUTPUT.getvalue()


def test_a_line_is_short_however_long_what_a_caller_sent_is(client: TestClient) -> None:
    logging.getLogger("any").warning("refused: %s", "://x" * 50_000)
    assert len(OUTPUT.getvalue()) < 20_000


def test_a_console_has_one_line_a_record_and_masks_as_well() -> None:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(logs.formatter(as_json=False))
    record = logging.LogRecord("any", logging.INFO, "", 0, "to postgresql://me:planted@db/", None, None)
    handler.emit(record)
    assert "to postgresql://me:***@db/" in out.getvalue()
    assert out.getvalue().count("\n") == 1


@pytest.mark.parametrize("begun", [False, True])
@in_event_loop
async def test_a_request_that_the_end_of_the_service_cuts_off_is_answered_and_no_traceback_is_logged(
    client: TestClient, begun: bool
) -> None:
    """The server cancels what is left when its grace is over."""
    sent: list[MutableMapping[str, Any]] = []

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        waiting.set()
        await asyncio.Event().wait()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    waiting = asyncio.Event()
    scope = {"type": "http", "method": "GET", "path": "/x", "headers": [], "state": {"caller": Caller("here")}}
    task = asyncio.create_task(AuditMiddleware(waits, ManualClock())(scope, send, send))  # type: ignore[arg-type]
    await waiting.wait()
    task.cancel()
    await task
    if begun:
        assert [message["status"] for message in sent] == [200], "and no end: the connection breaks off"
    else:
        start, body = sent
        assert (start["status"], dict(start["headers"])[b"retry-after"]) == (503, b"1")
        assert "the service is ending" in json.loads(body["body"])["reason"]
    (line,) = lines("a request was cut off at the end of the service")
    assert (line["target"], "exception" in line) == ("/x", False)
