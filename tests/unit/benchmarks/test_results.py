"""`--record` keeps the tables that a benchmark prints, and the page gets them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import __main__ as program, results

TABLE = "| way | seconds |\n|---|---:|\n| this job | 1.50 |\n| empty | |\n"


def test_a_table_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert results.record("a/b", f"### title\n\n{TABLE}\ntext\n\n{TABLE}", "2026-11-24", "a --b", file) == [
        "a/b",
        "a/b-2",
    ]
    sitting = results.load(file)["a/b"]
    assert (sitting.date, sitting.command, sitting.markdown()) == ("2026-11-24", "a --b", TABLE)
    assert sitting.cell("this job", "seconds") == "1.50"
    with pytest.raises(KeyError, match="no row"):
        sitting.cell("other", "seconds")


def test_a_page_gets_the_table_of_its_mark() -> None:
    page = f"text\n\n<!-- figures: a -->\n\n{TABLE}\nmore\n"
    newer = results.parse(TABLE.replace("1.50", "1.25"), "2026-11-25", "a")
    assert results.written(page, {"a": newer}) == page.replace("1.50", "1.25")
    assert list(results.marked(page)) == [("a", TABLE)]
    with pytest.raises(KeyError):
        results.written(page, {})


@pytest.mark.parametrize("code", [0, 1])
def test_a_benchmark_is_recorded_if_it_succeeds(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    benchmark = ModuleType("benchmarks.topics")

    def main(arguments: list[str]) -> int:
        calls.append(arguments)
        sys.stdout.write(TABLE)
        return code

    benchmark.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "benchmarks.topics", benchmark)
    recorded: list[tuple[str, str, str]] = []

    def record(name: str, printed: str, _: str, command: str) -> list[str]:
        recorded.append((name, printed, command))
        return [name]

    monkeypatch.setattr(results, "record", record)
    assert program.main(["topics", "--rounds", "2", "--record", "many"]) == code
    assert calls == [["--rounds", "2"]]
    assert recorded == ([] if code else [("many", TABLE, "topics --rounds 2")])
    assert program.main(["topics", "--record"]) == 2
