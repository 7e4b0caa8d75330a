"""Commands of `compactor-admin` beside Pulsar's verbs: runs, policies, messages, verify, trim and garbage."""

from __future__ import annotations

import re

import pytest

from api.cli.admin.run_watch import parse_events, progress_line
from storage.errors import ErrorText, Unavailable
from tests.program import Program
from tests.serving import Served

LINES = b'{"key": "a", "value": "1"}\n{"key": "b", "value": "2"}\n{"key": "a", "value": "3"}\n'


@pytest.fixture
def compacted(admin: Program, served: Served, topic: str) -> str:
    """A topic of three messages with two keys, compacted."""
    admin("topics", "produce", topic, stdin=LINES).done()
    admin("topics", "compact", topic).done()
    served.compact_requested()
    return topic


def test_a_compaction_asked_for_and_its_status(admin: Program, served: Served, topic: str) -> None:
    assert "has not been run" in admin("topics", "compaction-status", topic).done().stdout
    admin("topics", "compact", topic).done()
    assert admin("topics", "compaction-status", topic).lines == ["Compaction is currently running"]
    admin("topics", "compact", topic).refused(4, "is requested since")
    served.compact_requested()
    assert admin("topics", "compaction-status", topic, "--wait-complete").lines == ["Compaction was a success"]
    answer = admin.json("topics", "compaction-status", topic)
    assert answer == {"status": "SUCCESS", "lastError": ""}


def test_a_wait_ends_when_the_run_does(
    admin: Program, served: Served, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin("topics", "compact", topic).done()
    monkeypatch.setattr("api.cli.admin.compaction_commands.time.sleep", lambda _: served.compact_requested())
    assert admin("topics", "compaction-status", topic, "-w").lines == ["Compaction was a success"]


def test_a_run_that_failed_is_an_exit_code(
    admin: Program, served: Served, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin("topics", "produce", topic, stdin=LINES).done()
    admin("topics", "compact", topic).done()

    def broken(*_: object) -> None:
        raise Unavailable("the disk is gone", "try again")

    with monkeypatch.context() as patched:
        patched.setattr(type(served.engine), "run", broken)
        served.compact_requested()
    failed = admin("topics", "compaction-status", topic)
    assert (failed.exit_code, failed.lines) == (9, ["Error in compaction"])
    assert "the disk is gone" in failed.stderr
    watched = admin("compactions", "watch", "--topic", topic, "--output", "json")
    assert (watched.exit_code, watched.json["state"]) == (9, "ERROR")
    assert "ended with ERROR" in watched.stderr


def test_runs_are_listed_shown_and_watched(admin: Program, compacted: str) -> None:
    [run] = admin.json("compactions", "list", "--topic", compacted)
    assert (run["state"], run["topic"]) == ("SUCCESS", f"persistent://public/default/{compacted}")
    number = str(run["run"])
    assert number in admin("compactions", "list", "--state", "SUCCESS", "--limit", "1").stdout
    assert admin.json("compactions", "show", number) == run
    assert "SUCCESS" in admin("compactions", "watch", number).done().stdout
    assert admin.json("compactions", "watch", "--topic", compacted) == run
    admin("compactions", "cancel", number).refused(4)
    admin("compactions", "show", "999999").refused(3)
    admin("compactions", "watch", number, "--topic", compacted).refused(2, "RUN or --topic")


@pytest.fixture
def waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let the service execute the requested run while the command waits; count the waits."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        served.compact_requested()

    monkeypatch.setattr("api.cli.admin.run_watch.sleep", sleep)
    return waits


def test_a_watch_follows_the_request_that_waits_and_not_the_run_before_it(
    admin: Program, compacted: str, waiting: list[float]
) -> None:
    [old] = admin.json("compactions", "list", "--topic", compacted)
    admin("topics", "produce", compacted, stdin=LINES).done()
    admin("topics", "compact", compacted).done()
    watched = admin("compactions", "watch", "--topic", compacted, "--output", "json").done()
    assert watched.json["run"] > old["run"]
    assert (watched.json["state"], len(waiting)) == ("SUCCESS", 1)
    assert "is requested (manual): waiting for its run" in watched.stderr


@pytest.mark.slow
def test_a_compaction_that_is_waited_for_ends_as_its_run_does(
    admin: Program, served: Served, compacted: str, waiting: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_new = admin("topics", "compact", compacted, "--wait", "--output", "json").done()
    assert nothing_new.json is None
    assert "nothing is new" in nothing_new.stderr
    admin("topics", "produce", compacted, stdin=LINES).done()
    run = admin.json("topics", "compact", compacted, "--wait")
    assert (run["state"], run["cause"]) == ("SUCCESS", "manual")
    admin("topics", "produce", compacted, stdin=LINES).done()
    brief = admin("topics", "compact", compacted, "--wait").done()
    (result,) = brief.lines  # N18: the run's fifty fields were printed
    assert re.fullmatch(
        rf"run \d+ of persistent://public/default/{compacted}: SUCCESS in (?:\d+ ms|[1-9]\d*\.\d s), "
        r"kept 2 of \d+ messages, read .*, "
        r"wrote .*; compacted ledger \d+, up to offset 8",
        result,
    ), result
    assert len(brief.stderr.splitlines()) <= 4, brief.stderr
    admin("topics", "produce", compacted, stdin=LINES).done()

    def broken(*_: object) -> None:
        raise Unavailable("the disk is gone", "try again")

    with monkeypatch.context() as patched:
        patched.setattr(type(served.engine), "run", broken)
        failed = admin("topics", "compact", compacted, "--wait", "--output", "json")
    assert (failed.exit_code, failed.json["state"]) == (9, "ERROR")
    assert failed.json["run"] > run["run"]
    assert "the disk is gone" in failed.stderr


def test_a_request_that_ends_without_a_run_says_why(
    admin: Program, served: Served, compacted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = served.broker.environment.metadata
    record = served.topic(f"persistent://public/default/{compacted}").record
    admin("topics", "produce", compacted, stdin=LINES).done()
    monkeypatch.setattr("api.cli.admin.run_watch.sleep", lambda _: metadata.compaction_control.pause([record.id]))
    paused = admin("topics", "compact", compacted, "--wait")
    assert (paused.exit_code, paused.stdout) == (4, "")
    assert "was paused before a run began" in paused.stderr
    metadata.compaction_control.resume([record.id])
    now = served.broker.environment.clock.now_ms()

    def fail(_: float) -> None:
        metadata.compaction_control.record_failure(record.id, ErrorText("there is no Java"), now + 1000)
        metadata.compaction_control.withdraw(record.id)

    monkeypatch.setattr("api.cli.admin.run_watch.sleep", fail)
    failed = admin("topics", "compact", compacted, "--wait")
    assert (failed.exit_code, failed.stdout) == (9, "")
    assert "could not begin: there is no Java" in failed.stderr
    metadata.compaction_control.clear_failures(record.id)


def test_the_partitions_of_a_topic_are_followed_one_by_one(admin: Program, waiting: list[float]) -> None:
    admin("topics", "create-partitioned-topic", "followed", "-p", "2").done()
    for partition in range(2):
        admin("topics", "produce", f"followed-partition-{partition}", stdin=LINES).done()
    runs = admin.json("topics", "compact", "followed", "--wait")
    assert [run["topic"].rpartition("-")[2] for run in runs] == ["0", "1"]
    assert admin.json("compactions", "watch", "--topic", "followed") == runs


def test_pausing_and_the_scheduler(admin: Program, topic: str) -> None:
    assert "Paused(1)" in admin("compactions", "pause", topic).done().stdout
    admin("topics", "compact", topic).refused(4)
    [paused] = admin.json("compactions", "scheduler")["paused"]
    assert paused["topic"].endswith(topic)
    assert "paused: 1" in admin("compactions", "scheduler").lines
    admin("compactions", "resume", topic).done()
    admin("compactions", "resume", topic).refused(4)
    admin("topics", "compact", topic).done()
    [control] = admin.json("compactions", "control", topic)
    assert control["requested_at"] is not None
    admin("compactions", "abort", topic).done()
    assert admin.json("compactions", "control", topic)[0]["requested_at"] is None
    admin("compactions", "watch", "--topic", topic).refused(3, "no compaction run")


def test_policies_of_every_place(admin: Program, topic: str) -> None:
    name, limit = "segment.bytes", ("--output", "json")
    admin("policies", "set", "--broker", f"{name}=1M").done()
    assert admin("policies", "get", name, "--topic", topic, *limit).json == {"value": 1 << 20, "origin": "broker"}
    admin("policies", "set", "--namespace", "public/default", f"{name}=2M").done()
    admin("policies", "set", "--topic", topic, f"{name}=3M", "compaction.threshold.messages=100").done()
    assert str(3 << 20) in admin("policies", "get", name, "--topic", topic).stdout
    own = admin("policies", "get", "--own", "--topic", topic, *limit).json
    assert own.keys() == {name, "compaction.threshold.messages"}
    admin("policies", "remove", "--topic", topic, *own).done()
    assert admin("policies", "get", name, "--topic", topic, *limit).json["origin"] == "namespace"
    admin("policies", "remove", "--namespace", "public/default", name).done()
    admin("policies", "remove", "--broker", name).done()
    assert admin("policies", "get", name, "--topic", topic, *limit).json["origin"] == "default"
    admin("policies", "set", "--topic", topic, "nosuch=1").refused(2, "nosuch")
    admin("policies", "set", "--topic", topic, "segment.bytes").refused(2, "NAME=VALUE")
    admin("policies", "get", "--topic", topic, "--broker").refused(2, "--topic, --namespace or --broker")


def test_produce_read_and_get(admin: Program, topic: str) -> None:
    sent = admin("topics", "produce", topic, "--ids", stdin=LINES).done()
    assert len(sent.lines) == 3
    assert "3 messages" in sent.stderr
    assert [line.count('"key"') for line in admin("topics", "read", topic).done().lines] == [1, 1, 1]
    assert len(admin("topics", "read", topic, "--limit", "1", "--start", "1").lines) == 1
    arrow = admin("topics", "read", topic, "--format", "arrow").done().raw_stdout
    assert arrow.startswith(b"\xff\xff\xff\xff")
    assert admin("topics", "get-key", topic, "a").lines == ["3"]
    assert admin.json("topics", "get-key", topic, "a")["value"] == "3"
    admin("topics", "get-key", topic, "nosuch").refused(8, "has no value")
    admin("topics", "get-key", "nosuch", "a").refused(3, "nosuch does not exist")
    admin("topics", "read", topic, "--start", "5:x").refused(2)
    bad = admin("topics", "produce", topic, stdin=b'{"key": 1}\n')
    assert (bad.exit_code, bad.stdout) == (2, "")


def test_verify_trim_and_garbage_say_first_and_do_when_told(admin: Program, compacted: str) -> None:
    assert "No differences" in admin("topics", "verify", compacted).done().stdout
    [report] = admin.json("topics", "verify", compacted)
    assert report["total"] == 0
    planned = admin.json("topics", "trim", compacted, "--before", "1", "--force")
    assert planned[0]["dry_run"] is True
    message = admin("topics", "trim", compacted, "--before", "1", "--force").done().stderr
    assert "Would trim 0 ledgers" in message
    assert f"{compacted}; its raw messages begin at offset 1" in message
    assert "nothing was trimmed: give --yes" in message
    result = admin.json("topics", "trim", compacted, "--yes")
    assert result[0]["topic"].endswith(compacted)
    assert admin.json("gc", "--topic", compacted, "--grace", "10m")["dry_run"] is True
    assert "would be deleted" in admin("gc").done().stderr
    assert "deleted" in admin("gc", "--yes").done().stderr
    admin("gc", "--topic", "nosuch").refused(3)
    assert "would be released" in admin("topics", "release-lease", compacted, "--force").done().stderr
    [released] = admin.json("topics", "release-lease", compacted, "--force", "--yes")
    assert released["topic"].endswith(compacted)
    assert not released["dry_run"]


@pytest.mark.slow
def test_events_in_pieces_and_progress_in_words() -> None:
    lines = [": hello", "event: progress", "id: 1", 'data: {"a":', "data: 1}", "", "event: end", 'data: {"b": 2}', ""]
    cut = ["event: progress", 'data: {"c"']
    assert list(parse_events([*lines, *cut])) == [("progress", {"a": 1}), ("end", {"b": 2})]
    run = {"run": 7, "topic": "t", "phase": "phase two", "tasks_done": 3, "tasks_total": 8, "bytes_done": 1536}
    times = {"started_at": 1_000, "heartbeat_at": 13_500}
    assert progress_line({**run, **times}) == "run 7 of t: phase two, 3/8 tasks, 1.5 KiB, 12 s"
