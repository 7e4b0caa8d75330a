"""Bad files: one clear line that names file, place and remedy, exit code 2, and nothing of the file kept.

What a bad line or table is: tests/unit/api/formats/test_bad_input.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.program import Program

GOOD = b'{"key":"a","value":"1"}\n'


@pytest.fixture
def refused_import(program: Program, history: str) -> Any:
    """Imports into a topic that has messages; asserts that it was refused and that the topic stayed as it was."""

    def run(file: str, *says: str, options: tuple[str, ...] = (), stdin: bytes = b"") -> None:
        before = program("topics", "stats", history, "--output", "json").done().stdout
        program("import", history, file, *options, stdin=stdin).refused(2, *says)
        assert program("topics", "stats", history, "--output", "json").done().stdout == before
        assert len(program("read", history).done().messages) == 6

    return run


def test_a_bad_line_is_named_and_nothing_is_kept(refused_import: Any, folder: Path) -> None:
    (folder / "in.jsonl").write_bytes(GOOD * 2 + b"key,value\n" + GOOD)
    refused_import("in.jsonl", "in.jsonl, line 3: ", "not JSON", "nothing of it was kept")
    refused_import("-", "standard input, line 2: not JSON", stdin=GOOD + b"oops\n")
    (folder / "in.jsonl").write_bytes(b'{"key":"YQ","value":""}\n')
    refused_import("in.jsonl", "in.jsonl, line 1: ", "is not base64", options=("--key-encoding", "base64"))
    refused_import("missing.jsonl", "the file missing.jsonl does not exist")


def test_a_bad_line_after_whole_ledgers_undoes_them(refused_import: Any, folder: Path) -> None:
    (folder / "in.jsonl").write_bytes(GOOD * 40_000 + b"oops\n")
    refused_import("in.jsonl", "in.jsonl, line 40001: ", options=("--ledger-size", "16K"))


def test_parquet_that_is_damaged_after_whole_ledgers(refused_import: Any, folder: Path) -> None:
    """The second half is damaged, after ledgers were made of the first."""
    file = folder / "in.parquet"
    rows = 300_000
    table = pa.table({"key": [str(number) for number in range(rows)], "value": ["x"] * rows})
    pq.write_table(table, file, row_group_size=50_000, use_dictionary=False)
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2 : len(whole) // 2 + 5000] = bytes(5000)
    file.write_bytes(whole)
    refused_import("in.parquet", "in.parquet cannot be read as Parquet", options=("--ledger-size", "64K"))


def test_the_first_of_two_files_is_kept_when_the_second_is_bad(program: Program, folder: Path) -> None:
    (folder / "good.jsonl").write_bytes(GOOD * 2)
    (folder / "bad.jsonl").write_bytes(GOOD + b"oops\n")
    (folder / "never.jsonl").write_bytes(GOOD)
    result = program("import", "t", "good.jsonl", "bad.jsonl", "never.jsonl")
    assert result.exit_code == 2
    first, created, second = result.stderr.splitlines()
    assert created.endswith("did not exist: it was created")
    assert first.startswith("good.jsonl: 2 messages")
    assert second.startswith("compactor: bad.jsonl, line 2: ")
    assert len(program("read", "t").done().messages) == 2


def test_all_files_are_looked_for_before_any_is_imported(program: Program, folder: Path) -> None:
    (folder / "good.jsonl").write_bytes(GOOD)
    program("topics", "create", "other").done()
    program("import", "t", "good.jsonl", "missing.jsonl").refused(2, "missing.jsonl")
    program("topics", "stats", "t").refused(3, "persistent://public/default/t does not exist")


def test_the_help_of_a_refused_line_says_what_to_do(program: Program, folder: Path) -> None:
    """The whole line once, as a contract of its form: what, where, remedy."""
    (folder / "in.jsonl").write_bytes(b'{"key":"a","value":"1"}\n{"key":"a"}\n')
    assert program("import", "t", "in.jsonl").stderr == (
        "compactor: in.jsonl, line 2: Object missing required field `value`: "
        "correct it and import it again; nothing of it was kept\n"
    )


def test_a_failed_import_leaves_no_topic_that_it_created(program: Program, folder: Path) -> None:
    (folder / "in.jsonl").write_bytes(GOOD + b"oops\n")
    program("topics", "create", "old").done()
    for topic in ("new", "old"):
        program("import", topic, "in.jsonl").refused(2, "in.jsonl, line 2: ")
    program("read", "new").refused(3, "persistent://public/default/new does not exist")
    assert program("read", "old").done().raw_stdout == b""


def test_a_failed_import_names_the_tenant_and_namespace_that_it_leaves(program: Program, folder: Path) -> None:
    (folder / "in.jsonl").write_bytes(b"oops\n")
    created = [program("import", "persistent://a/b/t", "in.jsonl").stderr.splitlines()]
    program("import", "persistent://a/b/t", "in.jsonl").refused(2)
    created.append(program("import", "persistent://a/c/t", "in.jsonl").stderr.splitlines())
    assert [lines[0] for lines in created] == [
        "The tenant a and the namespace a/b did not exist: created, and kept after the failure",
        "The namespace a/c did not exist: created, and kept after the failure",
    ]


def test_an_import_of_a_missing_file_makes_no_database(program: Program, tmp_path: Path) -> None:
    program("import", "t", "missing.jsonl").refused(2, "missing.jsonl does not exist")
    assert not (tmp_path / "data").exists()


def test_a_command_that_needs_what_exists_creates_nothing(program: Program, tmp_path: Path) -> None:
    for command in (
        ("topics", "list"),
        ("read", "t"),
        ("topics", "delete", "t"),
        ("gc",),
        ("compactions", "list"),
        ("compact-topic", "--topic", "t"),
        ("cursor", "create", "t", "mine"),
        ("topics", "delete", "t", "--yes"),
        ("store", "adopt"),
        ("store", "adopt", "--dry-run"),
    ):
        refused = program("--data", str(tmp_path / "none"), *command)
        refused.refused(5, f"the data directory {tmp_path / 'none'} has no database: set --data or COMPACTOR_DATA to")
    assert not (tmp_path / "none").exists()


def test_a_refused_flag_is_a_usage_error_that_names_it(program: Program) -> None:
    program("topics", "list", "--engine", "nonsense").refused(2, "--engine: 'nonsense' is not a value of", "in-process")
