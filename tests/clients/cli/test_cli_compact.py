"""`compactor compact-topic`: many topics by one command, policies and limits, dry runs, reports."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import compactor.engines.spark
from api.cli.local.engine import PhaseLine
from api.cli.local.opening import open_topic
from api.components import open_environment
from api.settings.settings import Settings
from compactor.engines.engine import TaskFailure
from compactor.two_phase import has_nothing_new
from storage.errors import Misconfigured
from storage.metadata.records import RunState
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from storage.objects.throttled import RateLimits
from tests.clients.cli.conftest import InsteadOfSpark, claim, objects, runs, write_lines
from tests.program import Program

DAY = 86_400_000


class Recording(InsteadOfSpark):
    """Remembers the tasks of each job; `during` is called inside each."""

    def __init__(self) -> None:
        self.jobs: list[Any] = []
        self.during: Callable[[], object] = lambda: None

    def run(
        self,
        count: int,
        task: Callable[[int], Any],
        on_progress: Callable[[int], None],
        weights: Sequence[float] | None = None,
    ) -> list[Any | TaskFailure]:
        self.jobs.append(task)
        self.during()
        return super().run(count, task, on_progress, weights)


@pytest.fixture
def engine(in_process_engine: None, monkeypatch: pytest.MonkeyPatch) -> Recording:
    engine = Recording()
    monkeypatch.setattr(compactor.engines.spark, "SparkEngine", lambda session: engine)
    return engine


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(compactor.engines.spark, "open_session", started)


@pytest.fixture
def topics(program: Program, folder: Path) -> tuple[str, ...]:
    """Three topics, one of them in another namespace; two messages of one key in each."""
    write_lines(folder / "in.jsonl", {"key": "k", "value": "1"}, {"key": "k", "value": "2"})
    names = ("a", "b", "persistent://team/events/c")
    for name in names:
        program("import", name, "in.jsonl").done()
    return names


def compacted(*topics: str) -> list[bool]:
    return [bool(runs(topic)) for topic in topics]


# --- which topics --------------------------------------------------------------------------------------------------


def test_topics_may_stand_by_themselves(program: Program, topics: tuple[str, ...], engine: Recording) -> None:
    program("compact-topic", "a", "b").done()
    assert compacted(*topics) == [True, True, False]
    assert engine.jobs


def test_many_topics_are_one_job(program: Program, topics: tuple[str, ...], engine: Recording) -> None:
    result = program("compact-topic", "--topic", "b", "--topic", "a", "--topic", topics[2]).done()
    assert [line.split()[3] for line in result.stdout.splitlines()] == [
        "persistent://public/default/b",
        "persistent://public/default/a",
        "persistent://team/events/c",
    ]
    assert all(" complete. Compacted to ledger " in line for line in result.stdout.splitlines())
    assert result.stderr.startswith("3 topics compacted, 0 with nothing to compact, 0 failed; read ")
    assert len(engine.jobs) == 2, "phase one of all, then phase two of all"


def test_a_topic_that_is_named_twice_is_compacted_once(
    program: Program, topics: tuple[str, ...], engine: Recording
) -> None:
    result = program("compact-topic", "--topic", "a", "--topic", "persistent://public/default/a").done()
    assert len(result.stdout.splitlines()) == len(runs("a")) == 1


def test_a_namespace_and_all(program: Program, topics: tuple[str, ...], engine: Recording) -> None:
    program("compact-topic", "--namespace", "team/events").done()
    assert compacted(*topics) == [False, False, True]
    result = program("compact-topic", "--all").done()
    assert [line.rpartition(" complete. ")[2].split()[0] for line in result.stdout.splitlines()] == [
        "Compacted",
        "Compacted",
        "Nothing",
    ]
    assert compacted(*topics) == [True, True, True]


def test_a_namespace_without_topics(program: Program, topics: tuple[str, ...], no_spark: None) -> None:
    with open_environment(Settings.load()) as environment:
        environment.metadata.tenancy.create_namespace("team/nothing")
    result = program("compact-topic", "--namespace", "team/nothing").done()
    assert (result.stdout, result.stderr) == ("", "The namespace team/nothing has no topics.\n")


def test_nothing_new_anywhere_is_known_without_spark(
    program: Program, topics: tuple[str, ...], engine: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("compact-topic", "--all").done()
    monkeypatch.delattr(compactor.engines.spark, "open_session")
    result = program("compact-topic", "--all").done()
    assert result.stdout.count("Nothing to compact") == 3
    dry = program("compact-topic", "--all", "--dry-run").done()
    assert dry.stdout.count("would find nothing to compact") == 3


# --- failures ------------------------------------------------------------------------------------------------------


def test_a_bad_topic_fails_alone_and_the_first_one_gives_the_exit_code(
    program: Program, topics: tuple[str, ...], engine: Recording
) -> None:
    claim("b")
    for path in files_of_ledgers(topics[2]):
        path.unlink()
    args = ["--topic", topics[2], "--topic", "b", "--topic", "nope", "--topic", "a"]
    result = program("compact-topic", *args)
    assert result.exit_code == 7, "of the lost ledger: the first that failed"
    assert result.stdout == "Compaction of topic persistent://public/default/a complete. Compacted to ledger 4\n"
    lost, running, missing, summary = result.stderr.splitlines()
    assert lost.startswith("compactor: persistent://team/events/c: "), "a topic is named where its error does not"
    assert running.startswith("compactor: run 1 by otherhost:4711:cafe is compacting persistent://public/default/b")
    assert missing.startswith("compactor: the topic persistent://public/default/nope does not exist")
    assert summary.startswith("1 topic compacted, 0 with nothing to compact, 3 failed")
    assert program("compact-topic", "--topic", "nope", "--topic", "b").exit_code == 3
    assert program("compact-topic", "--topic", "b", "--topic", "nope").exit_code == 4


def test_an_engine_that_does_not_open_fails_its_topics_alone(
    program: Program, topics: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Misconfigured("there is no Java", "install one")

    monkeypatch.setattr(compactor.engines.spark, "open_session", fail)
    program("topics", "policies", "b", "--set", "compaction.topic-engine=spark").done()
    names = ("b", "a", topics[2])
    dry = program("compact-topic", *names, "--dry-run")
    assert (dry.exit_code, len(dry.lines), dry.stderr.count("there is no Java")) == (5, 2, 1)
    result = program("compact-topic", *names)
    assert (result.exit_code, len(result.lines)) == (5, 2)
    failed, summary = result.stderr.splitlines()
    assert failed.startswith("compactor: persistent://public/default/b: there is no Java")
    assert summary.startswith("2 topics compacted, 0 with nothing to compact, 1 failed")
    assert compacted(*topics) == [True, False, True]


def test_an_engine_that_no_topic_chose_and_does_not_open_ends_the_command(
    program: Program, topics: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Misconfigured("there is no Java", "install one")

    monkeypatch.setattr(compactor.engines.spark, "open_session", fail)
    monkeypatch.setenv("COMPACTOR_COMPACTION_ENGINE", "spark")
    for options in ([], ["--dry-run"]):
        program("compact-topic", "--all", *options).refused(5, "compactor: there is no Java")


def test_a_topic_that_is_deleted_after_its_check_fails_alone(
    program: Program, topics: tuple[str, ...], engine: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(metadata: MetadataStore, *arguments: Any) -> bool:
        nothing = has_nothing_new(metadata, *arguments)
        snapshot = arguments[-2]
        if snapshot.topic.name == TopicName.parse("b"):
            metadata.tenancy.delete_topic(snapshot.topic.id)
        return nothing

    monkeypatch.setattr("compactor.two_phase.has_nothing_new", check)
    result = program("compact-topic", "a", "b", topics[2])
    assert (result.exit_code, len(result.lines)) == (3, 2)
    assert result.stderr.startswith("compactor: ")


def files_of_ledgers(topic: str) -> list[Path]:
    with open_environment(Settings.load()) as environment:
        snapshot = open_topic(environment, TopicName.parse(topic)).snapshot()
    root = Settings.load().data_directory / "objects"
    return [root / name for ledger in snapshot.ledgers for name in {ledger.rows.name, ledger.index.name}]


def test_a_run_that_is_cancelled_while_it_works(program: Program, topics: tuple[str, ...], engine: Recording) -> None:
    def cancel() -> None:
        with open_environment(Settings.load()) as environment:
            for _, running in environment.metadata.runs.newest(1, state=RunState.RUNNING):
                environment.metadata.runs.cancel(running.run_id, "too much load")

    engine.during = cancel
    program("compact-topic", "--topic", "a").refused(
        4, "run 1 of persistent://public/default/a is CANCELLED already: too much load", "nothing was published"
    )
    (run,) = runs("a")
    assert (run.state, run.compacted_ledger_id) == (RunState.CANCELLED, None)

    document = program("compact-topic", "--topic", "b", "--output", "json").messages[0]
    assert (document["state"], document["exit_code"], document["compacted_ledger"]) == ("CANCELLED", 4, None)
    engine.during = lambda: None
    program("compact-topic", "--topic", "a").done()


# --- policies and limits -------------------------------------------------------------------------------------------

POLICIES = {
    "--retain-null-key": ("retain_null_key", None, True),
    "--tombstone-retention": ("tombstone_retention_ms", "1h", 3_600_000),
    "--tombstones-wait-for-cursors": ("tombstones_wait_for_cursors", None, True),
    "--key-ttl": ("key_ttl_ms", "30d", 30 * DAY),
    "--min-compaction-lag": ("min_lag_ms", "1ms", 1),
    "--event-time-order": ("event_time_order", None, True),
    "--event-time-max-lateness": ("event_time_max_lateness_ms", "2d", 2 * DAY),
    "--chunk-expiry": ("incomplete_chunk_max_age_ms", "2d", 2 * DAY),
}


def test_policies_are_frozen_in_the_run_and_other_ones_are_a_change(
    program: Program, topics: tuple[str, ...], engine: Recording
) -> None:
    program("compact-topic", "--topic", "a").done()
    plain = dict(runs("a")[0].policies)
    limits = {"retention_ms", "start_offset"}  # of the topic, under compact,delete
    limits |= {"table_format_version", "table_snapshot_age_ms", "table_snapshots_max"}  # of what shows the result
    assert plain.keys() - limits == {field for field, _, _ in POLICIES.values()}, "every policy has an option"
    options = [text for option, (_, value, _) in POLICIES.items() for text in (option, value) if text]
    for _ in range(2):
        program("compact-topic", "--topic", "a", *options).done()
    assert len(runs("a")) == 2, "nothing was new the second time"
    frozen = runs("a")[0].policies
    assert frozen == plain | {field: set_value for field, _, set_value in POLICIES.values()}
    assert all(frozen[field] != plain[field] for field in plain.keys() - limits)
    program("compact-topic", "--topic", "a").done()
    assert (len(runs("a")), runs("a")[0].policies) == (3, plain)


def test_a_minimal_lag_leaves_young_messages_alone(
    program: Program, topics: tuple[str, ...], engine: Recording
) -> None:
    result = program("compact-topic", "--topic", "a", "--min-compaction-lag", "365d").done()
    assert result.stdout.endswith(" complete. Nothing to compact\n")
    assert result.stderr == "The topic has no messages old enough: no compacted ledger was made.\n"


def test_limits_reach_the_tasks(program: Program, topics: tuple[str, ...], engine: Recording) -> None:
    program("compact-topic", "--topic", "a", "--max-read-rate", "50M", "--max-write-rate", "7K").done()
    plans = [getattr(task, "task", task).args[0] for task in engine.jobs]
    assert [plan.rates for plan in plans] == [RateLimits(50 << 20, 7 << 10)] * 2
    program("compact-topic", "--topic", "b").done()
    assert engine.jobs[-1].task.args[0].rates == RateLimits()


def test_the_garbage_ratio_decides_whether_a_part_is_written_anew(
    program: Program, folder: Path, engine: Recording
) -> None:
    write_lines(folder / "in.jsonl", *({"key": f"k{n}", "value": "v"} for n in range(10)))
    write_lines(folder / "more.jsonl", {"key": "k1", "value": None})
    for ratio, kept in (("0", 0), ("1", 1)):
        program("import", ratio, "in.jsonl").done()
        program("compact-topic", "--topic", ratio).done()
        program("import", ratio, "more.jsonl").done()
        program("compact-topic", "--topic", ratio, "--max-garbage-ratio", ratio).done()
        assert runs(ratio)[0].statistics["parts_kept"] == kept


# --- dry runs and reports ------------------------------------------------------------------------------------------


def test_a_dry_run_foretells_the_run_and_changes_nothing(
    program: Program, history: str, folder: Path, engine: Recording
) -> None:
    before, stats = objects(folder), program("topics", "stats", history).stdout
    line = program("compact-topic", "--topic", history, "--dry-run").done().stdout
    assert line.startswith(
        "Compaction of topic persistent://public/default/t would keep 2 of 6 messages, drop 4, write 1 part and about "
    )
    (document,) = program("compact-topic", "--topic", history, "--dry-run", "--output", "json").messages
    assert objects(folder) == before
    assert program("topics", "stats", history).stdout == stats
    assert runs(history) == []

    program("compact-topic", "--topic", history).done()
    created = runs(history)[0].statistics
    estimate = document.pop("forecast")
    assert document == {
        "topic": "persistent://public/default/t",
        "dry_run": True,
        "exit_code": 0,
        "error": None,
    }
    same = {"messages_in", "messages_before", "messages_out", "tombstones_removed", "tombstones_kept", "parts_kept"}
    assert {name: estimate[name] for name in same} == {name: created[name] for name in same}
    assert estimate["messages_dropped"] == 4


def test_a_dry_run_counts_what_a_run_seals_first(program: Program, engine: Recording) -> None:
    program("produce", "t", stdin=b'{"key":"a","value":"1"}\n{"key":"a","value":"2"}\n').done()
    dry = ("compact-topic", "--topic", "t", "--dry-run")
    assert "would seal 2 messages (4 B) first, and compact them" in program(*dry).done().stdout
    (document,) = program(*dry, "--output", "json").messages
    assert document["forecast"].items() >= {"unsealed_messages": 2, "unsealed_bytes": 4}.items()
    program("compact-topic", "--topic", "t").done()
    assert runs("t")[0].statistics["messages_in"] == 2
    assert program(*dry).done().stdout.endswith("would find nothing to compact\n")
    program("produce", "t", stdin=b'{"key":"b","value":"1"}\n').done()
    program("topics", "roll", "t", "--seal").done()
    program("produce", "t", stdin=b'{"key":"b","value":"2"}\n').done()
    assert "; and seal 1 message (2 B) first, which are not counted here" in program(*dry).done().stdout


def test_a_dry_run_of_a_bad_topic_fails_alone(program: Program, topics: tuple[str, ...], engine: Recording) -> None:
    for path in files_of_ledgers("b"):
        path.unlink()
    result = program("compact-topic", "--all", "--dry-run", "--output", "json")
    assert result.exit_code == 7
    assert [(message["topic"][-1], message["exit_code"], bool(message["forecast"])) for message in result.messages] == [
        ("a", 0, True),
        ("b", 7, False),
        ("c", 0, True),
    ]
    assert len(result.stderr.splitlines()) == 1


def test_json_has_an_object_a_topic(program: Program, topics: tuple[str, ...], engine: Recording) -> None:
    program("compact-topic", "--topic", "a").done()
    args = ["--topic", "a", "--topic", "nope", "--topic", "b", "--output", "json"]
    result = program("compact-topic", *args)
    assert result.exit_code == 3
    nothing, missing, created = map(json.loads, result.stdout.splitlines())
    assert nothing == {
        "topic": "persistent://public/default/a",
        "run": None,
        "state": None,
        "compacted_ledger": None,
        "exit_code": 0,
        "error": None,
        "statistics": {},
    }
    assert (missing["topic"], missing["run"], missing["exit_code"]) == ("persistent://public/default/nope", None, 3)
    assert missing["error"] == "the topic persistent://public/default/nope does not exist: see `compactor topics list`"
    assert created["statistics"] == runs("b")[0].statistics
    assert (created["state"], created["run"], created["compacted_ledger"]) == (
        "SUCCESS",
        2,
        runs("b")[0].compacted_ledger_id,
    )


def test_the_live_line_goes_on_while_no_task_ends() -> None:
    output = io.StringIO()
    line = PhaseLine(output)
    line.begin_phase("phase one", 4, 1000)
    assert output.getvalue().endswith("phase one: 0/4 tasks, 0 s"), "no rate is known yet"
    line.report_tasks_done_in_phase(2)
    assert "phase one: 2/4 tasks, " in output.getvalue()
    assert output.getvalue().endswith(" messages/s")
    line.end()
    assert output.getvalue().endswith("\r\x1b[K"), "the line is gone"
