"""S3 that fails: lost answers, conflicts, refusals and absences, and the error that the user gets for each."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import urllib3.exceptions
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError

from storage.errors import CompactorError, Misconfigured, ObjectExists, ObjectMissing, StorageFull, Unavailable
from storage.objects.interface import StoreLocation
from storage.objects.s3 import S3Requests, S3Store
from tests.conformance.objects.conftest import PART_BYTES, THRESHOLD_BYTES, s3_store
from tests.servers.fixtures_s3 import S3Server, use_credentials

Call = Callable[[S3Store], object]
CALLS: dict[str, Call] = {
    "put": lambda store: store.put("an/object", b"x"),
    "put of a large object": lambda store: store.put("an/object", bytes(THRESHOLD_BYTES)),
    "get": lambda store: store.get("an/object"),
    "size": lambda store: store.size("an/object"),
    "list": lambda store: list(store.list("an/object")),
    "delete": lambda store: store.delete("an/object"),
}
each_call = pytest.mark.parametrize("call", list(CALLS.values()), ids=list(CALLS))


class HandClock:
    """A clock that is moved by hand, and remembers for how long it was asked to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now_ms(self) -> int:
        return 0

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)


class CannedBody:
    """The body of an answer that no server sent; breaks when it is read if there is none."""

    def __init__(self, content: bytes | None) -> None:
        self._content = content

    def read(self, amount: int | None = None) -> bytes:
        if self._content is None:
            raise urllib3.exceptions.ProtocolError("Connection broken")
        content, self._content = self._content, b""
        return content

    def stream(self) -> Iterator[bytes]:
        yield self.read()

    def close(self) -> None:
        return


def answer(status: int, code: str) -> AWSResponse:
    body = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode()
    return AWSResponse("http://test", status, {}, CannedBody(body))


def on_send(store: S3Store, operation: str, faults: list[Callable[[Any], Any]]) -> list[Any]:
    """Let the next requests of an operation meet the faults, one each. Returns the faults still to come."""

    def meet(request: Any, **_: Any) -> Any:
        return faults.pop(0)(request) if faults else None

    store.client.meta.events.register(f"before-send.s3.{operation}", meet)
    return faults


def lose_answer(store: S3Store) -> Callable[[Any], Any]:
    """Let the server do what it is asked, and lose what it says."""

    def send_and_lose(request: Any) -> Any:
        store.client._endpoint.http_session.send(request)
        raise ConnectionClosedError(endpoint_url=request.url)

    return send_and_lose


def lose_request(request: Any) -> Any:
    raise ConnectionClosedError(endpoint_url=request.url)


def uploads_left(store: S3Store) -> list[Any]:
    remaining: list[Any] = store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", [])
    return remaining


@pytest.fixture(params=["moto_server", "versitygw"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    instance: S3Server = request.getfixturevalue(request.param)
    use_credentials(monkeypatch, instance)
    return instance


@pytest.fixture
def store(server: S3Server) -> Iterator[S3Store]:
    opened = s3_store(server, server.make_bucket(), attempts=2)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("operation", "size"), [("PutObject", 1000), ("CompleteMultipartUpload", THRESHOLD_BYTES)], ids=["put", "large"]
)
class TestLostAnswers:
    """A write that took effect and whose answer was lost is a success, whichever layer retried it."""

    def test_retry_is_not_refused_by_our_own_object(self, store: S3Store, operation: str, size: int) -> None:
        remaining = on_send(store, operation, [lose_answer(store)])
        store.put("a", b"o" * size)
        assert remaining == []
        assert store.get("a") == b"o" * size

    def test_success_even_if_no_answer_ever_comes(self, store: S3Store, operation: str, size: int) -> None:
        remaining = on_send(store, operation, [lose_answer(store), lose_request])
        with store.create("a") as writer:
            writer.write(b"o" * size)
        assert remaining == []
        assert store.get("a") == b"o" * size

    def test_another_writers_object_is_still_another_writers(self, store: S3Store, operation: str, size: int) -> None:
        def other_is_first(request: Any) -> Any:
            s3 = S3Store(store.location, S3Requests(attempts=1))
            s3.put("a", b"o" * size)
            s3.close()
            return lose_request(request)

        on_send(store, operation, [other_is_first])
        with pytest.raises(ObjectExists, match="object a exists already"):
            store.put("a", b"o" * size)
        assert uploads_left(store) == []

    def test_a_write_that_never_arrived_is_unavailable(self, store: S3Store, operation: str, size: int) -> None:
        on_send(store, operation, [lose_request, lose_request])
        with pytest.raises(Unavailable, match="object a in s3://") as caught:
            store.put("a", b"o" * size)
        assert caught.value.remedy
        assert list(store.list()) == []
        assert uploads_left(store) == []

    def test_a_conflict_is_tried_again_after_a_wait(self, store: S3Store, operation: str, size: int) -> None:
        clock = HandClock()
        waiting = S3Store(store.location, S3Requests(THRESHOLD_BYTES, PART_BYTES, attempts=2), clock)
        remaining = on_send(waiting, operation, [lambda request: answer(409, "ConditionalRequestConflict")])
        waiting.put("a", b"o" * size)
        assert remaining == []
        assert len(clock.waits) == 1
        assert waiting.get("a") == b"o" * size
        assert uploads_left(waiting) == []
        waiting.close()

    @pytest.mark.parametrize(
        ("status", "code", "kind"),
        [
            (503, "SlowDown", Unavailable),
            (409, "ConditionalRequestConflict", Unavailable),
            (507, "XMinioStorageFull", StorageFull),
            (403, "AccessDenied", Misconfigured),
            (400, "ExpiredToken", Misconfigured),
            (501, "NotImplemented", Misconfigured),
        ],
    )
    def test_a_server_that_keeps_refusing(
        self, store: S3Store, operation: str, size: int, status: int, code: str, kind: type[CompactorError]
    ) -> None:
        on_send(store, operation, [lambda request: answer(status, code)] * 4)
        with pytest.raises(kind, match="object a in s3://") as caught:
            store.put("a", b"o" * size)
        assert type(caught.value) is kind
        assert code in caught.value.message
        assert caught.value.remedy
        assert uploads_left(store) == []


def test_an_object_that_may_be_the_own_one_is_unavailable(store: S3Store) -> None:
    """The retry of a write that took effect is refused, and no answer says which call created the object."""
    on_send(store, "PutObject", [lose_answer(store)])
    remaining = on_send(store, "HeadObject", [lose_request] * 2)
    with pytest.raises(Unavailable, match="cannot write object a"):
        store.put("a", b"o")
    assert remaining == []
    assert store.get("a") == b"o"


def test_an_abandoned_large_writer_leaves_no_parts(store: S3Store) -> None:
    with pytest.raises(KeyError), store.create("half") as writer:  # noqa: PT012
        writer.write(bytes(2 * PART_BYTES))
        assert len(uploads_left(store)) == 1
        raise KeyError("stop")
    assert uploads_left(store) == []


def test_a_large_writer_that_loses_leaves_no_parts(store: S3Store) -> None:
    store.put("a", b"first")
    with pytest.raises(ObjectExists):
        store.put("a", bytes(2 * PART_BYTES))
    assert uploads_left(store) == []


def test_a_body_that_breaks_off_is_read_again(store: S3Store) -> None:
    store.put("a", b"whole")
    remaining = on_send(store, "GetObject", [lambda request: AWSResponse("http://test", 200, {}, CannedBody(None))])
    assert store.get("a") == b"whole"
    assert remaining == []


def test_a_body_that_always_breaks_off_is_unavailable(store: S3Store) -> None:
    store.put("a", b"whole")
    on_send(store, "GetObject", [lambda request: AWSResponse("http://test", 200, {}, CannedBody(None))] * 2)
    with pytest.raises(Unavailable, match=r"object .*a of bucket .* breaks off") as caught:
        store.get("a")
    assert caught.value.remedy


@each_call
def test_missing_bucket(server: S3Server, call: Call) -> None:
    missing = s3_store(server, "no-such-bucket-here")
    with pytest.raises(Misconfigured, match="bucket no-such-bucket-here") as caught:
        call(missing)
    assert "does not exist" in caught.value.message
    assert "make the bucket" in caught.value.remedy
    missing.close()


@each_call
def test_refused_credentials(versitygw: S3Server, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    use_credentials(monkeypatch, versitygw)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    refused = s3_store(versitygw, versitygw.make_bucket())
    with pytest.raises(Misconfigured, match="an/object") as caught:
        call(refused)
    assert refused.bucket in caught.value.message
    assert "credentials" in caught.value.remedy
    assert "not-the-secret" not in str(caught.value)
    refused.close()


@each_call
def test_no_credentials(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    use_credentials(monkeypatch, moto_server)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    anonymous = s3_store(moto_server, "bucket")
    with pytest.raises(Misconfigured, match="an/object") as caught:
        call(anonymous)
    assert "AWS_ACCESS_KEY_ID" in caught.value.remedy
    anonymous.close()


@each_call
def test_unreachable_endpoint(moto_server: S3Server, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    use_credentials(monkeypatch, moto_server)
    nowhere = S3Store(
        StoreLocation("s3://bucket", "http://127.0.0.1:9", "us-east-1"),
        S3Requests(THRESHOLD_BYTES, PART_BYTES, attempts=1),
    )
    with pytest.raises(Unavailable, match="an/object") as caught:
        call(nowhere)
    assert "s3://bucket" in caught.value.message
    assert "endpoint" in caught.value.remedy
    nowhere.close()


def test_an_endpoint_that_is_no_url_is_misconfigured() -> None:
    with pytest.raises(Misconfigured, match="cannot make an S3 client for s3://bucket"):
        S3Store(StoreLocation("s3://bucket", "not a url", "us-east-1")).get("a")


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://user:secret@bucket", "s3://bucket?x=1"])
def test_urls_that_name_no_bucket_are_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(Misconfigured, match="not of the form") as caught:
        S3Store(StoreLocation(url))
    assert "secret" not in str(caught.value)


def test_a_store_is_not_pickled_and_a_forked_child_makes_its_own_client(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TypeError, match="send its location"):
        pickle.dumps(store)
    client = store.client
    assert store.client is client
    with monkeypatch.context() as child:
        child.setattr("storage.objects.s3.os.getpid", lambda: -1)
        assert store.client is not client
    client.close()


def test_prefixes_of_one_bucket_do_not_see_each_other(store: S3Store) -> None:
    beside = S3Store(StoreLocation(f"s3://{store.bucket}/some/pre", store.location.s3_endpoint, "us-east-1"))
    beside.put("a", b"beside")
    assert list(store.list()) == []
    with pytest.raises(ObjectMissing):
        store.get("a")
    beside.close()
