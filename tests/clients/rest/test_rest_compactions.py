"""Runs, their progress, pausing, verification, policies, trimming and garbage over REST."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from api.broker.threads import Pool, WaitsFor
from api.http import run_events, single_flight
from api.http.single_flight import MAX_AGE_MS, RunReportCache
from storage.errors import ErrorText
from storage.ledger.names import ObjectKind
from storage.metadata.policy_store import BROKER, topic_scope
from storage.metadata.records import RunRecord
from storage.model import LogPosition
from tests.clients.rest.conftest import RestTopic, assert_refused
from tests.serving import Served
from tests.workbench import Workbench, store_policy


def claimed(topic: RestTopic) -> RunRecord:
    """A run that some worker has begun."""
    record = topic.served.topic(topic.name).record
    return topic.served.broker.environment.metadata.runs.claim(record.id, "elsewhere:1:ab", {}, 60_000)


def test_history(rest_topic: RestTopic, served: Served) -> None:
    assert rest_topic.ask("GET", "/compactions").json() == []
    rest_topic.put(a="1")
    rest_topic.compact()
    rest_topic.put(a="2")
    rest_topic.compact()
    newest, oldest = rest_topic.ask("GET", "/compactions").json()
    assert newest["run"] > oldest["run"]
    assert (newest["state"], newest["topic"]) == ("SUCCESS", rest_topic.name)
    assert served.ask("GET", f"/admin/v2/compactions/{oldest['run']}").json() == oldest
    assert rest_topic.ask("GET", "/compactions?limit=1").json() == [newest]
    assert newest in served.ask("GET", "/admin/v2/compactions?state=SUCCESS").json()
    assert newest not in served.ask("GET", "/admin/v2/compactions?state=ERROR").json()
    assert served.ask("GET", "/admin/v2/compactions/999999").status_code == 404
    assert served.ask("GET", "/admin/v2/compactions?state=WELL").status_code == 400


def test_cancel(rest_topic: RestTopic, served: Served) -> None:
    run = claimed(rest_topic)
    path = f"/admin/v2/compactions/{run.run_id}"
    assert served.ask("DELETE", f"{path}?reason=enough").status_code == 204
    document = served.ask("GET", path).json()
    assert (document["state"], document["error"]) == ("CANCELLED", "enough")
    assert served.ask("DELETE", path).status_code == 409


class Scripted:
    """Reports a run, after something has happened to it."""

    def __init__(self, runs: RunReportCache, *happens: Callable[[], object]) -> None:
        self._runs = runs
        self._happens = [*happens]

    async def report(self, run_id: int) -> dict[str, Any]:
        if self._happens:
            self._happens.pop(0)()
        return await self._runs.report(run_id)


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Kinds and data of the events of a stream."""
    streamed = []
    for block in text.strip().split("\n\n"):
        if not block.startswith(":"):
            kind, _, data = block.split("\n")
            streamed.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return streamed


def test_progress_is_told_until_the_run_ends(
    rest_topic: RestTopic, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = claimed(rest_topic)
    metadata = served.broker.environment.metadata
    for module in (run_events, single_flight):
        monkeypatch.setattr(module, "MAX_AGE_MS", 0)
    monkeypatch.setattr(run_events, "KEEP_ALIVE_MS", 0)
    scripted = Scripted(
        served.context.runs,
        lambda: None,
        lambda: None,
        lambda: metadata.runs.update(run, phase="phase one", statistics={"tasks_done": 1, "tasks_total": 4}),
        lambda: metadata.runs.heartbeat([run], {run.run_id: {"phase": "phase one", "tasks_done": 3}}),
        lambda: metadata.runs.cancel(run.run_id, "enough"),
    )
    monkeypatch.setattr(served.context, "runs", scripted)
    answer = served.client.get(f"/admin/v2/compactions/{run.run_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert ": still running" in answer.text
    message = events(answer.text)
    assert [kind for kind, _ in message] == ["progress", "progress", "progress", "end"]
    assert [data["tasks_done"] for _, data in message[:3]] == [None, 1, 3]
    assert (message[1][1]["phase"], message[1][1]["tasks_total"]) == ("phase one", 4)
    assert message[-1][1]["state"] == "CANCELLED"


def test_a_run_that_has_ended_is_told_at_once(rest_topic: RestTopic, served: Served) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    (run,) = rest_topic.ask("GET", "/compactions").json()
    ((kind, data),) = events(served.ask("GET", f"/admin/v2/compactions/{run['run']}/events").text)
    assert (kind, data) == ("end", run)
    assert served.ask("GET", "/admin/v2/compactions/999999/events").status_code == 404


def test_many_watchers_share_a_read(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = bench.clock
    read = mock.Mock(wraps=bench.metadata.runs.get_with_topic_name)
    monkeypatch.setattr(bench.metadata.runs, "get_with_topic_name", read)
    run = bench.metadata.runs.claim(bench.topic().record.id, "h", {}, 60_000)
    reports = RunReportCache(bench.metadata, clock, Pool(WaitsFor.DATABASE, 4, 30_000, clock))

    async def watch() -> list[dict[str, Any]]:
        documents = await asyncio.gather(*(reports.report(run.run_id) for _ in range(20)))
        clock.advance(MAX_AGE_MS)
        await reports.report(run.run_id)
        assert read.call_count == 2
        clock.advance(-3_600_000)
        await reports.report(run.run_id)  # a clock that was set back by an hour keeps no report for an hour
        return list(documents)

    updates = asyncio.run(watch())
    assert {item["run"] for item in updates} == {run.run_id}
    assert read.call_count == 3


def test_pause_and_resume(rest_topic: RestTopic, served: Served) -> None:
    rest_topic.put(a="1")
    (control,) = rest_topic.ask("GET", "/compaction/control").json()
    assert control["state"] == "None"
    assert rest_topic.ask("PUT", "/compaction").status_code == 204
    (waiting,) = rest_topic.ask("GET", "/compaction/control").json()
    assert waiting["state"] == "InProgress"
    assert rest_topic.name in [
        item["topic"] for item in served.ask("GET", "/admin/v2/compactions/scheduler").json()["queue"]
    ]
    for times in (1, 2):
        (control,) = rest_topic.ask("POST", "/compaction/pause").json()
        assert (control["state"], control["requested_at"]) == (f"Paused({times})", None)
    assert rest_topic.ask("PUT", "/compaction").status_code == 409
    scheduler = served.ask("GET", "/admin/v2/compactions/scheduler").json()
    assert rest_topic.name in [item["topic"] for item in scheduler["paused"]]
    for state in ("Paused(1)", "None"):
        (control,) = rest_topic.ask("POST", "/compaction/resume").json()
        assert control["state"] == state
    assert rest_topic.ask("POST", "/compaction/resume").status_code == 409
    rest_topic.compact()


def test_failing_topics_are_shown(rest_topic: RestTopic, served: Served) -> None:
    record = served.topic(rest_topic.name).record
    served.broker.environment.metadata.compaction_control.record_failure(
        record.id, ErrorText("the workers are away"), 17
    )
    failing = served.ask("GET", "/admin/v2/compactions/scheduler").json()["failing"]
    (failure,) = [item for item in failing if item["topic"] == rest_topic.name]
    assert (failure["failures"], failure["last_error"]) == (1, "the workers are away")
    assert rest_topic.ask("POST", "/compaction/abort").status_code == 200


def test_verify(rest_topic: RestTopic, served: Served) -> None:
    rest_topic.put(a="1", b="1")
    rest_topic.compact()
    (report,) = rest_topic.ask("POST", "/compaction/verify").json()
    assert (report["total"], report["differences"]) == (0, [])
    assert report["checked"]["keys"] == 2
    lost = rest_topic.lose(ObjectKind.MANIFEST)
    (report,) = rest_topic.ask("POST", "/compaction/verify").json()
    assert report["total"] == 1
    assert report["differences"][0]["where"] == lost.name
    with served.broker.verify_lock:
        assert rest_topic.ask("POST", "/compaction/verify").status_code == 409


def test_policies_at_each_scope(rest_topic: RestTopic, served: Served) -> None:
    name = "/policies/delete.retention.ms"
    namespace, broker = f"/admin/v2/namespaces/public/default{name}", f"/admin/v2/brokers{name}"
    assert rest_topic.ask("GET", name).json() == {"value": 0, "origin": "default"}
    assert rest_topic.ask("GET", f"{name}?applied=false").status_code == 404
    own = rest_topic.path + name
    for path, value, origin in ((broker, 1000, "broker"), (namespace, "2s", "namespace"), (own, 3, "topic")):
        assert served.ask("PUT", path, json.dumps(value)).status_code == 204
        assert rest_topic.ask("GET", name).json()["origin"] == origin
    assert rest_topic.ask("GET", name).json()["value"] == 3
    assert rest_topic.ask("GET", "/policies?applied=false").json() == {
        "delete.retention.ms": {"value": 3, "origin": "topic"}
    }
    assert served.ask("GET", namespace).json() == {"value": 2000, "origin": "namespace"}
    applied = served.ask("GET", "/admin/v2/brokers/policies").json()["delete.retention.ms"]
    assert applied == served.ask("GET", broker).json() == {"value": 1000, "origin": "broker"}
    for path in (own, namespace, broker):
        assert served.ask("DELETE", path).status_code == 204
    assert rest_topic.ask("GET", name).json() == {"value": 0, "origin": "default"}


def test_a_stored_policy_that_cannot_be_read_is_shown_beside_what_counts_instead(
    rest_topic: RestTopic, served: Served
) -> None:
    metadata, topic = served.broker.environment.metadata, served.topic(rest_topic.name)
    store_policy(metadata, topic_scope(topic.record), "retention.ms", "1y")
    store_policy(metadata, BROKER, "segment.bytes", 1 << 40)
    policies = rest_topic.ask("GET", "/policies").json()
    reason = policies["retention.ms"]["unreadable"].pop("reason")
    assert reason.startswith("'1y' is not a value of retention.ms: give milliseconds")
    assert policies["retention.ms"] == {
        "value": -1,
        "origin": "topic",
        "unreadable": {"value": "1y", "origin": "topic"},
    }
    assert policies["segment.bytes"]["value"] == 32 << 20
    assert policies["segment.bytes"]["unreadable"]["origin"] == "broker"
    assert "unreadable" not in policies["segment.ms"]
    assert rest_topic.ask("GET", "/policies/retention.ms?applied=false").json()["value"] == "1y"
    assert rest_topic.ask("GET", "/retention?applied=true").json()["retentionTimeInMinutes"] == -1
    assert rest_topic.ask("DELETE", "/policies").status_code == 204
    assert rest_topic.ask("GET", "/policies?applied=false").json() == {}
    assert served.ask("DELETE", "/admin/v2/brokers/policies/segment.bytes").status_code == 204


@pytest.mark.parametrize(("body", "status"), [(b"65536", 204), (b'"64K"', 204), (b"64K", 415), (b"[" * 100_000, 415)])
def test_a_policy_may_come_as_curl_sends_it(rest_topic: RestTopic, served: Served, body: bytes, status: int) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    path = f"{rest_topic.path}/policies/segment.bytes"
    answer = served.client.put(path, content=body, headers=form)
    assert answer.status_code == status, answer.text
    if status == 204:
        assert rest_topic.ask("GET", "/policies/segment.bytes").json() == {"value": 65536, "origin": "topic"}
    else:
        assert "needs the header Content-Type: application/json" in answer.json()["reason"]


def test_several_policies_are_set_together_or_not_at_all(rest_topic: RestTopic) -> None:
    lags = {"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 20}
    assert rest_topic.ask("PUT", "/policies", lags).status_code == 204
    assert (
        rest_topic.ask("PUT", "/policies", {"min.compaction.lag.ms": 30, "max.compaction.lag.ms": 40}).status_code
        == 204
    )
    before = rest_topic.ask("GET", "/policies?applied=false").json()
    refused = rest_topic.ask("PUT", "/policies", {"min.compaction.lag.ms": 50, "retention.ms": 5})
    assert refused.status_code == 400
    assert rest_topic.ask("PUT", "/policies", {"no.such.policy": 5}).status_code == 400
    assert rest_topic.ask("GET", "/policies?applied=false").json() == before
    assert rest_topic.ask("DELETE", "/policies").status_code == 204
    assert rest_topic.ask("GET", "/policies?applied=false").json() == {}


def test_a_topic_that_is_to_be_compacted_has_its_cursor(rest_topic: RestTopic) -> None:
    assert rest_topic.ask("PUT", "/policies/cleanup.policy", ["compact"]).status_code == 204
    assert rest_topic.ask("GET", "/subscriptions").json() == ["__compaction"]


def test_message_threshold(rest_topic: RestTopic) -> None:
    below = "/compactionThresholdMessages"
    assert rest_topic.ask("GET", below).content == b""
    assert rest_topic.ask("GET", f"{below}?applied=true").json() == 0
    assert rest_topic.ask("POST", below, 10).status_code == 204
    assert rest_topic.ask("GET", below).json() == 10
    assert rest_topic.ask("POST", below, " 11 ").status_code == 204
    assert rest_topic.ask("GET", below).json() == 11
    for bad, status in ((-1, 412), ("ten", 400), (1.5, 400), (True, 400)):
        assert rest_topic.ask("POST", below, bad).status_code == status, bad
    assert rest_topic.ask("DELETE", below).status_code == 204
    assert rest_topic.ask("GET", below).content == b""


def test_a_lease_is_released_when_told_to(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.served.broker.logs.close_topics(rest_topic.served.topic(rest_topic.name).record)
    metadata = rest_topic.served.broker.environment.metadata
    assert rest_topic.ask("POST", "/release-lease").json()[0]["owner"] is None
    lease = metadata.leases.acquire(rest_topic.served.topic(rest_topic.name).record.id, "elsewhere:7:aa", 60_000)
    for body in (None, {}, {"force": True}, {"dryRun": False}):
        (report,) = rest_topic.ask("POST", "/release-lease", body).json()
        assert (report["owner"], report["expires_at"]) == (lease.owner, lease.expires_at)
        assert report["dry_run"] == (body != {"dryRun": False})
    assert rest_topic.ask("POST", "/release-lease", {"yes": True}).status_code == 400
    rest_topic.put(b="2")
    assert_refused(rest_topic.ask("POST", "/release-lease", {"dryRun": False}), 409, "its owner is alive")


def test_a_trim_is_reported_or_done_and_reported_as_the_query_says(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    rest_topic.compact()
    ids = rest_topic.put(b="2")
    before = rest_topic.read()
    for body in (None, {}, {"before": ids[0]}, {"before": 1}):
        (report,) = rest_topic.ask("POST", "/trim?dryRun=true", body).json()
        assert report["dry_run"]
    assert len(report["ledgers"]) == 1
    for body in ({}, {"before": 1}):
        assert_refused(rest_topic.ask("POST", "/trim", body), 400, "dryRun=")
    assert rest_topic.read() == before
    (report,) = rest_topic.ask("POST", "/trim?dryRun=false", {"before": ids[0]}).json()
    assert not report["dry_run"]
    assert rest_topic.values() == [("b", "2")]
    assert rest_topic.ask("POST", "/trim?dryRun=true", {"before": 99}).status_code == 400
    assert rest_topic.ask("POST", "/trim?dryRun=true", {"dryRun": False}).status_code == 400
    assert rest_topic.ask("POST", "/trim?dryrun=true").status_code == 400


def test_a_trim_without_more_applies_the_policies_and_answers_nothing(rest_topic: RestTopic) -> None:
    """The answer is a broker's: Pulsar's clients wait forever for a list where they want no answer."""
    rest_topic.put(a="1")
    rest_topic.compact()
    assert rest_topic.ask("PUT", "/policies/cleanup.policy", "compact").status_code == 204
    trimmed = rest_topic.ask("POST", "/trim")
    assert (trimmed.status_code, trimmed.content) == (204, b"")
    assert rest_topic.read() == []
    assert rest_topic.values("readCompacted=true") == [("a", "1")]


def test_no_trim_while_the_compacted_ledger_cannot_be_read(rest_topic: RestTopic, served: Served) -> None:
    """R8: raw has the only copy; also the dry run and Pulsar's call. By force it goes."""
    rest_topic.put(a="1")
    rest_topic.compact()
    assert rest_topic.ask("PUT", "/policies/cleanup.policy", "compact").status_code == 204
    lost = rest_topic.lose(ObjectKind.MANIFEST)
    reason = f"the compacted ledger {lost.ledger_id} of {rest_topic.name} cannot be read"
    for call in ("/trim", "/trim?dryRun=true", "/trim?dryRun=false"):
        assert_refused(rest_topic.ask("POST", call), 507, reason)
    assert rest_topic.values() == [("a", "1")]
    assert rest_topic.ask("POST", "/trim?dryRun=false", {"force": True}).status_code == 200
    assert rest_topic.values() == []


def test_what_a_cursor_holds_back_is_told(rest_topic: RestTopic) -> None:
    rest_topic.put(a="1")
    assert rest_topic.ask("PUT", "/subscription/slow", "earliest").status_code == 204
    (report,) = rest_topic.ask("POST", "/trim?dryRun=false", {"before": 1}).json()
    assert report["held"]["cursor"] == "slow"
    assert rest_topic.values() == [("a", "1")]


def test_garbage_is_a_dry_run_unless_told_otherwise(rest_topic: RestTopic, served: Served) -> None:
    rest_topic.put(a="1")
    assert rest_topic.ask("PUT", "/policies/file.delete.delay.ms", 0).status_code == 204
    assert rest_topic.ask("POST", "/trim?dryRun=false", {"before": 1}).status_code == 200
    body = {"topics": [rest_topic.name]}
    for dry_run in ({}, {}, {"dryRun": False}):
        report = served.ask("POST", "/admin/v2/garbage", json.dumps({**body, **dry_run})).json()
        assert report["dry_run"] == (not dry_run)
        assert report["objects"] > 0
        assert report["topics"][0]["trimmed_ledgers"] == 1
    again = served.ask("POST", "/admin/v2/garbage", json.dumps({**body, "dryRun": False})).json()
    assert (again["objects"], again["topics"]) == (0, [])
    assert served.ask("POST", "/admin/v2/garbage", '{"graceMs": 5}').status_code == 400
    assert served.ask("POST", "/admin/v2/garbage", '{"topics": ["a"], "unknownTopics": true}').status_code == 400
    assert served.ask("POST", "/admin/v2/garbage", '{"topics": ["nosuch"]}').status_code == 404


@pytest.mark.slow
def test_a_run_tells_its_horizon(rest_topic: RestTopic, served: Served) -> None:
    ids = rest_topic.put(a="1", b="2")
    rest_topic.compact()
    (run,) = rest_topic.ask("GET", "/compactions").json()
    assert (run["horizon"], run["horizon_offset"]) == (ids[1], 1)
    horizon = served.topic(rest_topic.name).snapshot().horizon
    assert isinstance(horizon, LogPosition)
