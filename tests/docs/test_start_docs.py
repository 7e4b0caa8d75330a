"""The commands of docs/start.md and README.md, in their order, as a person would type them into one shell.

They run in the environment that `make demo` makes (runtime_environment.py): a package that only the tests need must be
installed by the page itself.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.runtime_environment import runtime_environment
from tests.processes import free_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 800
INSTALLED = ("make demo", ". .venv/bin/activate", 'cd "$(mktemp -d)"')
"""Commands that the test leaves out: the packages stand beside this Python."""
ANSWERS = """
trap "kill $!" EXIT
python -c "
import threading, urllib.request
while True:
    try:
        urllib.request.urlopen('http://127.0.0.1:8080/livez')
        break
    except OSError:
        threading.Event().wait(0.1)
"
"""
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    """The commands of a page; a block of Python is one, too."""
    text = _BLOCK.sub(lambda block: "    python -c " + json.dumps(block[1]), page.read_text(encoding="utf-8"))
    return [_unquoted(line) for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE)]


def _unquoted(line: str) -> str:
    """A block of Python as a here-document, so that the shell changes nothing in it."""
    head, _, block = line.partition('python -c "')
    return f"python - <<'END'\n{json.loads(chr(34) + block)}END" if not head and block.endswith('\\n"') else line


def run(script: str, folder: Path) -> str:
    """Run it in an empty folder and in the runtime environment; return its standard output."""
    http, broker = free_port(), free_port()
    script = re.sub(r"^(compactor serve.*&).*$", lambda serve: serve[1] + ANSWERS, script, flags=re.MULTILINE)
    assert ANSWERS in script
    work = folder / "work"
    work.mkdir()
    environment = runtime_environment(folder / "environment")
    done = subprocess.run(
        ["bash", "-c", "set -euo pipefail\n" + script.replace("8080", str(http)).replace("6650", str(broker))],
        cwd=work,
        env={
            **environment,
            "COMPACTOR_PORT": str(http),
            "COMPACTOR_BROKER_SERVICE_PORT": str(broker),
            "COMPACTOR_ADMIN_URL": f"http://127.0.0.1:{http}",
            "COMPACTOR_SPARK_MASTER": "in-process",
        },
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def pairs(output: str) -> list[tuple[str, str]]:
    return re.findall(r'"key": ?"([\w-]+)".*?"value": ?(null|"[^"]*")', output)


def test_packages_of_the_tests_alone_are_hidden_until_a_page_installs_them(tmp_path: Path) -> None:
    environment = runtime_environment(tmp_path / "environment")
    script = "python -c 'import numpy, httpx' && ! python -c 'import pulsar'"
    subprocess.run(["bash", "-c", script], env=environment, check=True, capture_output=True, timeout=SECONDS)
    script = "pip install pulsar-client && python -c 'import pulsar' && ! python -c 'import duckdb'"
    subprocess.run(["bash", "-c", script], env=environment, check=True, capture_output=True, timeout=SECONDS)


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    lines = commands(ROOT / "docs" / "start.md")
    assert tuple(lines[: len(INSTALLED)]) == INSTALLED
    output = run("\n".join(lines[len(INSTALLED) :]) + "\n", tmp_path)
    raw = [("ada", '"1815"'), ("grace", '"1906"'), ("ada", '"1815-12-10"'), ("grace", "null")]
    state = [("ada", '"1815-12-10"')]
    assert pairs(output) == raw + state + raw + [*state, ("linus", '"1969"')]
    assert [line for line in output.splitlines() if " b'" in line] == ["ada b'1815-12-10'", "linus b'1969'"]


def test_the_commands_of_the_readme_work_as_they_stand(tmp_path: Path) -> None:
    """But for `make`, and for what goes on until it is interrupted."""
    lines = commands(ROOT / "README.md")
    assert [line.split("#")[0].strip() for line in lines[:3]] == ["make demo", "make test", ". .venv/bin/activate"]
    script = "\n".join(lines[3:]) + "\n"
    script = script.replace("tail -f changes.jsonl", """echo '{"key": "user-2", "value": "Linus"}'""")
    script = script.replace(" --follow", "")
    if shutil.which("curl") is None:
        script = re.sub(
            "^curl '(.*)'$", r"""python -c "import httpx; print(httpx.get('\1').text)\"""", script, flags=re.M
        )
    output = run(script, tmp_path)
    assert ("user-1", '"Grace"') in pairs(output)
    assert ("user-2", '"Linus"') in pairs(output)
    table = output[output.rindex("┌") :]
    assert [name for name in ("Ada", "Grace", "Linus") if name in table] == ["Ada", "Grace", "Linus"]
