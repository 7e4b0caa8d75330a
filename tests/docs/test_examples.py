"""The examples: each does what its text says.

Elsewhere: docs/querying.md imports the change log of Debezium (test_querying_docs.py), and
tests/clients/rest/test_state_restore_example.py restores a state.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from api.cli.main import main
from tests.docs.notebooks import code_cells, run_cells
from tests.program import Program, Ran
from tests.servers.table_engines import RUNTIME, RUNTIME_VERSION, iceberg_runtime, run_script

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "tables.ipynb"


def test_the_page_lists_every_example() -> None:
    files = {
        path.relative_to(EXAMPLES).as_posix()
        for path in EXAMPLES.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    listed = set(re.findall(r"\]\(([\w/]+\.\w+)\)", (EXAMPLES / "README.md").read_text(encoding="utf-8")))
    assert listed == files - {"README.md"}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The variables of the notebook after its cells that need no other engine. Its commands run in this process."""
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("COMPACTOR_")]:
            patch.delenv(name)
        patch.setenv("COMPACTOR_DATA", "of the notebook")
        patch.setenv("COMPACTOR_COMPACTION_ENGINE", "in-process")
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        patch.setattr(tempfile, "tempdir", str(folder))
        program = Program("compactor", main, folder, patch)

        def run(words: list[str], *, input: str | None, check: bool, capture_output: bool, text: bool) -> Ran:
            assert (words[0], check, capture_output, text) == ("compactor", True, True, True)
            return program(*words[1:], stdin=(input or "").encode()).done()

        patch.setattr(subprocess, "run", run)
        return run_cells(NOTEBOOK)


@pytest.mark.slow
def test_the_notebook(notebook: dict[str, Any]) -> None:
    assert notebook["people"] == [("ada", "1815-12-10"), ("linus", "1969")]
    assert notebook["offsets"] == [2, 3]
    newest = [("ada", "1815-12-10"), ("barbara", "1928"), ("linus", "1969")]
    assert notebook["newest"] == [{"key": key, "value": value} for key, value in newest]
    assert notebook["rows"] == [2, 3]


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_the_notebook_with_other_engines(notebook: dict[str, Any], tmp_path: Path, engine: str) -> None:
    """Each in an environment of its own, which takes minutes to make."""
    (cell,) = [cell for cell in code_cells(NOTEBOOK) if engine in cell.tags]
    if engine == "spark":
        (tmp_path / f"{RUNTIME}-{RUNTIME_VERSION}.jar").symlink_to(iceberg_runtime())
    script = f"uri = {notebook['uri']!r}\n{cell.source}\nimport json\nprint(json.dumps(people))\n"
    assert run_script(engine, script, tmp_path) == [["ada", "1815-12-10"], ["linus", "1969"]]
