"""Java libraries from Maven's central repository, pinned: `*.lock` names each file and its SHA-256, no other is run.

A lock is the whole transitive closure of what one client needs, resolved once by Maven (`python -m
tests.clients.java.lock`), so that a test run needs neither Maven nor a resolution. Files are kept in `.cache/java` of
the clone under their hash, and a file is used only if it has that hash.

Where the repository is: COMPACTOR_MAVEN_REPOSITORY, or a mirror that Maven's settings on this machine name for it, or
what Ivy (which Spark brings as a jar) has as its default.

Goes wrong: `NotFetched`, with the file and the reason. A test that needs the files then fails; it is never skipped.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import ssl
import tempfile
import zipfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import httpx

_CACHE = Path(__file__).resolve().parents[3] / ".cache" / "java"
_AT_ONCE = 6
_TRIES = 3
_ANSWER_WITHIN_SECONDS = 60.0
_SETTINGS = (Path.home() / ".m2" / "settings.xml", Path("/etc/maven/settings.xml"))
_IVY_RESOLVER = "org/apache/ivy/plugins/resolver/IBiblioResolver.class"


class NotFetched(Exception):
    """A library could not be had, or is not the one that the lock names."""


@dataclass(frozen=True)
class Library:
    """One line of a lock: a file below the repository, with its size and hash."""

    path: str
    size: int
    sha256: str

    @classmethod
    def parse(cls, line: str) -> Library:
        sha256, size, path = line.split()
        return cls(path, int(size), sha256)

    def __str__(self) -> str:
        return f"{self.sha256} {self.size:>8} {self.path}"


def read_lock(lock: Path) -> list[Library]:
    """The libraries of a lock, in the order of the class path."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    return [Library.parse(line) for line in lines if line and not line.startswith("#")]


def class_path(lock: Path, *, repository: str | None = None, cache: Path = _CACHE) -> str:
    """Return the class path of a lock, with every file present and checked. Raises `NotFetched`."""
    cache.mkdir(parents=True, exist_ok=True)
    with (
        # The system's certificates, as pip and Maven take them: a machine may be behind an authority of its own.
        httpx.Client(
            timeout=_ANSWER_WITHIN_SECONDS, follow_redirects=True, verify=ssl.create_default_context()
        ) as client,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        root = (repository or find_repository(os.environ)).rstrip("/")
        files = pool.map(lambda library: _at_hand(library, client, root, cache), read_lock(lock))
        return os.pathsep.join(map(str, files))


def find_repository(environment: Mapping[str, str], settings: tuple[Path, ...] = _SETTINGS) -> str:
    """The address of Maven's central repository, as this machine has it."""
    if named := environment.get("COMPACTOR_MAVEN_REPOSITORY"):
        return named
    for file in settings:
        if file.exists() and (mirror := _mirror_of_central(file)):
            return mirror
    import pyspark

    ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    with zipfile.ZipFile(ivy) as jar:
        match = re.search(rb"https://[\x21-\x7e]+/maven2/", jar.read(_IVY_RESOLVER))
    assert match, f"{ivy.name} knows no repository; set COMPACTOR_MAVEN_REPOSITORY"
    return match[0].decode()


def _mirror_of_central(settings: Path) -> str | None:
    for mirror in ElementTree.parse(settings).iterfind(".//{*}mirror"):
        patterns = [part.strip() for part in mirror.findtext("{*}mirrorOf", "").split(",")]
        if "central" in patterns or ("*" in patterns and "!central" not in patterns):
            return mirror.findtext("{*}url")
    return None


def _at_hand(library: Library, client: httpx.Client, root: str, cache: Path) -> Path:
    """The file in the cache; fetched if it is not there, or is another one."""
    file = cache / f"{library.sha256[:16]}-{Path(library.path).name}"
    if file.exists() and _hash_of(file) == library.sha256:
        return file
    content = _fetch(library, client, root)
    if _hash(content) != library.sha256:
        raise NotFetched(f"{library.path} is not the file of the lock: its SHA-256 is {_hash(content)}")
    # Another test process may fetch the same file: each writes its own, and the last rename wins.
    with tempfile.NamedTemporaryFile(dir=cache, delete=False) as written:
        written.write(content)
    Path(written.name).replace(file)
    return file


def _fetch(library: Library, client: httpx.Client, root: str) -> bytes:
    message = ""
    for _ in range(_TRIES):
        try:
            answer = client.get(f"{root}/{library.path}")
        except httpx.HTTPError as error:
            message = f"{type(error).__name__}: {error}"
            continue
        if answer.is_success:
            return answer.content
        message = f"status {answer.status_code}"
        if answer.is_client_error:
            break
    raise NotFetched(
        f"{library.path} cannot be had from Maven's central repository ({message}); "
        "is it reachable from here? COMPACTOR_MAVEN_REPOSITORY names another address"
    )


def _hash_of(file: Path) -> str:
    state = file.stat()
    return _read_and_hash(file, state.st_ino, state.st_mtime_ns, state.st_size)


@functools.cache
def _read_and_hash(file: Path, *state: int) -> str:
    """Return the hash of a file; of one in that state once: a broker's libraries are 130 MB, for each of its tools."""
    return _hash(file.read_bytes())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
