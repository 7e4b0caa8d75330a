"""The Python client (`compactor.client`), for threads and for asyncio, against a service in this process."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from compactor.client import (
    AccessRefused,
    AsyncClient,
    AsyncTopic,
    Client,
    ClientError,
    Message,
    NotFound,
    Topic,
    Unavailable,
    connect,
    connect_async,
)
from compactor.client.messages import COLUMNS
from tests.clients.rest.conftest import RestTopic
from tests.serving import Served

LOADED = """
import sys, compactor.client
print(sorted(name for name in sys.modules if name.partition(".")[0] in
      {"api", "storage", "pyspark", "sqlalchemy", "pyarrow", "polars", "numpy", "pandas"}
      or name.startswith("compactor.") and not name.startswith("compactor.client")))
"""


@pytest.fixture
def half_compacted(rest_topic: RestTopic, served: Served) -> RestTopic:
    """Five messages, of which the first four are compacted: a is 2, b is deleted, c is new."""
    rest_topic.put(a="1", b="1")
    rest_topic.put(a="2")
    rest_topic.put(b=None)
    assert rest_topic.ask("PUT", "/compaction").status_code == 204
    served.compact_requested()
    rest_topic.put(c="3")
    return rest_topic


@pytest.fixture
def users(half_compacted: RestTopic, served: Served) -> Topic:
    return Client(served.client).topic(half_compacted.name)


Run = Callable[[Callable[[AsyncTopic], Coroutine[Any, Any, Any]]], Any]


@pytest.fixture
def run(half_compacted: RestTopic, served: Served) -> Run:
    """Run a coroutine with the topic in the service's event loop."""

    async def running(use: Callable[[AsyncTopic], Coroutine[Any, Any, Any]]) -> Any:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(served.client.app), base_url=str(served.client.base_url))
        async with AsyncClient(http) as client:
            return await use(client.topic(half_compacted.local))

    portal = served.client.portal
    assert portal is not None
    return lambda use: portal.call(running, use)


def content(messages: Iterator[Message] | list[Message]) -> list[tuple[bytes | None, bytes | None]]:
    return [(message.key, message.value) for message in messages]


RAW = [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None), (b"c", b"3")]


def test_messages_raw_and_compacted(users: Topic) -> None:
    read = users.read()
    assert read.next is None
    assert content(iter(read)) == RAW
    compacted = users.read(compacted=True)
    assert content(iter(compacted)) == [(b"a", b"2"), (b"c", b"3")]
    first = next(iter(users.read()))
    assert first.offset == 0
    assert first.properties == {}
    assert first.publish_time.tzinfo is UTC
    assert abs((datetime.now(UTC) - first.publish_time).days) < 1
    assert content(iter(users.read(start=first.message_id))) == RAW
    assert content(iter(users.read(start=3))) == RAW[3:]


def test_a_read_goes_on_where_another_one_ended(users: Topic, half_compacted: RestTopic) -> None:
    read = users.read(compacted=True)
    assert read.newest_values() == {b"a": b"2", b"c": b"3"}
    assert read.next is not None
    half_compacted.put(d="4")
    assert content(iter(users.read(compacted=True, start=read.next))) == [(b"d", b"4")]


def test_an_empty_value_deletes_and_any_text_travels(users: Topic, half_compacted: RestTopic) -> None:
    """Line ends of Unicode are no ends of lines."""
    half_compacted.put(c="")
    half_compacted.produce({"key": "d", "payload": "v", "properties": {"p": "\u2028 \x85 \x0b \x0c"}})
    read = users.read(compacted=True)
    assert read.newest_values() == {b"a": b"2", b"d": b"v"}
    *_, emptied, last = users.read()
    assert (emptied.value, emptied.is_tombstone) == (b"", True)
    assert last.properties == {"p": "\u2028 \x85 \x0b \x0c"}
    assert not last.is_tombstone
    assert list(islice(users.follow(start=last.offset), 1)) == [last]


def test_tables(users: Topic) -> None:
    table = users.read(compacted=True).to_arrow()
    assert tuple(table.column_names) == COLUMNS
    assert table.column("payload").to_pylist() == [b"2", b"3"]
    assert table.column("publish_time")[0].as_py().tzinfo is not None
    frame = users.read().to_polars()
    assert frame["offset"].to_list() == [0, 1, 2, 3, 4]
    end = users.read()
    assert sum(batch.num_rows for batch in end.batches()) == 5
    assert end.next is not None
    empty = users.read(start=end.next).to_arrow()
    assert (len(empty), tuple(empty.column_names)) == (0, COLUMNS)
    assert empty.schema == users.read().to_arrow().schema


def test_the_newest_message_of_a_key(users: Topic) -> None:
    newest = users.get("a")
    assert newest is not None
    assert (newest.key, newest.value, newest.offset) == (b"a", b"2", 2)
    assert users.get(b"a") == newest
    assert users.get("b") is None
    assert users.get("") is None


def test_messages_that_arrive_are_followed(users: Topic) -> None:
    assert content(list(islice(users.follow(compacted=True), 2))) == [(b"a", b"2"), (b"c", b"3")]
    assert content(list(islice(users.follow(start=3), 2))) == RAW[3:]


def test_asyncio(run: Run) -> None:
    async def use(topic: AsyncTopic) -> None:
        read = topic.read(compacted=True)
        assert [message.value async for message in read] == [b"2", b"3"]
        assert read.next is not None
        newest = await topic.get("a")
        assert newest is not None
        assert newest.value == b"2"
        assert await topic.get("b") is None
        assert (await topic.read().to_arrow()).column("key").to_pylist() == [key for key, _ in RAW]
        assert len(await topic.read().to_polars()) == 5
        assert await topic.read().newest_values() == {b"a": b"2", b"c": b"3"}
        async for message in topic.follow(start=4):
            assert message.value == b"3"
            break

    run(use)


def test_a_refusal_says_what_it_is_about(served: Served) -> None:
    client = Client(served.client)
    with pytest.raises(NotFound, match=r"/missing/messages: Topic") as refused:
        client.topic("missing").read().to_arrow()
    assert refused.value.status == 404
    with pytest.raises(NotFound):
        client.topic("missing").get("k")
    with pytest.raises(ClientError, match="start") as malformed:
        list(client.topic("missing").read(start="nonsense"))
    assert malformed.value.status == 400
    for name in ("", "a/b", "http://x/y/z", "persistent://a//b"):
        with pytest.raises(ValueError, match="names no topic"):
            client.topic(name)


def test_a_missing_token_is_an_error(guarded: Served) -> None:
    with pytest.raises(AccessRefused) as refused:
        Client(guarded.client).topic("t").get("k")
    assert refused.value.status == 401


class Answers(httpx.BaseTransport):
    """A service that gives one answer."""

    def __init__(self, answer: httpx.Response | Exception) -> None:
        self.answer = answer
        self.requests: list[httpx.Request] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(200, text=""), "broke off its answer"),
        (httpx.ConnectError("refused"), "http://h does not answer"),
        (httpx.ReadTimeout("late"), "http://h did not answer in time"),
        (httpx.Response(503, json={"reason": "the log is full"}), "the log is full"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(answer: httpx.Response | Exception, reason: str) -> None:
    transport = Answers(answer)
    with connect("http://h", token="secret", transport=transport) as client, pytest.raises(Unavailable, match=reason):
        list(client.topic("t").read())
    assert transport.requests[0].headers["Authorization"] == "Bearer secret"
    assert "secret" not in repr(connect_async("http://h", token="secret"))


def test_a_token_is_never_shown() -> None:
    """The content of a file ends with a line end."""
    transport = Answers(httpx.LocalProtocolError("Illegal header value b'Bearer secret'"))
    with connect("http://h", token="secret\n", transport=transport) as client, pytest.raises(Unavailable) as failure:
        client.topic("t").get("k")
    assert transport.requests[0].headers["Authorization"] == "Bearer secret"
    assert "secret" not in str(failure.value)
    for token in ("sec ret", "secr\u00e4t", "\n"):
        with pytest.raises(ValueError, match="the token has characters") as refused:
            connect_async("http://h", token=token)
        assert token not in str(refused.value)
    with pytest.raises(ValueError, match="begin it with http"):
        connect("127.0.0.1:8080")


def test_importing_it_loads_nothing_else_of_the_project() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_example_of_the_page_works(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    users = RestTopic(served, "users")
    assert users.ask("PUT").status_code == 204
    users.put(**{"user-1": "Ada"})
    users.put(**{"user-1": "Grace"})
    monkeypatch.setattr("compactor.client.connect", lambda _: SharedClient(served.client))
    page = (Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
    example = "".join(line[4:] + "\n" for line in page.splitlines() if not line or line.startswith("    "))
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["newest"].value == b"Grace"
    assert names["state"] == {b"user-1": b"Grace"}
    assert names["frame"]["payload"].to_list() == [b"Ada", b"Grace"]
    assert list(names["later"]) == []
    assert "b'user-1' b'Ada' " in capsys.readouterr().out


class SharedClient(Client):
    """A client that stays open, since other tests need the service's."""

    def close(self) -> None:
        pass


def test_keys_of_any_bytes_travel(users: Topic, half_compacted: RestTopic) -> None:
    key = bytes(range(256))
    text = base64.b64encode(key).decode()
    half_compacted.produce({"key": text, "payload": "v"}, query="?keyEncoding=base64")
    newest = users.get(key)
    assert newest is not None
    assert newest.key == key
