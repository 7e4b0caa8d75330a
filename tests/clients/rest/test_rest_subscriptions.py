"""Subscriptions over REST, and single messages: where they stand is seen by what they deliver next (peek)."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from api.observability.error_text import ADMIN, WORDING_HEADER
from storage.entries.encode import encode_batch
from storage.ledger.rows import CompressionType
from tests.clients.rest.conftest import RestTopic, assert_refused
from tests.serving import Served
from tests.workbench import content


def peeked(topic: RestTopic, subscription: str = "s", position: int = 1) -> str | None:
    """The payload of the n-th entry that the subscription delivers; None: there is none."""
    answer = topic.ask("GET", f"/subscription/{subscription}/position/{position}")
    if answer.status_code == 404:
        assert answer.json()["reason"] == f"Message not found: {topic.name} has no entry {position}"
        return None
    assert answer.status_code == 200, answer.text
    return str(answer.text)


def subscribed(topic: RestTopic, body: object = "earliest", subscription: str = "s") -> None:
    assert topic.ask("PUT", f"/subscription/{subscription}", body).status_code == 204


def place(message_id: str, **more: object) -> dict[str, object]:
    ledger, entry, partition = map(int, message_id.split(":")[:3])
    return {"ledgerId": ledger, "entryId": entry, "partitionIndex": partition, **more}


def test_where_a_new_one_begins(rest_topic: RestTopic) -> None:
    ids = rest_topic.put(a="1", b="2", c="3")
    bodies = {
        "first": "earliest",
        "last": "latest",
        "none": None,
        "second": place(ids[1]),
        "behind": place(ids[1], excluded=True, batchIndex=-1, batchSize=0),
        "far": {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1},
    }
    for name, body in bodies.items():
        subscribed(rest_topic, body, name)
    texts = {name: peeked(rest_topic, name) for name in bodies}
    assert texts == {"first": "1", "last": None, "none": None, "second": "2", "behind": "3", "far": None}
    assert rest_topic.ask("GET", "/subscriptions").json() == sorted(bodies)
    again = rest_topic.ask("PUT", "/subscription/first")
    assert (again.status_code, again.json()["reason"]) == (409, "Subscription already exists for topic")
    assert rest_topic.ask("PUT", "/subscription/bad", "somewhere").status_code == 400


def test_skip_and_peek(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2", c="3", d="4")
    subscribed(rest_topic)
    assert [peeked(rest_topic, position=number) for number in (1, 4, 5)] == ["1", "4", None]
    assert rest_topic.ask("POST", "/subscription/s/skip/2").status_code == 204
    assert peeked(rest_topic) == "3"
    assert rest_topic.ask("POST", "/subscription/s/skip_all").status_code == 204
    assert peeked(rest_topic) is None
    rest_topic.put(e="5")
    assert peeked(rest_topic) == "5"


@pytest.mark.parametrize("call", ["/skip_all", "/expireMessages/0", "/resetcursor"])
def test_to_the_end_where_all_raw_is_trimmed_is_the_horizon(rest_topic: RestTopic, call: str) -> None:
    """Its reader would get the compacted messages again."""
    last = rest_topic.put(a="1", b="2")[-1]
    subscribed(rest_topic)
    assert rest_topic.ask("PUT", "/policies/cleanup.policy", "compact").status_code == 204
    rest_topic.compact()
    assert rest_topic.ask("POST", "/trim?dryRun=false", {"force": True}).status_code == 200
    assert rest_topic.read() == []
    assert rest_topic.ask("POST", "/subscription/s" + call).status_code == 204
    topic = rest_topic.served.topic(rest_topic.name)
    mark = rest_topic.served.broker.environment.metadata.cursors.get(topic.record.id, "s").mark_delete
    assert mark is not None
    assert str(mark.message_id) == last


def test_skip_begins_where_messages_begin(rest_topic: RestTopic) -> None:
    ids = rest_topic.put(a="1", b="2", c="3", d="4")
    topic = rest_topic.served.topic(rest_topic.name)
    topic.log_manager().roll(topic.record)
    assert rest_topic.ask("POST", "/trim?dryRun=false", {"before": ids[2]}).status_code == 200
    subscribed(rest_topic)
    assert peeked(rest_topic) == "3"
    assert rest_topic.ask("POST", "/subscription/s/skip/1").status_code == 204
    assert peeked(rest_topic) == "4"


def test_reset_by_id_and_by_time(rest_topic: RestTopic) -> None:
    lines = "".join(f'{{"key": "k", "value": "{number}", "publish_time": {number}000}}\n' for number in range(1, 5))
    rest_topic.served.client.post(
        f"/topics/persistent/public/default/{rest_topic.local}",
        content=lines,
        headers={"content-type": "application/x-ndjson"},
    )
    subscribed(rest_topic, "latest")
    third = rest_topic.read()[2]["message_id"]
    for path, body, expected in (
        ("resetcursor/2500", None, "3"),
        ("resetcursor/2000", None, "2"),
        ("resetcursor/9000", None, None),
        ("resetcursor", place(third), "3"),
        ("resetcursor", place(third, excluded=True), "4"),
        ("resetcursor", "earliest", "1"),
    ):
        assert rest_topic.ask("POST", f"/subscription/s/{path}", body).status_code == 204
        assert peeked(rest_topic) == expected, (path, body)


def test_expire_never_goes_back(rest_topic: RestTopic) -> None:
    ids = rest_topic.put(a="1", b="2", c="3")
    subscribed(rest_topic)
    assert rest_topic.ask("POST", "/subscription/s/expireMessages/3600").status_code == 204
    assert peeked(rest_topic) == "1"
    assert rest_topic.ask("POST", "/subscription/s/expireMessages", place(ids[2])).status_code == 204
    assert peeked(rest_topic) == "3"
    assert rest_topic.ask("POST", "/subscription/s/expireMessages", place(ids[1])).status_code == 204
    assert peeked(rest_topic) == "3"


def test_all_expire_but_the_compaction_cursor(rest_topic: RestTopic) -> None:
    lines = '{"key": "k", "value": "old", "publish_time": 5}\n'
    path = f"/topics/persistent/public/default/{rest_topic.local}"
    rest_topic.served.client.post(path, content=lines, headers={"content-type": "application/x-ndjson"})
    subscribed(rest_topic)
    assert rest_topic.ask("PUT", "/subscription/__compaction").status_code == 204
    assert rest_topic.ask("POST", "/all_subscription/expireMessages/60").status_code == 204
    assert peeked(rest_topic) is None
    assert peeked(rest_topic, "__compaction") == "old"


def test_properties(rest_topic: RestTopic) -> None:
    subscribed(rest_topic, {"ledgerId": -1, "entryId": -1, "properties": {"a": "1"}})
    assert rest_topic.ask("GET", "/subscription/s/properties").json() == {"a": "1"}
    assert rest_topic.ask("PUT", "/subscription/s/properties", {"b": "2"}).status_code == 204
    assert rest_topic.ask("GET", "/subscription/s/properties").json() == {"b": "2"}
    assert rest_topic.ask("PUT", "/subscription/s/properties", {"b": 2}).status_code == 400


def test_the_horizon_is_not_moved_by_hand(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.compact()
    topic = rest_topic.served.topic(rest_topic.name)
    horizon = topic.snapshot().horizon
    calls = {
        "resetcursor/0": None,
        "resetcursor": "earliest",
        "skip/1": None,
        "skip_all": None,
        "expireMessages/1": None,
        "expireMessages": place("0:0:-1"),
    }
    for call, body in calls.items():
        assert_refused(rest_topic.ask("POST", f"/subscription/__compaction/{call}", body), 412, "compaction horizon")
    pointer = rest_topic.ask("GET", "/subscription/__compaction/properties").json()
    assert (
        rest_topic.ask("PUT", "/subscription/__compaction/properties", {"CompactedTopicLedger": "9"}).status_code == 400
    )
    assert rest_topic.ask("PUT", "/subscription/__compaction/properties", {"mine": "1"}).status_code == 204
    assert rest_topic.ask("GET", "/subscription/__compaction/properties").json() == {**pointer, "mine": "1"}
    assert topic.snapshot().horizon == horizon


def test_deleting_the_compaction_cursor(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.put(a="2")
    rest_topic.compact()
    assert rest_topic.values("readCompacted=true") == [("a", "2")]
    assert rest_topic.ask("DELETE", "/subscription/__compaction").status_code == 204
    assert rest_topic.values("readCompacted=true") == [("a", "1"), ("a", "2")]
    assert rest_topic.ask("PUT", "/subscription/__compaction").status_code == 204
    assert rest_topic.ask("PUT", "/subscription/__compaction").status_code == 409
    assert rest_topic.values("readCompacted=true") == [("a", "1"), ("a", "2")]


def test_deleting_it_is_refused_where_keys_would_be_lost(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    assert rest_topic.ask("PUT", "/policies/cleanup.policy", "compact").status_code == 204
    (report,) = rest_topic.ask("POST", "/trim?dryRun=false").json()
    assert len(report["ledgers"]) == 1
    refused = rest_topic.ask("DELETE", "/subscription/__compaction")
    assert refused.status_code == 409
    assert rest_topic.values("readCompacted=true") == [("a", "1")]
    assert rest_topic.ask("DELETE", "/subscription/__compaction?force=true").status_code == 204
    assert rest_topic.values("readCompacted=true") == []


def test_deleting_it_is_refused_where_raw_cannot_replace_what_goes(rest_topic: RestTopic, served: Served) -> None:
    """R8: an object of raw messages is lost, so the compacted ledger may have the only copy."""
    rest_topic.put(a="1")
    rest_topic.compact()
    snapshot = served.topic(rest_topic.name).snapshot()
    assert snapshot.compacted is not None
    lost = snapshot.ledgers[0].rows.name
    served.broker.environment.store.delete(lost)
    refused = rest_topic.ask("DELETE", "/subscription/__compaction")
    assert_refused(refused, 409, lost)
    effect = f"deletes the cursor all the same: then the compacted ledger {snapshot.compacted.ledger_id} is lost"
    assert f"?force=true {effect}" in refused.json()["reason"]
    path = f"{rest_topic.path}/subscription/__compaction"
    assert f"--force {effect}" in served.client.delete(path, headers={WORDING_HEADER: ADMIN}).text
    assert rest_topic.values("readCompacted=true") == [("a", "1")]
    assert rest_topic.ask("DELETE", "/subscription/__compaction?force=true").status_code == 204
    assert served.topic(rest_topic.name).snapshot().compacted is None


@pytest.mark.parametrize(
    ("verb", "below"),
    [
        ("DELETE", ""),
        ("POST", "/skip/1"),
        ("POST", "/skip_all"),
        ("POST", "/resetcursor/0"),
        ("GET", "/properties"),
        ("POST", "/expireMessages/1"),
    ],
)
def test_one_that_does_not_exist(rest_topic: RestTopic, verb: str, below: str) -> None:
    answer = rest_topic.ask(verb, f"/subscription/none{below}")
    assert answer.status_code == 404
    assert answer.json()["reason"] == f"Subscription none not found for topic {rest_topic.name}"


def test_peeking_makes_a_subscription_at_the_earliest_message(rest_topic: RestTopic) -> None:
    rest_topic.produce({"payload": "1"}, {"payload": "2"})
    assert peeked(rest_topic, "fresh", 2) == "2"
    assert peeked(rest_topic, "fresh") == "1"
    assert rest_topic.ask("GET", "/subscriptions").json() == ["fresh"]
    assert_refused(rest_topic.ask("GET", "/subscription/__compaction/position/1"), 404, "__compaction not found")
    assert rest_topic.ask("GET", "/subscription/fresh/position/0").status_code == 400
    assert rest_topic.ask("GET", "/subscription/%00/position/1").status_code == 400
    assert rest_topic.ask("GET", "/subscriptions").json() == ["fresh"]


def test_of_a_partitioned_topic(served: Served) -> None:
    parted = RestTopic(served, "subscribed")
    assert served.ask("PUT", f"{parted.path}/partitions", "2").status_code == 204
    subscribed(parted)
    assert parted.ask("PUT", "/subscription/s").status_code == 409
    assert parted.ask("GET", "/subscriptions").json() == ["s"]
    parted.produce({"payload": "1"}, {"payload": "2"})
    partition = RestTopic(served, "subscribed-partition-1")
    assert peeked(partition) is not None
    for verb, below, status in (
        ("POST", "/subscription/s/skip/1", 405),
        ("POST", "/subscription/s/resetcursor", 405),
        ("GET", "/subscription/s/position/1", 405),
        ("GET", "/lastMessageId", 405),
        ("POST", "/subscription/s/skip_all", 204),
    ):
        assert parted.ask(verb, below).status_code == status, below
    assert peeked(partition) is None
    # as a deletion leaves it that failed half way
    assert RestTopic(served, "subscribed-partition-0").ask("DELETE", "/subscription/s").status_code == 204
    assert parted.ask("DELETE", "/subscription/s").status_code == 204
    assert partition.ask("GET", "/subscriptions").json() == []
    assert_refused(parted.ask("DELETE", "/subscription/s"), 404, "Subscription s not found")


def test_an_entry_is_told_in_headers(rest_topic: RestTopic) -> None:
    (ack,) = rest_topic.produce({"key": "schlüssel", "payload": "v", "properties": {"p": "é\n"}, "eventTime": 1500})
    ledger, entry, _ = ack["messageId"].split(":")
    answer = rest_topic.ask("GET", f"/ledger/{ledger}/entry/{entry}")
    assert (answer.status_code, answer.content) == (200, b"v")
    headers = answer.headers
    assert headers["X-Pulsar-Message-ID"] == f"{ledger}:{entry}"
    assert headers["X-Pulsar-event-time"] == "1970-01-01T00:00:01.500Z"
    assert headers["X-Pulsar-PROPERTY"] == '{"p": "\\u00e9\\n"}'
    assert headers["X-Pulsar-partition-key-b64-encoded"] == "true"
    assert "X-Pulsar-num-batch-message" not in headers
    for path in (f"/ledger/{ledger}/entry/7", "/ledger/999999/entry/0", "/ledger/0/entry/0"):
        missing = rest_topic.ask("GET", path)
        assert missing.status_code == 404
        reason = f"Message not found: {rest_topic.name} has no message {path.split('/')[2]}:{path.split('/')[4]}"
        assert missing.json()["reason"] == reason


def test_a_batch_is_one_entry(rest_topic: RestTopic) -> None:
    topic = rest_topic.served.topic(rest_topic.name)
    batch = encode_batch(content((b"a", b"1"), (b"b", b"22")), producer="p", first_sequence_id=0, publish_time=9)
    with topic.append_log() as log:
        first = log.append(batch).first.message_id
    answer = rest_topic.ask("GET", f"/ledger/{first.ledger_id}/entry/{first.entry_id}")
    assert answer.headers["X-Pulsar-num-batch-message"] == "2"
    plain = encode_batch(
        content((b"a", b"1"), (b"b", b"22")),
        producer="p",
        first_sequence_id=0,
        publish_time=9,
        codec=CompressionType.NONE,
    )
    assert plain.endswith(answer.content)
    last = rest_topic.ask("GET", "/lastMessageId").json()
    assert last == {
        "ledgerId": first.ledger_id,
        "entryId": first.entry_id,
        "partitionIndex": -1,
        "batchSize": 2,
        "batchIndex": 1,
    }


def test_ids_by_time_and_the_last(rest_topic: RestTopic) -> None:
    empty = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1, "batchSize": 0, "batchIndex": -1}
    assert rest_topic.ask("GET", "/lastMessageId").json() == empty
    rest_topic.put(a="1", b="1")
    ids = rest_topic.put(a="2", c=None)
    rest_topic.compact()
    last = rest_topic.ask("GET", "/lastMessageId").json()
    assert f"{last['ledgerId']}:{last['entryId']}:-1" == ids[1]
    live = rest_topic.ask("GET", "/lastMessageId?readCompacted=true").json()
    assert f"{live['ledgerId']}:{live['entryId']}:-1" == ids[0]
    by_time = rest_topic.ask("GET", "/messageid/0").json()
    compacted = rest_topic.read("readCompacted=true")
    assert f"{by_time['ledgerId']}:{by_time['entryId']}:-1" == compacted[0]["message_id"]


def test_the_newest_of_a_key(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.compact()
    rest_topic.put(a="2", b=None)
    rest_topic.produce({"key": "", "payload": "empty"}, {"key": "x/y", "payload": "slash"})
    assert rest_topic.ask("GET", "/key/a").json()["value"] == "2"
    assert rest_topic.ask("GET", "/key/YQ==?keyEncoding=base64&valueEncoding=base64").json()["value"] == "Mg=="
    assert rest_topic.ask("GET", "/key/x%2Fy").json()["value"] == "slash"
    assert rest_topic.ask("GET", "/key").json()["value"] == "empty"
    for missing in ("b", "never"):
        assert rest_topic.ask("GET", f"/key/{missing}").status_code == 404
    assert rest_topic.ask("GET", "/key/%3F?keyEncoding=base64").status_code == 400


@pytest.mark.parametrize("name", ["a%2Fb", "a/b", "%25", "%", "%252F", "a%b", "%2f/%"])
def test_names_and_keys_hold_percent_signs_and_slashes(rest_topic: RestTopic, name: str) -> None:
    """Each is its own, though one looks like what another is encoded to."""
    rest_topic.put(**{"a%2Fb": "1", "a/b": "2", "%25": "3", "%": "4", "%252F": "5", "a%b": "6", "%2f/%": "7"})
    encoded = quote(name, safe="")
    assert rest_topic.ask("GET", f"/key/{encoded}").json()["key"] == name
    assert rest_topic.ask("PUT", f"/subscription/{encoded}").status_code == 204
    assert rest_topic.ask("GET", "/subscriptions").json() == [name]
    assert rest_topic.ask("DELETE", f"/subscription/{encoded}").status_code == 204


def test_examine_truncate_terminate(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1", b="2", c="3")
    for position, number, expected in (
        ("earliest", 1, "1"),
        ("earliest", 3, "3"),
        ("latest", 1, "3"),
        ("latest", 3, "1"),
    ):
        answer = rest_topic.ask("GET", f"/examinemessage?initialPosition={position}&messagePosition={number}")
        assert answer.text == expected
    assert rest_topic.ask("GET", "/examinemessage?initialPosition=earliest&messagePosition=4").status_code == 404
    assert_refused(
        rest_topic.ask("GET", "/examinemessage?initialPosition=earliest&messagePosition=10001"), 412, "10000"
    )
    assert rest_topic.ask("DELETE", "/truncate").status_code == 204
    assert rest_topic.read() == []
    rest_topic.put(d="4")
    assert rest_topic.values() == [("d", "4")]
    assert rest_topic.ask("POST", "/terminate").status_code == 405


@pytest.mark.slow
def test_a_message_after_the_end_is_the_end_for_a_new_subscription_as_for_a_reset(rest_topic: RestTopic) -> None:
    beyond = {"ledgerId": 99_000, "entryId": 0}
    for name in ("empty", "s"):
        assert rest_topic.ask("PUT", f"/subscription/{name}", beyond).status_code == 204
        assert peeked(rest_topic, name) is None
        rest_topic.put(a="1")
        assert peeked(rest_topic, name) == "1"
    assert rest_topic.ask("POST", "/subscription/s/resetcursor", beyond).status_code == 204
    assert peeked(rest_topic) is None
    assert rest_topic.ask("POST", "/subscription/s/resetcursor", place("-1:-1:-1")).status_code == 204
    assert rest_topic.ask("GET", "/subscription/s/position/10001").status_code == 412
