"""The plug-in for Pulsar's brokers (integrations/pulsar-compaction), compiled as users' Maven does, without Maven.

The compiler is Eclipse's, which runs on any Java; the class path is that of a broker, and nothing else.
"""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from tests.clients.java.jvm import OPTIONS, java
from tests.clients.java.maven import class_path

_HERE = Path(__file__).resolve().parent
PROJECT = _HERE.parents[2] / "integrations" / "pulsar-compaction"
SOURCES = PROJECT / "src" / "main" / "java"
TESTS = PROJECT / "src" / "test" / "java"
FACTORY = "compactor.pulsar.CompactorServiceFactory"
_COMPILER_SECONDS = 120


def compile_java(sources: list[Path], classes: Path, libraries: str) -> None:
    """Compile sources for Java 17 with a class path; every warning of the compiler is an error."""
    compiler = class_path(_HERE / "ecj.lock")
    options = ["-17", "-proc:none", "-encoding", "UTF-8", "-failOnWarning", "-warn:-serial,resource", "-cp", libraries]
    command = [java(), *OPTIONS, "-jar", compiler, *options, "-d", str(classes), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILER_SECONDS)
    assert done.returncode == 0, done.stderr or done.stdout


def plugin_jar(folder: Path, lock: str = "pulsar-broker.lock") -> Path:
    """Compile the plug-in with the libraries of a broker, and return its jar in `folder`."""
    classes, jar = folder / "classes", folder / "compactor-pulsar.jar"
    compile_java(sorted(SOURCES.rglob("*.java")), classes, class_path(_HERE / lock))
    with zipfile.ZipFile(jar, "w") as archive:
        for file in sorted(classes.rglob("*.class")):
            archive.write(file, file.relative_to(classes))
    return jar


def plugin_checks(folder: Path, jar: Path, lock: str = "pulsar-broker.lock") -> Path:
    """Compile the plug-in's own checks and programs, and return the folder of their classes in `folder`."""
    classes = folder / "checks"
    compile_java(sorted(TESTS.rglob("*.java")), classes, f"{jar}:{class_path(_HERE / lock)}")
    return classes
