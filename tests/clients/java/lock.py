"""Writes the locks of the Java clients again: `python -m tests.clients.java.lock`. Needs Maven; tests do not.

Each `*.pom.xml` here becomes the lock of the same name: what Maven resolves for it, less the native libraries of
systems that no test runs on. Only the central repository is asked, also where a pom of Pulsar names another one.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from xml.sax.saxutils import escape

from tests.clients.java.maven import Library, find_repository

_HERE = Path(__file__).resolve().parent
_ONLY_CENTRAL = (
    "<settings><mirrors><mirror><id>central</id><mirrorOf>*</mirrorOf><url>{}</url></mirror></mirrors></settings>"
)
_OTHER_SYSTEMS = ("-windows-", "-osx-", "-macos-")


def write_lock(pom: Path) -> Path:
    """Resolve `name.pom.xml` and write `name.lock` beside it."""
    with tempfile.TemporaryDirectory() as folder:
        listed, repository = Path(folder, "class-path"), Path(folder, "repository")
        settings = Path(folder, "settings.xml")
        settings.write_text(_ONLY_CENTRAL.format(escape(find_repository(os.environ))), encoding="utf-8")
        options = ["--batch-mode", "--quiet", f"--settings={settings}", f"-Dmaven.repo.local={repository}"]
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={listed}", "-DincludeScope=runtime"]
        subprocess.run(["mvn", *options, "--file", str(pom), *goal], check=True)
        files = [Path(name) for name in listed.read_text().strip().split(":")]
        libraries = [
            Library(str(file.relative_to(repository)), file.stat().st_size, _hash(file))
            for file in files
            if not any(system in file.name for system in _OTHER_SYSTEMS)
        ]
    lock = pom.with_name(pom.name.replace(".pom.xml", ".lock"))
    head = (
        f"# Made from {pom.name} by `python -m tests.clients.java.lock`: SHA-256, bytes, path in Maven's repository\n"
    )
    lock.write_text(head + "".join(f"{library}\n" for library in libraries), encoding="utf-8")
    return lock


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    for pom in sorted(_HERE.glob("*.pom.xml")):
        print(write_lock(pom).name)
