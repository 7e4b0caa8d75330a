"""The commands of docs/start.md, in their order, as a person would type them into one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import free_port

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "start.md"
SECONDS = 120
SERVE = "compactor serve --port 8080 &\n"
INSTALLED = ("make demo", ". .venv/bin/activate", "mkdir -p /tmp/try && cd /tmp/try")
"""What is done before: the packages stand beside this Python."""
ANSWERS = """
trap "kill $!" EXIT
until python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/livez')" 2>/dev/null; do :; done
"""


def commands() -> list[str]:
    page = re.sub(r"^```python$.*?^```$", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^    (\S.*)$", page, re.MULTILINE)


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    assert tuple(commands()[: len(INSTALLED)]) == INSTALLED
    script = "set -euo pipefail\n" + "\n".join(commands()[len(INSTALLED) :]) + "\n"
    assert SERVE in script
    script = script.replace(SERVE, SERVE + ANSWERS).replace("8080", str(free_port()))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COMPACTOR_")}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={
            **environment,
            "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
            "COMPACTOR_BROKER_SERVICE_PORT": str(free_port()),
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r'"key": ?"(\w+)".*?"value": ?(null|"[^"]*")', done.stdout)
    raw = [("ada", '"1815"'), ("grace", '"1906"'), ("ada", '"1815-12-10"'), ("grace", "null")]
    state = [("ada", '"1815-12-10"')]
    assert told == raw + state + raw + [*state, ("linus", '"1969"')]
