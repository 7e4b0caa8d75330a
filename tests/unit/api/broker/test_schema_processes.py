"""Processes that compare schemas: bounds of time, of a tenant, and what follows a death. One child process each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import Any, cast

import pytest

from api.broker import schema_processes
from api.broker.avro_resolution import DEPTH, MalformedDefinition, TooComplex
from api.broker.schema_compatibility import Comparison, Definition
from api.broker.schema_processes import CHECKS_OF_TENANT, SMALL_BYTES, SchemaProcesses
from storage.errors import Unavailable


def large(kind: str = "string") -> Definition:
    content = {"type": "record", "name": "R", "doc": "x" * SMALL_BYTES, "fields": [{"name": "f", "type": kind}]}
    return Definition("AVRO", json.dumps(content).encode())


@pytest.fixture
def processes() -> Iterator[SchemaProcesses]:
    pool = SchemaProcesses(seconds=600)
    yield pool
    pool.close()


def test_a_child_compares_what_is_large(processes: SchemaProcesses) -> None:
    with processes.check("t") as check:
        assert check.incompatibility(Comparison(large(), large())) == ""
        reason = check.incompatibility(Comparison(large(), large("int")))
        assert reason == "the new one cannot read what it describes: f: int cannot be read as string"
        with pytest.raises(MalformedDefinition):
            check.incompatibility(Comparison(Definition("AVRO", b"{" + b" " * SMALL_BYTES)))
        nested = b'{"type":"array","items":' * 2_000 + b'"int"' + b"}" * 2_000
        with pytest.raises(TooComplex, match=f"deeper than {DEPTH}"):
            check.incompatibility(Comparison(Definition("AVRO", nested)))
        records = [{"type": "record", "name": "r0", "fields": []}]
        for number in range(1, 5_000):
            field = {"name": "f", "type": f"r{number - 1}"}
            records.append({"type": "record", "name": f"r{number}", "fields": [field]})
        chain = Definition("AVRO", json.dumps(records).encode())
        assert check.incompatibility(Comparison(chain, Definition("AVRO", chain.data + b" "))) == ""


def children() -> set[BaseProcess]:
    """The living processes that compare, of all tests."""
    return {process for process in active_children() if process.name == "schemas"}


def test_a_check_that_takes_too_long_ends_its_process() -> None:
    before = children()
    pool = SchemaProcesses(seconds=0)
    for _ in range(2):
        with pool.check("t") as check, pytest.raises(TooComplex, match="takes longer than 0 s"):
            check.incompatibility(Comparison(large(), large()))
        assert children() <= before


def test_waiting_for_a_process_takes_no_seconds_of_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a busy machine, or comparisons of other tenants, make a schema too complex."""
    monkeypatch.setattr(schema_processes, "time", SlowStart)
    monkeypatch.setattr(schema_processes, "ComparisonProcess", SlowStart)
    pool = SchemaProcesses(seconds=10)
    with pool.check("t") as check:
        assert check.incompatibility(Comparison(large(), large())) == ""
        assert check.incompatibility(Comparison(large(), large())) == ""
        assert check.seconds_left == 8


class SlowStart(schema_processes.ComparisonProcess):
    """A child without a process, and its clock: it takes 50 s to start, and 1 s to compare."""

    now = 0.0

    def __init__(self) -> None:
        self._connection = cast(Any, self)
        self.is_running = False

    @classmethod
    def monotonic(cls) -> float:
        return cls.now

    def poll(self, seconds: float) -> bool:
        SlowStart.now += 1 if self.is_running else 50
        return seconds > 0

    def send(self, _: object) -> None:
        """Take a comparison."""

    def recv(self) -> tuple[str, str]:
        return "result", ""

    def end(self) -> None:
        """There is no process."""


def test_the_death_of_a_process_is_a_refusal(processes: SchemaProcesses) -> None:
    before = children()
    with processes.check("t") as check:
        check.incompatibility(Comparison(large()))
        (child,) = children() - before
        child.kill()
        child.join()
        with pytest.raises(Unavailable, match="has ended"):
            check.incompatibility(Comparison(large()))
        assert check.incompatibility(Comparison(large())) == ""


def test_small_definitions_need_no_process(processes: SchemaProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_processes, "ComparisonProcess", None)
    with processes.check("t") as check:
        assert check.incompatibility(Comparison(Definition("AVRO", b'"int"'), Definition("AVRO", b'"int"'))) == ""


def test_a_tenant_has_a_bound_of_checks(processes: SchemaProcesses) -> None:
    held = [processes.check("t") for _ in range(CHECKS_OF_TENANT)]
    for check in held:
        check.__enter__()
    with pytest.raises(Unavailable, match="of tenant t are being compared"), processes.check("t"):
        pass
    with processes.check("other"):
        pass
    for check in held:
        check.__exit__(None, None, None)
    with processes.check("t"):
        pass
