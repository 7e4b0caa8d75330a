"""docs/querying.md: the two minutes from a change log to an answer, as a person would type them into one shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.docs.runtime_environment import runtime_environment
from tests.docs.test_start_docs import commands

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "querying.md").read_text(encoding="utf-8")
TITLE = "## From a change log to an answer in two minutes\n"
INSTALLED = ("make demo", ". .venv/bin/activate")
"""Commands that the test leaves out: the packages stand beside this Python."""


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    section = PAGE.partition(TITLE)[2].partition("\n## ")[0]
    (tmp_path / "section.md").write_text(section, encoding="utf-8")
    lines = commands(tmp_path / "section.md")
    assert tuple(lines[: len(INSTALLED)]) == INSTALLED
    environment = runtime_environment(tmp_path / "environment")
    work = tmp_path / "work"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")
    done = subprocess.run(
        ["bash", "-c", "set -euo pipefail\n" + "\n".join(lines[len(INSTALLED) :])],
        cwd=work,
        env={**environment, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = section.partition("```\n")[2].partition("```")[0]
    assert done.stdout.endswith(f"\n{table}")
