"""Artifacts of the brokers: their jars and Java clients through Maven, and our few lines of Java.

`java/*/pom.xml` lists the dependencies; Maven downloads them into its own repository and prints the class path. Our
Java source is compiled into the sitting's folder.

Errors: PeerFailed (no Maven, no JDK of version 17 or newer, no network for missing downloads, or a command that fails
or takes too long).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.contender import PeerFailed
from compactor.engines.java import find_java_home
from storage.errors import Misconfigured

_SOURCES = Path(__file__).resolve().parent / "java"
LOG_SETTINGS = _SOURCES / "log4j2.properties"
_MAVEN_SECONDS = 900
_COMPILER_SECONDS = 120
_TAIL = 1500


@dataclass(frozen=True)
class Artifacts:
    """Version, Java and class path of a peer. `client`: name of our class for its messages."""

    version: str
    java: Path
    class_path: str
    client: str

    def command(self, main: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
        """Return the command line that runs a class with this class path."""
        return [str(self.java), *options, "-cp", self.class_path, main, *arguments]

    def run(self, main: str, *arguments: str, limit: float) -> str:
        """Run a class to its end and return its stdout. Raises PeerFailed."""
        return run(self.command(main, *arguments, options=("-Xmx1g", "-Dlog4j2.level=ERROR")), limit)

    def send(self, *arguments: str, limit: float) -> float:
        """Run the command `load` of our class, after the address. Return the seconds of sending, by its clock."""
        output = self.run_client("load", *arguments, limit=limit)
        match = re.search(r"^sent in (\d+) ms$", output, re.MULTILINE)
        if match is None:
            raise PeerFailed(f"{self.client} load did not print its time: {output[-_TAIL:]}")
        return int(match[1]) / 1000

    def run_client(self, *arguments: str, limit: float) -> str:
        """Run our class for this peer's messages to its end and return its stdout. Raises PeerFailed."""
        return self.run(self.client, *arguments, limit=limit)


def get_artifacts(peer: str, client: str, folder: Path) -> Artifacts:
    """Get the dependencies of `java/<peer>/pom.xml`, and compile `java/<peer>/<client>.java` into `folder`."""
    try:
        home = find_java_home(os.environ).runtime
    except Misconfigured as error:
        raise PeerFailed(str(error)) from error
    compiler, maven = home / "bin" / "javac", shutil.which("mvn")
    if not compiler.exists():
        raise PeerFailed(f"{home} has no Java compiler; install a JDK of version 17 or newer and set JAVA_HOME to it")
    if maven is None:
        raise PeerFailed("PATH has no mvn; install Maven, which gets the brokers")
    pom, classes = _SOURCES / peer / "pom.xml", folder / f"{peer}-classes"
    classes.mkdir()
    listed = classes / "class-path"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={listed}", "-DincludeScope=runtime"]
    run([maven, "--batch-mode", "--quiet", "--file", str(pom), *goal], _MAVEN_SECONDS)
    class_path = os.pathsep.join([str(classes), listed.read_text().strip()])
    source = _SOURCES / peer / f"{client}.java"
    run([str(compiler), "-proc:none", "-d", str(classes), "-cp", class_path, str(source)], _COMPILER_SECONDS)
    version = re.search(r"<peer\.version>(.+)</peer\.version>", pom.read_text())
    assert version is not None
    return Artifacts(version[1], home / "bin" / "java", class_path, client)


def run(command: list[str], limit: float) -> str:
    """Run a command to its end and return its stdout. Raises PeerFailed with the end of its output."""
    name = Path(command[0]).name + " " + next((part for part in command if part.endswith(("Messages", "Tool"))), "")
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=limit, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"{name.strip()} did not end within {limit:.0f} s") from error
    if result.returncode:
        raise PeerFailed(
            f"{name.strip()} failed with exit code {result.returncode}: {(result.stdout + result.stderr)[-_TAIL:]}"
        )
    return result.stdout
