"""Two services on one database and store, each with its own log directory: either answers for any topic."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from api.broker import topics
from api.broker.refusals import PoolBusy
from api.broker.threads import WaitsFor
from api.http.owner_proxy import FORWARDED
from compactor.maintenance.truncation import truncate
from storage.environment import Environment
from storage.metadata.records import ServiceRecord, TopicRecord
from storage.reading.page_reader import MessagesPage, PageReader, ReadLimits
from tests.clients.rest.conftest import RestTopic, assert_refused
from tests.serving import RecordedTransport, Served, second_service

URL = "http://localhost:18080"
ELSEWHERE = "elsewhere:7"
"""Host and process of a service of which there is only a row."""


class Two:
    """The service that has the topics' logs, and another one that forwards."""

    def __init__(self, first: Served, second: Served, transport: RecordedTransport) -> None:
        self.first = first
        self.second = second
        self.transport = transport

    def on_second(self, topic: RestTopic) -> RestTopic:
        """Return the same topic, with requests to the other service."""
        return RestTopic(self.second, topic.local)


def known(served: Served, name: str = "first:1:aa", url: str = URL) -> None:
    """Say that a service with the log directory of `served` lives."""
    environment = served.broker.environment
    environment.metadata.services.heartbeat(ServiceRecord(name, url, environment.log.uid, 1, 1))


@pytest.fixture(scope="module")
def both(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with second_service(served, tmp_path_factory.mktemp("second")) as (second, transport):
        known(served)
        yield Two(served, second, transport)


@pytest.fixture
def two(both: Two) -> Iterator[Two]:
    yield both
    both.transport.away = False
    both.transport.requests.clear()
    known(both.first)


def test_writes_and_reads_go_to_who_has_the_log(two: Two, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    remote = two.on_second(rest_topic)
    (message_id,) = remote.put(b="2")
    assert remote.read() == rest_topic.read()
    assert rest_topic.read()[1]["message_id"] == message_id
    assert [request.method for request in two.transport.requests] == ["POST", "GET"]
    assert all(FORWARDED in request.headers for request in two.transport.requests)


def test_the_caller_goes_along_and_the_answer_comes_as_it_is(two: Two, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    refused = two.second.client.get(f"{rest_topic.path}/messages?start=nonsense", headers={"authorization": "Bearer x"})
    assert refused.status_code == 400
    answer = two.second.client.get(f"{rest_topic.path}/messages?limit=1", headers={"authorization": "Bearer x"})
    assert answer.headers["X-Compactor-Next"] == "1"
    (request,) = two.transport.requests
    assert request.headers["authorization"] == "Bearer x"
    assert request.url.query == b"limit=1"


def test_other_calls_that_read_go_along(two: Two, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    remote = two.on_second(rest_topic)
    assert remote.ask("GET", "/lastMessageId").json() == rest_topic.ask("GET", "/lastMessageId").json()
    assert remote.ask("PUT", "/subscription/s", "earliest").status_code == 204
    assert remote.ask("GET", "/subscription/s/position/1").text == "1"
    assert remote.ask("GET", "/key/a").json()["value"] == "1"


def test_what_is_sealed_is_read_anywhere(two: Two, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    assert two.on_second(rest_topic).values("readCompacted=true") == [("a", "1")]
    assert two.transport.requests == []


def test_a_forwarded_request_goes_no_further(two: Two, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    answer = two.second.client.get(f"{rest_topic.path}/messages", headers={FORWARDED: "third:9"})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert "third:9" in answer.json()["reason"]
    assert two.transport.requests == []


def test_a_service_that_does_not_answer(two: Two, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    two.transport.away = True
    for answer in (
        two.on_second(rest_topic).ask("GET", "/messages"),
        two.second.ask("POST", f"/topics{rest_topic.path[9:]}", '{"messages": [{"payload": "v"}]}'),
    ):
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert URL in answer.json()["reason"]


def test_a_log_directory_that_no_service_has(two: Two, rest_topic: RestTopic) -> None:
    """R8: what the store has is served; what is away is named, and nothing is shorter in silence."""
    rest_topic.put(a="1")
    rest_topic.compact()
    rest_topic.put(b="2")
    two.first.broker.environment.metadata.services.leave("first:1:aa")
    remote = two.on_second(rest_topic)
    for flag in ("readCompacted=true", "readCompacted=false"):
        page = two.second.client.get(f"{rest_topic.path}/messages?{flag}")
        assert [json.loads(line)["key"] for line in page.text.splitlines()] == ["a"]
        answer = remote.ask("GET", f"/messages?{flag}&start={page.headers['X-Compactor-Next']}")
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "5"
        assert re.search("from offset 1 (on|to 1) are not sealed yet", answer.json()["reason"]), (
            "open, or rolled as idle"
        )
        assert "COMPACTOR_LOG" not in answer.json()["reason"], "the caller has no directory here"
    assert remote.ask("GET", "/key/a").status_code == 503
    assert remote.ask("GET", "/key/a?sealedOnly=true").json()["value"] == "1"
    assert remote.ask("GET", "/key?key=b&sealedOnly=true").status_code == 404
    assert remote.ask("GET", "/lastMessageId").status_code == 503
    assert remote.ask("GET", "/stats").status_code == 200
    assert remote.ask("GET", "/internalStats").status_code == 200
    assert remote.ask("PUT", "/subscription/s", "earliest").status_code == 204
    assert remote.ask("GET", "/subscription/s/position/1").text == "1"
    assert remote.ask("GET", "/subscription/s/position/2").status_code == 503
    body = '{"messages": [{"payload": "v"}]}'
    refused = two.second.ask("POST", f"/topics{rest_topic.path[9:]}", body)
    assert refused.status_code == 503
    assert re.search("which no living service has|is writing to", refused.json()["reason"]), "open, or rolled as idle"
    assert two.transport.requests == []


def test_a_reader_that_waits_goes_on_when_another_service_appends(
    two: Two, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits here for what then comes there: it is given an empty page, and the next one is asked for there."""
    rest_topic.put(a="1")
    rest_topic.compact()
    remote = two.on_second(rest_topic)
    polls = iter(range(100))
    messages = PageReader.messages

    def then_append(reader: PageReader, limits: ReadLimits) -> MessagesPage:
        if next(polls) == 1:
            rest_topic.put(b="2")
        return messages(reader, limits)

    monkeypatch.setattr(PageReader, "messages", then_append)
    empty = two.second.client.get(f"{rest_topic.path}/messages?start=latest&waitMs=60000")
    assert (empty.status_code, empty.text) == (200, "")
    assert remote.values(f"start={empty.headers['X-Compactor-Next']}") == [("b", "2")]


def test_a_writer_that_is_no_service_is_named_with_what_to_do(two: Two, rest_topic: RestTopic) -> None:
    """A `compactor produce` that stays open never finishes: that it should be waited for would be no advice."""
    metadata = two.first.broker.environment.metadata
    lease = metadata.leases.acquire(rest_topic.served.topic(rest_topic.name).record.id, "there:4711:cafe", 60_000)
    path = f"/topics{rest_topic.path[9:]}"
    answer = two.first.ask("POST", path, '{"messages": [{"payload": "v"}]}')
    metadata.leases.release(lease)
    reason = answer.json()["reason"]
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert reason.startswith(f"there:4711:cafe is writing to {rest_topic.name}, and is no live service")
    assert "end the process 4711 on there" in reason


def test_the_holder_of_the_lease_is_asked_if_it_is_a_service(two: Two, rest_topic: RestTopic) -> None:
    metadata = two.first.broker.environment.metadata
    lease = metadata.leases.acquire(rest_topic.served.topic(rest_topic.name).record.id, f"{ELSEWHERE}:ab", 60_000)
    body = '{"messages": [{"payload": "v"}]}'
    path = f"/topics{rest_topic.path[9:]}"
    refused = two.second.ask("POST", path, body)
    assert refused.status_code == 503
    assert ELSEWHERE in refused.json()["reason"]
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    known(two.first, f"{ELSEWHERE}:cd")
    two.transport.away = True
    assert two.second.ask("POST", path, body).status_code == 503
    assert [request.url.path for request in two.transport.requests] == [path]
    metadata.services.leave(f"{ELSEWHERE}:cd")
    metadata.leases.release(lease)


@contextmanager
def owned_elsewhere(two: Two, topic: RestTopic) -> Iterator[None]:
    """Let another service, which does not answer, own the topic."""
    metadata = two.first.broker.environment.metadata
    lease = metadata.leases.acquire(topic.served.topic(topic.name).record.id, f"{ELSEWHERE}:ab", 60_000)
    known(two.first, f"{ELSEWHERE}:cd")
    two.transport.away = True
    yield
    metadata.services.leave(f"{ELSEWHERE}:cd")
    metadata.leases.release(lease)


def test_a_topic_is_deleted_by_the_service_that_has_its_clients(two: Two, rest_topic: RestTopic) -> None:
    with owned_elsewhere(two, rest_topic):
        assert two.second.ask("DELETE", f"{rest_topic.path}?force=true").status_code == 503
        assert [request.method for request in two.transport.requests] == ["DELETE"]
        assert two.first.topic(rest_topic.name).record.id


@pytest.fixture
def parted_elsewhere(two: Two) -> Iterator[RestTopic]:
    """A partitioned topic, whose first partition another service owns, which does not answer."""
    parted = RestTopic(two.first, "away")
    assert parted.ask("PUT", "/partitions", 2).status_code == 204
    with owned_elsewhere(two, RestTopic(two.first, "away-partition-0")):
        yield parted
    assert parted.ask("DELETE", "/partitions?force=true").status_code == 204


def test_a_partitioned_topic_stays_if_the_owner_of_a_partition_does_not_answer(
    two: Two, parted_elsewhere: RestTopic
) -> None:
    for query, operation in (("", "GET"), ("?force=true", "PUT")):
        assert two.second.ask("DELETE", f"{parted_elsewhere.path}/partitions{query}").status_code == 503
        assert [request.method for request in two.transport.requests] == [operation]
        assert two.transport.requests.pop().url.path.split("/")[-2] == "away-partition-0"
        assert parted_elsewhere.ask("GET", "/partitions").json()["partitions"] == 2


def test_a_truncation_of_partitions_goes_to_the_owner_of_each(two: Two, parted_elsewhere: RestTopic) -> None:
    assert two.second.ask("DELETE", f"{parted_elsewhere.path}/truncate").status_code == 503
    (request,) = two.transport.requests
    assert (request.method, request.url.path.split("/")[-2]) == ("DELETE", "away-partition-0")


def test_a_truncation_during_which_the_lease_moved_goes_to_the_new_owner(
    two: Two, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:

        def lose_the_lease(environment: Environment, records: list[TopicRecord]) -> None:
            truncate(environment, records)
            stack.enter_context(owned_elsewhere(two, rest_topic))

        monkeypatch.setattr(topics, "truncate_all", lose_the_lease)
        assert two.second.ask("DELETE", f"{rest_topic.path}/truncate").status_code == 503
        assert [request.method for request in two.transport.requests] == ["DELETE"]


def test_each_partition_goes_where_it_lies(two: Two) -> None:
    parted = RestTopic(two.first, "spread")
    assert parted.ask("PUT", "/partitions", 2).status_code == 204
    parted.produce({"payload": "first"}, query="/partitions/0")
    acks = two.on_second(parted).produce(
        {"payload": "zero", "partition": 0, "key": "k", "properties": {"a": "b"}, "publishTime": 1_000},
        {"payload": "one", "partition": 1},
    )
    assert [ack["messageId"].split(":")[2] for ack in acks] == ["0", "1"]
    (request,) = two.transport.requests
    assert request.url.path.endswith("/spread-partition-0")
    assert len(json.loads(request.content)["messages"]) == 1
    assert RestTopic(two.first, "spread-partition-0").values() == [(None, "first"), ("k", "zero")]
    assert RestTopic(two.first, "spread-partition-0").read()[1]["publish_time"] == 1_000
    assert RestTopic(two.second, "spread-partition-1").values() == [(None, "one")]


def test_a_busy_pool_fails_the_forwarded_messages_alone(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    parted = RestTopic(two.first, "busy")
    assert parted.ask("PUT", "/partitions", 2).status_code == 204
    parted.produce({"payload": "first"}, query="/partitions/0")
    pool = two.second.broker.pools[WaitsFor.PARSING]
    run = type(pool).run

    async def busy(work: Callable[..., Any], *arguments: Any) -> Any:
        if arguments and isinstance(arguments[0], bytes):  # the other service's answer
            raise PoolBusy("64 requests wait for the parsers already", "queue", "parsing")
        return await run(pool, work, *arguments)

    monkeypatch.setattr(pool, "run", busy)
    acks = two.on_second(parted).produce({"payload": "zero", "partition": 0}, {"payload": "one", "partition": 1})
    assert [ack.get("errorCode") for ack in acks] == [1, 0]


def test_a_busy_pool_refuses_a_request_for_the_partitions_of_both(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    parted = RestTopic(two.first, "busy-reads")
    assert parted.ask("PUT", "/partitions", 2).status_code == 204
    parted.produce({"payload": "first", "key": "k"}, query="/partitions/0")
    check, calls = two.second.broker.ownership.check_for_reading, iter((False, True, False))

    def busy(*arguments: Any) -> None:
        if next(calls):
            raise PoolBusy("16 calls wait for the database already", "queue", "database")
        check(*arguments)

    monkeypatch.setattr(two.second.broker.ownership, "check_for_reading", busy)
    refused = two.on_second(parted).ask("GET", "/key/k")
    assert_refused(refused, 503, "16 calls wait for the database already")
    assert refused.headers["Retry-After"] == "1"


def test_a_partitioned_topic_that_lies_with_both(two: Two) -> None:
    parted = RestTopic(two.first, "both")
    remote = two.on_second(parted)
    assert parted.ask("PUT", "/partitions", 2).status_code == 204
    parted.produce({"payload": "old", "key": "k"}, query="/partitions/0")
    remote.produce({"payload": "new", "key": "k"}, query="/partitions/1")
    assert remote.ask("PUT", "/subscription/s", "earliest").status_code == 204
    first, other = RestTopic(two.first, "both-partition-0"), RestTopic(two.second, "both-partition-1")
    for partition in (first, other):
        assert partition.ask("GET", "/subscription/s/position/1").status_code == 200
    assert remote.ask("PUT", "/subscription/s").status_code == 409
    assert remote.ask("GET", "/key/k").json()["value"] == "new"
    assert remote.ask("GET", "/key/none").status_code == 404
    assert [report["topic"] for report in remote.ask("POST", "/trim?dryRun=true").json()] == [first.name, other.name]
    assert remote.ask("POST", "/trim").status_code == 204
    remote.produce({"payload": None, "key": "k"}, query="/partitions/1")
    assert remote.ask("GET", "/key/k").status_code == 404, "the newest is a tombstone"
    parted.produce({"payload": "newest", "key": "k"}, query="/partitions/0")
    assert remote.ask("GET", "/key/k").json()["value"] == "newest"
    assert remote.ask("POST", "/subscription/s/skip_all").status_code == 204
    for partition in (first, other):
        assert partition.ask("GET", "/subscription/s/position/1").status_code == 404
    assert remote.ask("POST", "/subscription/none/skip_all").status_code == 404


def test_the_backlogs_of_a_namespace_are_cleared_where_they_lie(two: Two, rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    assert rest_topic.ask("PUT", "/subscription/everywhere", "earliest").status_code == 204
    cleared = two.second.ask("POST", "/admin/v2/namespaces/public/default/clearBacklog/everywhere")
    assert cleared.status_code == 204
    assert rest_topic.ask("GET", "/subscription/everywhere/position/1").status_code == 404
    two.transport.away = True
    rest_topic.put(b="2")
    refused = two.second.ask("POST", "/admin/v2/namespaces/public/default/clearBacklog/everywhere")
    assert refused.status_code == 503


def test_the_subscriptions_of_a_namespace_are_deleted_where_their_consumers_are(
    two: Two, rest_topic: RestTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a connected consumer keeps the subscription, which comes back."""
    ownership = two.second.broker.ownership  # both services are one process here
    monkeypatch.setattr(ownership, "check_not_owned_elsewhere", ownership.check_for_reading)
    rest_topic.put(a="1")
    assert rest_topic.ask("PUT", "/subscription/elsewhere", "earliest").status_code == 204
    path = "/admin/v2/namespaces/public/default/unsubscribe"
    two.transport.requests.clear()
    assert two.second.ask("POST", f"{path}/nowhere").status_code == 204
    assert two.transport.requests == []
    assert two.second.ask("POST", f"{path}/elsewhere").status_code == 204
    (request,) = two.transport.requests
    assert (request.method, request.url.path) == ("DELETE", f"{rest_topic.path}/subscription/elsewhere")
    assert rest_topic.ask("GET", "/subscriptions").json() == []


def test_a_partition_that_was_deleted_by_itself_is_left_out(two: Two) -> None:
    parted = RestTopic(two.first, "holed")
    remote = two.on_second(parted)
    assert parted.ask("PUT", "/partitions", 3).status_code == 204
    parted.produce({"payload": "one", "key": "k"}, query="/partitions/0")
    remote.produce({"payload": "three", "key": "l"}, query="/partitions/2")
    assert RestTopic(two.first, "holed-partition-1").ask("DELETE", "").status_code == 204
    answer = remote.ask("GET", "/key/k")
    assert answer.status_code == 200, answer.text
    assert answer.json()["value"] == "one"
    assert remote.ask("PUT", "/subscription/s", "earliest").status_code == 204


@pytest.mark.slow
def test_what_is_asked_of_one_partition_is_of_that_one_alone(two: Two) -> None:
    """However a client encodes its name."""
    parted = RestTopic(two.first, "odd!name:1*2~3")
    assert parted.ask("PUT", "/partitions", 2).status_code == 204
    for number in range(2):
        parted.produce({"payload": "kept"}, query=f"/partitions/{number}")
    deleted, kept = (RestTopic(two.first, f"{parted.local}-partition-{number}") for number in range(2))
    assert two.on_second(deleted).ask("DELETE", "/truncate").status_code == 204
    assert (deleted.values(), kept.values()) == ([], [(None, "kept")])
