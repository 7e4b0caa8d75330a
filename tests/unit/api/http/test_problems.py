"""Answers about failures hold no secret and no place of the service's parts, and the log has one line for each."""

from __future__ import annotations

import logging

import pytest

from api.broker.refusals import PoolBusy
from api.http.problems import RestException
from api.reports import redacted_error_text
from storage.errors import (
    CompactorError,
    ErrorText,
    InvalidInput,
    Misconfigured,
    ObjectMissing,
    StorageFull,
    Unavailable,
)
from tests.asgi import TestClient, application

ENDPOINT = 'Could not connect to the endpoint URL: "http://user:pass-word@minio:9000/bucket/prefix/x"'


def answering(error: Exception) -> TestClient:
    app = application()

    @app.get("/read")
    def read() -> None:
        raise error

    return TestClient(app, raise_server_exceptions=False)


@pytest.mark.parametrize(
    "error",
    [
        Unavailable(f"cannot read object x in s3://bucket/prefix, EndpointConnectionError: {ENDPOINT}", "try again"),
        Misconfigured("the database postgresql+psycopg://me:hunter2@db/c failed", "check it"),
        Unavailable("the database failed: failed to resolve host 'db-prod.internal': unknown", "check it"),
        Misconfigured("bucket acme does not exist, asked to read object x", "make it"),
        StorageFull("the segment file /srv/log/0.log cannot be written", "free space"),
        ObjectMissing("object x does not exist in s3://bucket/prefix", "check COMPACTOR_STORE"),
        RestException(503, "n cannot be reached at http://me:hunter2@other (password='hunter2 x'): try again"),
        InvalidInput("'postgresql://me:hunter2@db/c' is no topic", "give one"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_no_answer_holds_a_secret_nor_where_store_and_database_are(error: CompactorError) -> None:
    answer = answering(error).get("/read").json()["reason"]
    for hidden in ("hunter2", "pass-word", "bucket", "minio", "@db", "db-prod", "/srv"):
        assert hidden not in answer or isinstance(error, InvalidInput)
    assert "hunter2" not in answer
    assert "is no topic" in answer or "cannot be reached" in answer or "see the log of the service" in answer


def test_a_pool_that_refuses_is_answered_with_the_time_to_wait_and_not_logged_twice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = answering(PoolBusy("the database has not answered within 1 ms", "deadline", "database")).get("/read")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json() == {"reason": "the database has not answered within 1 ms: try again"}
    assert not caplog.records


def test_what_is_the_operators_is_logged_once_whole(caplog: pytest.LogCaptureFixture) -> None:
    client = answering(Unavailable(f"cannot read object x, {ENDPOINT}", "try again"))
    for _ in range(3):
        answer = client.get("/read")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
    (record,) = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert "GET /read is answered 503: cannot read object x" in record.message
    assert "minio:9000/bucket" in record.message


def test_damage_of_each_topic_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    app = application()

    @app.get("/read/{topic}")
    def read(topic: str) -> None:
        raise ObjectMissing(f"object of {topic} does not exist in s3://bucket", "restore it")

    client = TestClient(app, raise_server_exceptions=False)
    for topic in ("t", "u", "u"):
        assert client.get(f"/read/{topic}").status_code == 507
    logged = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [("of t " in item, "of u " in item) for item in logged] == [(True, False), (False, True)]


def test_a_reason_is_short_however_long_the_names_in_it_are() -> None:
    answer = (
        answering(RestException(403, f"role 'me' has no permission in {'://x' * 8000}: ask"))
        .get("/read")
        .json()["reason"]
    )
    assert (len(answer), answer[:9], answer[-5:]) == (1000, "role 'me'", ": ask")


def test_errors_in_documents_hold_no_secret() -> None:
    error = ErrorText.from_error(Unavailable("http://me:hunter2@x failed", "try again"))
    assert redacted_error_text(error) == "http://me:***@x failed: try again"
    assert redacted_error_text(ErrorText()) is None


def test_what_is_kept_of_an_error_is_shown_in_full_to_operators_only() -> None:
    kept = ErrorText.from_error(Unavailable(f"cannot read object x of bucket acme, {ENDPOINT}", "try again"))
    assert (
        redacted_error_text(kept)
        == f"cannot read object x of bucket acme, {ENDPOINT.replace('pass-word', '***')}: try again"
    )
    answer = redacted_error_text(kept, wording=None) or ""
    assert answer.endswith("does not answer now: try again; see the log of the service")
    kept = ErrorText.from_error(ZeroDivisionError("in /srv/x"))
    assert redacted_error_text(kept, wording=None) == "unexpected ZeroDivisionError: see the log of the service"
    assert ErrorText.from_error(KeyboardInterrupt()) == ErrorText("interrupted")
    kept = ErrorText.from_error(InvalidInput("'x' is no topic", "give one"))
    assert redacted_error_text(kept) == redacted_error_text(kept, wording=None) == "'x' is no topic: give one"
    kept = ErrorText("of an older version, in s3://acme/x: try")
    assert redacted_error_text(kept, wording=None) == "of an older version, in …: try"
