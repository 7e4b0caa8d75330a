"""`compactor compactions`: runs listed, shown and cancelled; workers that are cancelled, or die, while they work.

A worker is held in a phase by a read rate of one byte a second: its tasks would take hours, so a test that ends at all
has seen them stopped.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

import compactor.engines.spark
import storage.clock
from api.components import open_environment
from api.settings.settings import Settings
from compactor.engines.auto import default_in_process_limit
from compactor.engines.cluster import local_parallelism
from compactor.two_phase import HEARTBEAT_MS
from storage.metadata.records import RunRecord, RunState
from storage.metadata.store import MetadataStore
from tests.clients.cli.conftest import InsteadOfSpark, claim, write_lines
from tests.clients.cli.processes import Command, started
from tests.clocks import ManualClock
from tests.program import Program

NOW = 1_900_000_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    clock = ManualClock(NOW)
    monkeypatch.setattr(storage.clock, "SystemClock", lambda: clock)
    return clock


def states(program: Program, *options: str) -> list[tuple[int, str]]:
    listed = program.json("compactions", "list", *options)
    return [(run["run"], run["state"]) for run in listed]


# --- list, show, cancel --------------------------------------------------------------------------------------------


def test_list(program: Program, history: str, in_process_engine: None) -> None:
    assert states(program) == []
    program("import", "u", "history.jsonl").done()
    program("compact-topic", "--all").done()
    program("compact-topic", "--topic", "u", "--retain-null-key").done()
    program("compactions", "cancel", str(claim("t").run_id)).done()
    claim("u", phase="phase two", tasks_done=3, tasks_total=7)

    result = [(3, "SUCCESS"), (2, "SUCCESS"), (1, "SUCCESS")]
    assert states(program) == [(5, "RUNNING"), (4, "CANCELLED"), *result]
    assert states(program, "--limit", "2") == [(5, "RUNNING"), (4, "CANCELLED")]
    assert states(program, "--topic", "t") == [(4, "CANCELLED"), (1, "SUCCESS")]
    assert states(program, "--state", "SUCCESS", "--topic", "u") == result[:2]
    assert states(program, "--state", "ERROR") == []
    table = program("compactions", "list").done()
    assert table.stderr == ""
    first = next(line for line in table.stdout.splitlines() if "RUNNING" in line)
    assert "persistent://public/default/u" in first
    assert "phase two" in first
    assert "3/7" in first


def test_show_a_run_that_is_done(program: Program, history: str, in_process_engine: None) -> None:
    program("compact-topic", "--topic", history, "--key-ttl", "36500d").done()
    document = program.json("compactions", "show", "1")
    with open_environment(Settings.load()) as environment:
        run = environment.metadata.runs.get(1)
    assert document == {
        "run": 1,
        "topic": "persistent://public/default/t",
        "state": "SUCCESS",
        "cause": "manual",
        "phase": "phase two",
        "tasks_done": None,
        "tasks_total": None,
        "bytes_done": None,
        "started_at": run.started_at,
        "heartbeat_at": run.heartbeat_at,
        "heartbeat_expired": None,
        "finished_at": run.finished_at,
        "error": None,
        "compacted_ledger": 2,
        "horizon": "1:5:-1",
        "horizon_offset": 5,
        "epoch": 1,
        "attempt": run.attempt_id,
        "holder": run.owner,
        "policies": run.policies,
        "statistics": run.statistics,
    }
    phases = {"snapshot_ms", "scan_ms", "phase_one_ms", "phase_two_ms", "verify_ms", "publish_ms"}
    numbers = {"messages_in", "messages_out", "keys", "tombstones_removed", "tombstones_kept", "null_keys_kept"}
    assert document["statistics"].keys() >= phases | numbers | {"bytes_in", "bytes_out", "bytes_read", "bytes_written"}
    lines = program("compactions", "show", "1").done().stdout.splitlines()
    text = dict(line.split(maxsplit=1) for line in lines)
    assert text["error"] == "-"
    assert text["policies.key_ttl_ms"] == "3,153,600,000,000 ms"
    assert text["statistics.messages_in"] == "6"
    assert text["statistics.bytes_out"].endswith(f"({run.statistics['bytes_out']:,} bytes)")


def test_show_a_run_that_works_and_one_whose_worker_died(program: Program, history: str, clock: ManualClock) -> None:
    claim(history, phase="phase one", tasks_done=1, tasks_total=4, bytes_done=2048)

    def run_document() -> dict[str, object]:
        document = program.json("compactions", "show", "1")
        names = ("state", "phase", "tasks_done", "tasks_total", "bytes_done", "heartbeat_at", "heartbeat_expired")
        return {name: document[name] for name in names}

    working: dict[str, object] = {
        "state": "RUNNING",
        "phase": "phase one",
        "tasks_done": 1,
        "tasks_total": 4,
        "bytes_done": 2048,
        "heartbeat_at": NOW,
        "heartbeat_expired": False,
    }
    clock.advance(HEARTBEAT_MS - 1)
    assert run_document() == working
    assert "expired" not in program("compactions", "list").done().stdout
    clock.advance(1)
    assert run_document() == working | {"heartbeat_expired": True}
    assert "2030-03-17T17:46:40Z, expired" in program("compactions", "list").done().stdout
    text = program("compactions", "show", "1").done().stdout
    assert "2.0 KiB (2,048 bytes)" in text
    assert "2030-03-17T17:46:40Z" in text


def test_cancel(program: Program, history: str, in_process_engine: None) -> None:
    claim(history)
    program("compact-topic", "--topic", history).refused(4, "run 1", "compactor compactions cancel 1")
    result = program("compactions", "cancel", "1", "--reason", "too much\nload").done()
    assert (result.stdout, result.stderr) == ("Compaction run 1 of topic persistent://public/default/t cancelled\n", "")
    document = program.json("compactions", "show", "1")
    assert (document["state"], document["error"]) == ("CANCELLED", "too much\nload")
    assert "too much\\nload" in program("compactions", "show", "1").done().stdout
    program("compactions", "cancel", "1").refused(4, "run 1", "has ended as CANCELLED")
    program("compact-topic", "--topic", history).done()
    assert states(program) == [(2, "SUCCESS"), (1, "CANCELLED")]
    program("compactions", "cancel", "2").refused(4, "has ended as SUCCESS")


# --- workers that are cancelled, or die ----------------------------------------------------------------------------


def worker(topic: str, read_rate: int, engine: str) -> AbstractContextManager[Command]:
    """A `compact-topic` that would take hours, at that many bytes a second."""
    options = ("--spark-master", "local[1]", "--engine", engine, "--max-read-rate", str(read_rate))
    return started("compact-topic", "--topic", topic, *options)


def run_in_phase(process: Command, phase: str) -> RunRecord:
    """The run of the worker as soon as it is in that phase, with what it says of its progress."""
    deadline = time.monotonic() + 200
    with open_environment(Settings.load()) as environment:
        while time.monotonic() < deadline:
            for _, run in environment.metadata.runs.newest(1, state=RunState.RUNNING):
                if run.phase == phase and "tasks_total" in run.statistics:
                    return run
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                raise AssertionError(f"the worker ended by itself: {process.communicate()}")
    raise AssertionError(f"the worker never came to {phase}")


READ_RATES = {"phase one": 1, "phase two": 100}


def topic_that_takes_long_in(phase: str, program: Program, folder: Path) -> str:
    """At the phase's read rate: an index of 7,200 bytes, or one of 72 bytes and then rows of a megabyte and more."""
    if phase == "phase one":
        lines = [{"key": f"k{n}", "value": "v"} for n in range(300)]
    else:
        lines = [{"key": f"k{n}", "value": random.Random(n).randbytes(500_000).hex()} for n in range(3)]
    write_lines(folder / "in.jsonl", *lines)
    program("import", "t", "in.jsonl").done()
    return "t"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "engine"),
    [
        ("phase one", "in-process"),
        ("phase two", "spark"),
        pytest.param("phase one", "spark", marks=pytest.mark.soak),
    ],
)
def test_a_run_that_is_cancelled_in_a_phase_stops_and_leaves_nothing(
    program: Program, folder: Path, phase: str, engine: str, in_process_engine: None
) -> None:
    topic = topic_that_takes_long_in(phase, program, folder)
    raw = program("read", topic).messages
    with worker(topic, READ_RATES[phase], engine) as process:
        run = run_in_phase(process, phase)
        assert (run.statistics["tasks_done"], run.statistics["tasks_total"], run.statistics["bytes_done"]) == (0, 1, 0)
        program("compactions", "cancel", str(run.run_id), "--reason", "too much load").done()
        stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout) == (4, "")
    assert stderr == (
        "compactor: run 1 of persistent://public/default/t is CANCELLED already: too much load: nothing was published; "
        "trigger the compaction again if it is still wanted\n"
    )
    assert states(program) == [(1, "CANCELLED")]
    stats = program.json("topics", "stats", topic)
    assert stats["compacted"] is None
    assert program("read", topic, "--read-compacted").messages == raw, "raw: nothing else serves"
    assert list(Path(Settings.load().data).rglob("compacted/*")) == [], "no manifest was written"

    program("compact-topic", "--topic", topic).done()
    assert program("read", topic, "--read-compacted").messages == raw
    assert states(program) == [(2, "SUCCESS"), (1, "CANCELLED")]


@pytest.mark.slow
def test_a_worker_that_is_killed_is_taken_over_after_its_heartbeat(
    program: Program, folder: Path, in_process_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker on another machine: one on this machine is known to be dead at once (storage/owner.py)."""
    monkeypatch.setattr("storage.metadata.liveness.is_dead", lambda _: False)
    topic = topic_that_takes_long_in("phase one", program, folder)
    with worker(topic, READ_RATES["phase one"], "in-process") as process:
        run = run_in_phase(process, "phase one")
        process.kill()
        assert process.wait(60) == -signal.SIGKILL

    def last_sign(milliseconds_ago: int) -> None:
        """Set the last heartbeat back, like that of a worker that died."""
        then = ManualClock(storage.clock.SystemClock().now_ms() - milliseconds_ago)
        metadata = MetadataStore(Settings.load().database_url, then)
        assert metadata.runs.heartbeat([run]) == []
        metadata.close()

    def expired() -> bool:
        listed = program.json("compactions", "list")
        assert [(item["run"], item["state"]) for item in listed] == [(1, "RUNNING")]
        return bool(listed[0]["heartbeat_expired"])

    last_sign(-60_000)
    assert not expired()
    program("compact-topic", "--topic", topic).refused(4, "run 1", run.owner)
    last_sign(HEARTBEAT_MS)
    assert expired()
    result = program("compact-topic", "--topic", topic).done()
    assert " complete. Compacted to ledger " in result.stdout
    assert states(program) == [(2, "SUCCESS"), (1, "ERROR")]
    document = program.json("compactions", "show", "1")
    assert document["error"] == f"its worker {run.owner} stopped answering; taken over by run 2"
    assert len(program("read", topic, "--read-compacted").messages) == 300


def test_the_engine_of_a_topic_is_its_policy_unless_the_option_is_given(
    program: Program, folder: Path, in_process_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPACTOR_COMPACTION_ENGINE", "auto")
    opened: list[str] = []
    monkeypatch.setattr(compactor.engines.spark, "open_session", lambda settings, say: opened.append(settings.master))
    topics = ("a", "b", "c")
    for topic in topics:
        program("import", topic, str(write_lines(folder / "one.jsonl", {"key": "k", "value": topic}))).done()
    program("topics", "policies", "b", "--set", "compaction.topic-engine=spark").done()
    options = [item for topic in topics for item in ("--topic", topic)]

    def engines(*more: str) -> list[str]:
        reports = program("compact-topic", *options, "--output", "json", *more).done().messages
        assert [report["topic"].rpartition("/")[2] for report in reports] == list(topics)
        return [report["statistics"]["engine"] for report in reports]

    small = f"in-process: 0.0 MiB, below {default_in_process_limit(local_parallelism('local[*]')) >> 20} MiB"
    assert engines() == [small, InsteadOfSpark.engine_choice, small]
    assert opened == ["local[*]"]
    for topic in topics:
        program("import", topic, str(write_lines(folder / "one.jsonl", {"key": "k", "value": "2"}))).done()
    assert engines("--engine", "auto") == [small] * 3
    assert len(opened) == 1
