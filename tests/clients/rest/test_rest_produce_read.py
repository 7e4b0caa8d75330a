"""Producing and reading over REST: what was produced is what is read, raw and compacted, page by page and in one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pytest

from api.broker.key_hashes import partition_of
from api.http.owner_proxy import FORWARDED
from api.observability.logs import LogThrottle
from api.rest.messages.read import ARROW, JSON_LINES, NEXT
from storage.errors import StorageFull
from storage.ledger.names import ObjectKind
from storage.log import log_space
from tests.clients.rest.conftest import RestTopic, assert_refused
from tests.clocks import ManualClock
from tests.serving import Served


def lines_of(topic: RestTopic, data: str, query: str = "") -> Any:
    """Produce JSON Lines."""
    path = f"/topics/persistent/public/default/{topic.local}{query}"
    return topic.served.client.post(path, content=data, headers={"content-type": JSON_LINES})


def pages(topic: RestTopic, query: str) -> list[list[int]]:
    """Offsets of all pages, one after the other, each from where the one before said."""
    start, read = "earliest", []
    while True:
        answer = topic.ask("GET", f"/messages?start={start}&{query}")
        assert answer.status_code == 200, answer.text
        page = [json.loads(line)["offset"] for line in answer.text.splitlines()]
        if not page:
            return read
        read.append(page)
        start = answer.headers[NEXT]


def test_what_was_produced_is_read(rest_topic: RestTopic) -> None:
    acks = rest_topic.produce(
        {"key": "k", "payload": "v", "properties": {"p": "q"}, "eventTime": "17", "sequenceId": 3, "context": "c"},
        {"payload": "no key"},
        {"key": "k", "payload": None},
    )
    assert [ack["errorCode"] for ack in acks] == [0, 0, 0]
    assert acks[0]["context"] == "c"
    first, second, third = rest_topic.read()
    assert [item["message_id"] for item in (first, second, third)] == [ack["messageId"] for ack in acks]
    assert (first["key"], first["value"], first["event_time"], first["properties"]) == ("k", "v", 17, {"p": "q"})
    assert (second["key"], second["value"]) == (None, "no key")
    assert (third["key"], third["value"]) == ("k", None)


def test_without_room_in_the_log_nothing_is_taken(rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    rest_topic.put(a="1")
    monkeypatch.setattr(log_space, "DISK_MS", 0)
    with monkeypatch.context() as patched:
        patched.setattr(log_space, "free_bytes", lambda _: 1 << 20)
        path = f"/topics/persistent/public/default/{rest_topic.local}"
        answer = rest_topic.served.ask("POST", path, json.dumps({"messages": [{"payload": "2"}]}))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert "nothing is appended: the disk of the log directory" in answer.json()["reason"]
    rest_topic.put(a="3")
    assert rest_topic.values() == [("a", "1"), ("a", "3")]


def test_a_log_without_room_is_reported_by_readiness_and_metrics(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N15: nothing said so but the refused messages."""
    monkeypatch.setattr(log_space, "DISK_MS", 0)

    def sample(name: str) -> float:
        lines = served.ask("GET", "/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    assert served.ask("GET", "/readyz").json()["checks"]["log"] == "ok"
    assert sample("compactor_log_full") == 0
    assert sample("compactor_log_free_bytes") > sample("compactor_log_least_free_bytes") == 128 << 20
    with monkeypatch.context() as patched:
        patched.setattr(log_space, "free_bytes", lambda _: 1 << 20)
        ready = served.ask("GET", "/readyz")
        assert ready.status_code == 503
        assert ready.json()["reason"].startswith("log: nothing is appended: the disk of the log directory has ")
        assert sample("compactor_log_full") == 1
    assert served.ask("GET", "/readyz").status_code == 200


def test_compacted_is_the_newest_of_each_key_and_raw_is_as_before(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1", c="1")
    rest_topic.put(a="2", b=None)
    before = rest_topic.read()
    rest_topic.compact()
    rest_topic.put(d="3")
    assert rest_topic.values("readCompacted=true") == [("c", "1"), ("a", "2"), ("d", "3")]
    assert rest_topic.read()[:5] == before
    assert rest_topic.read("stream=true&readCompacted=true") == rest_topic.read("readCompacted=true")


def test_json_lines_are_produced_as_they_are_read(rest_topic: RestTopic) -> None:
    answer = lines_of(rest_topic, '{"key": "a", "value": "1", "publish_time": 5}\n{"key": null, "value": null}\n')
    assert answer.status_code == 200, answer.text
    assert rest_topic.values() == [("a", "1"), (None, None)]
    assert rest_topic.read()[0]["publish_time"] == 5
    again = "".join(json.dumps(item) + "\n" for item in rest_topic.read())
    assert lines_of(rest_topic, again).status_code == 200
    assert rest_topic.values() == [("a", "1"), (None, None)] * 2


def test_bytes_go_in_base64(rest_topic: RestTopic) -> None:
    rest_topic.produce({"key": "/w==", "payload": "/v8="}, query="?keyEncoding=base64&valueEncoding=base64")
    assert rest_topic.values("keyEncoding=base64&valueEncoding=base64") == [("/w==", "/v8=")]
    assert_refused(rest_topic.ask("GET", "/messages"), 400, "keyEncoding=base64")


@pytest.mark.parametrize("flag", ["false", "true"])
def test_pages_are_the_whole_in_order_and_hold_what_was_asked(rest_topic: RestTopic, flag: str) -> None:
    rest_topic.put(**{f"k{number}": "x" * number for number in range(10)})
    rest_topic.compact()
    rest_topic.put(**{f"k{number}": "y" for number in range(7, 12)})
    whole = [item["offset"] for item in rest_topic.read(f"readCompacted={flag}")]
    read = pages(rest_topic, f"readCompacted={flag}&limit=4")
    assert [offset for page in read for offset in page] == whole
    assert all(len(page) == 4 for page in read[:-1])
    by_bytes = pages(rest_topic, f"readCompacted={flag}&maxBytes=12")
    assert [offset for page in by_bytes for offset in page] == whole
    assert len(by_bytes) > 4


def test_a_page_goes_on_past_a_new_generation(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1", c="1")
    rest_topic.compact()
    first = rest_topic.ask("GET", "/messages?readCompacted=true&limit=2")
    rest_topic.put(a="2")
    rest_topic.compact()
    rest = rest_topic.values(f"readCompacted=true&start={first.headers[NEXT]}")
    assert rest == [("c", "1"), ("a", "2")]


def test_a_deletion_that_went_between_two_pages_is_not_missed_in_silence(rest_topic: RestTopic) -> None:
    """R7: the page continues in its compacted ledger, then raw; where raw is gone, the answer is an error."""
    rest_topic.put(a="1", b="1", c="1")
    rest_topic.compact()
    first = rest_topic.ask("GET", "/messages?readCompacted=true&limit=2").headers[NEXT]
    rest_topic.put(a=None)
    rest_topic.compact()
    assert rest_topic.values(f"readCompacted=true&start={first}") == [("c", "1"), ("a", None)]
    assert rest_topic.ask("GET", f"/messages?start={first}").status_code == 400
    assert rest_topic.ask("DELETE", "/truncate").status_code == 204
    stale = rest_topic.ask("GET", f"/messages?readCompacted=true&start={first}")
    assert stale.status_code == 200, "its compacted ledger has its grace"
    assert_refused(
        rest_topic.ask("GET", f"/messages?readCompacted=true&start={stale.headers[NEXT]}"),
        409,
        "read again from earliest",
    )


def test_the_page_of_a_topic_that_is_empty_yet_says_where_to_go_on(rest_topic: RestTopic) -> None:
    place = rest_topic.ask("GET", "/messages?readCompacted=true").headers[NEXT]
    assert rest_topic.ask("GET", f"/messages?readCompacted=true&start={place}").headers[NEXT] == place
    rest_topic.put(a="1")
    assert rest_topic.values(f"readCompacted=true&start={place}") == [("a", "1")]


def test_a_stream_ends_with_where_the_next_read_begins(rest_topic: RestTopic) -> None:
    """N18: who reads a topic as a stream could not continue without a gap (R7)."""
    rest_topic.put(a="1", b="1", c="1")
    rest_topic.compact()
    rest_topic.put(d="1")

    def streamed(query: str) -> tuple[list[str], str]:
        *lines, last = rest_topic.read(f"stream=true&token=true&{query}")
        return [line["key"] for line in lines], last["next"]

    for flag in ("", "&readCompacted=true"):
        keys, token = streamed(f"start=earliest{flag}")
        assert keys[-1] == "d"
        assert streamed(f"start={token}{flag}") == ([], token)
        first, place = streamed(f"start=earliest&limit=2{flag}")
        page_after = [key for key, _ in rest_topic.values(f"start={place}{flag}")]
        assert first + page_after == keys
        assert streamed(f"start={place}{flag}") == (page_after, token)
    page = rest_topic.ask("GET", "/messages?readCompacted=true").headers[NEXT]
    assert page == token
    rest_topic.put(a="2")
    assert streamed(f"start={token}&readCompacted=true")[0] == ["a"]
    ask = f"{rest_topic.path}/messages?stream=true&token=true&start={page}&readCompacted=true"
    arrow = pa.ipc.open_stream(rest_topic.served.client.get(ask, headers={"accept": ARROW}).content)
    *_, (empty, metadata) = arrow.iter_batches_with_custom_metadata()
    assert len(empty) == 0
    assert metadata[NEXT] == rest_topic.ask("GET", f"/messages?readCompacted=true&start={page}").headers[NEXT].encode()
    assert_refused(rest_topic.ask("GET", "/messages?token=true"), 400, "needs stream=true")


def test_arrow_is_the_same_rows(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2")
    for query in ("", "stream=true"):
        answer = rest_topic.served.client.get(f"{rest_topic.path}/messages?{query}", headers={"accept": ARROW})
        assert answer.headers["content-type"] == ARROW
        table = pa.ipc.open_stream(answer.content).read_all()
        assert table.column("key").to_pylist() == [b"a", b"b"]
        assert table.column("payload").to_pylist() == [b"1", b"2"]
    assert (
        rest_topic.served.client.get(f"{rest_topic.path}/messages", headers={"accept": "text/html"}).status_code == 406
    )


def test_latest_waits_for_what_comes(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    nothing = rest_topic.ask("GET", "/messages?start=latest&waitMs=1")
    assert (nothing.status_code, nothing.text) == (200, "")
    rest_topic.put(b="2")
    assert rest_topic.values(f"start={nothing.headers[NEXT]}&waitMs=1000") == [("b", "2")]


def test_a_forwarded_read_waits_less_than_who_forwarded_it(
    rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = rest_topic.served.broker
    monkeypatch.setattr(broker, "settings", replace(broker.settings, forwarding_timeout_ms=1))
    monkeypatch.setattr(rest_topic.served.context, "polls", None)  # the calling service would have stopped waiting
    path = f"{rest_topic.path}/messages?start=latest&waitMs=60000"
    answer = rest_topic.served.client.get(path, headers={FORWARDED: "first:1"})
    assert (answer.status_code, answer.text, answer.headers[NEXT]) == (200, "", "0")


def test_starts(rest_topic: RestTopic) -> None:
    ids = rest_topic.put(a="1", b="2", c="3")
    assert rest_topic.values(f"start={ids[1]}") == [("b", "2"), ("c", "3")]
    assert rest_topic.values("start=2") == [("c", "3")]
    assert rest_topic.values("start=@0&limit=1") == [("a", "1")]
    assert rest_topic.ask("GET", "/messages?start=nonsense").status_code == 400


@pytest.mark.slow
def test_a_start_that_cannot_be_is_refused_and_one_at_the_end_waits(rest_topic: RestTopic) -> None:
    ledger, entry, _ = rest_topic.put(a="1", b="2")[-1].split(":")
    end = (f"{ledger}:{int(entry) + 1}:-1", "2", "@9999999999999", "latest", "earliest")
    beyond = ("3", "99", f"{ledger}:{int(entry) + 2}:-1", f"{int(ledger) + 90}:0:-1")
    for flag in ("", "&readCompacted=true"):
        for start in end:
            assert rest_topic.ask("GET", f"/messages?start={start}{flag}").status_code == 200, start
            assert rest_topic.ask("GET", f"/messages?start={start}{flag}&stream=true").status_code == 200, start
        for start in beyond:
            for stream in ("", "&stream=true"):
                assert_refused(rest_topic.ask("GET", f"/messages?start={start}{flag}{stream}"), 416, "after the end")
    assert rest_topic.ask("GET", "/messages?readCompacted=true&start=1~5").status_code == 416
    rest_topic.compact()
    begun = rest_topic.ask("GET", "/messages?readCompacted=true&limit=1").headers[NEXT]
    rest_topic.put(c="3")
    rest_topic.compact()
    assert rest_topic.values(f"readCompacted=true&start={begun}") == [("b", "2"), ("c", "3")], "it had that generation"
    another = begun.replace("~", "~99")
    assert_refused(rest_topic.ask("GET", f"/messages?readCompacted=true&start={another}"), 416, "has never had")


def test_an_empty_topic_begins_and_ends_at_0(rest_topic: RestTopic) -> None:
    for start, status in (("0", 200), ("earliest", 200), ("1", 416), ("99:0:-1", 416)):
        assert rest_topic.ask("GET", f"/messages?start={start}").status_code == status, start


def test_an_error_of_one_message_does_not_name_where_the_store_is(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert served.ask("PUT", "/admin/v2/persistent/public/default/elsewhere/partitions", "2").status_code == 204

    def fails(*_: object) -> None:
        raise StorageFull("the file /var/lib/log/0.log in file:///srv/store cannot be written", "free space")

    monkeypatch.setattr("api.broker.messages.submit", fails)
    state = cast(Any, served.client.app).state
    throttle, state.log_throttle = state.log_throttle, LogThrottle(ManualClock(), logging.getLogger("api"))
    try:
        (ack,) = RestTopic(served, "elsewhere").produce({"key": "k", "payload": "1"})
    finally:
        state.log_throttle = throttle
    assert (ack["errorCode"], "/srv" in ack["errorMsg"], "/var" in ack["errorMsg"]) == (1, False, False)
    assert "has no space left" in ack["errorMsg"]
    assert "file:///srv/store" in caplog.text


def test_a_damaged_compacted_ledger_is_told_and_raw_goes_on(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    rest_topic.lose(ObjectKind.MANIFEST)
    for query in ("", "&stream=true"):
        assert_refused(rest_topic.ask("GET", f"/messages?readCompacted=true{query}"), 507, "cannot be read")
    assert rest_topic.values() == [("a", "1")]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "cannot be taken"),
        ("[]", "cannot be taken"),
        ('{"messages": []}', "messages"),
        ('{"messages": [{"payload": 5}]}', "payload"),
        ('{"messages": [{"payload": "v", "kye": "k"}]}', "kye"),
        ('{"messages": [{"payload": "v", "deliverAt": 5}]}', "deliverAt and deliverAfterMs are not kept over REST"),
        ('{"messages": [{"payload": "v", "eventTime": "soon"}]}', "soon"),
        ('{"messages": [{"payload": "v"}], "valueSchema": "{\\"type\\": \\"AVRO\\"}"}', "AVRO"),
        ('{"messages": [{"payload": "v"}], "keySchema": "' + "[" * 100_000 + '"}', "JSON text of a SchemaInfo"),
    ],
)
def test_what_cannot_be_taken_is_refused_whole(rest_topic: RestTopic, body: str, says: str) -> None:
    assert_refused(
        rest_topic.served.ask("POST", f"/topics/persistent/public/default/{rest_topic.local}", body), 400, says
    )
    assert rest_topic.read() == []


def test_a_bad_line_is_named_and_nothing_is_appended(rest_topic: RestTopic) -> None:
    assert_refused(lines_of(rest_topic, '{"key": "a", "value": "1"}\n{"key": 5}\n'), 400, "line 2")
    assert rest_topic.read() == []


def test_one_message_that_is_too_large_does_not_undo_the_others(rest_topic: RestTopic) -> None:
    assert rest_topic.ask("PUT", "/policies/max.message.bytes", 100).status_code == 204
    acks = rest_topic.produce({"payload": "a"}, {"payload": "x" * 20_000}, {"payload": "b"})
    assert [ack["errorCode"] for ack in acks] == [0, 2, 0]
    assert rest_topic.values() == [(None, "a"), (None, "b")]


def test_partitions_by_key_and_in_turn(served: Served) -> None:
    path = "/admin/v2/persistent/public/default/parted"
    assert served.ask("PUT", f"{path}/partitions", "3").status_code == 204
    parted = RestTopic(served, "parted")
    acks = parted.produce(*({"key": "test", "payload": str(number)} for number in range(3)))
    assert {ack["messageId"].split(":")[2] for ack in acks} == {str((0xBA6BD213 & 0x7FFFFFFF) % 3)}
    acks = parted.produce(*({"payload": str(number)} for number in range(3)))
    assert {ack["messageId"].split(":")[2] for ack in acks} == {"0", "1", "2"}
    (ack,) = parted.produce({"key": "test", "payload": "here"}, query="/partitions/2")
    assert ack["messageId"].split(":")[2] == "2"
    assert ("test", "here") in RestTopic(served, "parted-partition-2").values()
    assert parted.ask("GET", "/messages").status_code == 405
    assert parted.ask("GET", "/key/test").json()["value"] == "here"


def test_a_key_that_was_deleted_in_a_new_partition_stays_deleted(served: Served) -> None:
    """Its value is in the old one forever."""
    grown = RestTopic(served, "grown")
    assert grown.ask("PUT", "/partitions", 1).status_code == 204
    key = next(key for key in map(str, range(99)) if partition_of(key.encode(), 2) == 1)
    old = f'{{"key": "{key}", "value": "old", "publish_time": 5}}\n'
    assert lines_of(grown, old).status_code == 200
    assert grown.ask("POST", "/partitions", 2).status_code == 204
    grown.put(**{key: None})
    assert grown.ask("GET", f"/key/{key}").status_code == 404
    assert RestTopic(served, "grown-partition-0").ask("GET", f"/key/{key}").json()["value"] == "old"
    assert lines_of(grown, old.replace("old", "at once")).status_code == 200
    assert RestTopic(served, "grown-partition-1").ask("GET", f"/key/{key}").json()["value"] == "at once"
    assert grown.ask("GET", f"/key/{key}").json()["value"] == "at once", "of the same time, where the key goes now"
    event = f'{{"key": "{key}", "value": "event", "publish_time": 4, "event_time": 1}}\n'
    assert lines_of(RestTopic(served, "grown-partition-0"), event).status_code == 200
    assert grown.ask("GET", f"/key/{key}").json()["value"] == "at once"
    assert grown.ask("PUT", "/policies/compaction.event-time-order", True).status_code == 204
    assert grown.ask("GET", f"/key/{key}").json()["value"] == "event"


def test_a_key_keeps_its_partition_while_another_one_is_gone(served: Served) -> None:
    path = "/admin/v2/persistent/public/default/holed"
    assert served.ask("PUT", f"{path}/partitions", "3").status_code == 204
    holed = RestTopic(served, "holed")
    keys = [f"k{number}" for number in range(12)]
    before = {ack["messageId"].split(":")[2] for ack in holed.produce(*({"key": key, "payload": "1"} for key in keys))}
    assert before == {"0", "1", "2"}
    assert RestTopic(served, "holed-partition-0").ask("DELETE").status_code == 204
    acks = holed.produce(*({"key": key, "payload": "2"} for key in keys))
    for key, ack in zip(keys, acks, strict=True):
        at = partition_of(key.encode(), 3)
        assert (ack["errorCode"], ack.get("messageId", "::-").split(":")[2]) == ((2, "-") if not at else (0, str(at)))
    acks = holed.produce({"payload": "a", "partition": 2}, {"payload": "b", "partition": 0})
    assert [ack["errorCode"] for ack in acks] == [0, 2]
    assert (acks[0]["messageId"].split(":")[2], "createMissedPartitions" in acks[1]["errorMsg"]) == ("2", True)
    acks = holed.produce(*({"payload": "no key"} for _ in range(4)))
    assert sorted(ack["messageId"].split(":")[2] for ack in acks) == ["1", "1", "2", "2"]


@pytest.mark.parametrize("path", ["/topics/persistent/public/default/gone", "/topics/persistent/no/where/gone"])
def test_a_topic_that_does_not_exist_is_not_made(served: Served, path: str) -> None:
    assert_refused(served.ask("POST", path, '{"messages": [{"payload": "v"}]}'), 404, "gone not found")


def test_the_flag_is_for_persistent_topics(served: Served) -> None:
    assert_refused(
        served.ask("GET", "/admin/v2/non-persistent/public/default/t/messages?readCompacted=true"), 412, "persistent"
    )


@pytest.mark.slow
def test_a_deleted_topic_is_given_back_and_its_name_begins_anew(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2")
    assert rest_topic.ask("DELETE").status_code == 204
    assert rest_topic.name not in [str(topic.name) for topic in rest_topic.served.broker.logs.topics]
    path = f"/topics/persistent/public/default/{rest_topic.local}"
    assert rest_topic.served.ask("POST", path, '{"messages": [{"payload": "v"}]}').status_code == 404
    assert rest_topic.ask("PUT").status_code == 204
    rest_topic.put(c="3")
    assert [item["offset"] for item in rest_topic.read()] == [0]
