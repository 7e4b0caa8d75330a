"""Libraries by their locks: only the file that a lock names is ever handed out."""

from __future__ import annotations

import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.clients.java.maven import Library, NotFetched, class_path, find_repository, read_lock

HERE = Path(__file__).parent
JAR = b"not really a jar"


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """A repository with the one file g/a.jar."""
    root = tmp_path / "repository"
    (root / "g").mkdir(parents=True)
    (root / "g" / "a.jar").write_bytes(JAR)

    class Files(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(root))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def locked(tmp_path: Path, content: bytes, path: str = "g/a.jar") -> Path:
    lock = tmp_path / "one.lock"
    lock.write_text(f"# made by hand\n{Library(path, len(content), hashlib.sha256(content).hexdigest())}\n")
    return lock


def test_what_is_fetched_is_kept_and_checked_again(tmp_path: Path, repository: str) -> None:
    lock, cache = locked(tmp_path, JAR), tmp_path / "cache"
    [file] = map(Path, class_path(lock, repository=repository, cache=cache).split(":"))
    assert file.read_bytes() == JAR
    file.write_bytes(b"damaged")
    assert class_path(lock, repository=repository, cache=cache) == str(file)
    assert file.read_bytes() == JAR
    assert class_path(lock, repository="http://127.0.0.1:1", cache=cache) == str(file)


def test_another_file_than_the_locks_is_refused(tmp_path: Path, repository: str) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(NotFetched, match=r"g/a\.jar is not the file of the lock"):
        class_path(locked(tmp_path, b"what was meant"), repository=repository, cache=cache)
    assert not list(cache.iterdir())


@pytest.mark.parametrize(("path", "says"), [("g/a.jar", "ConnectError"), ("g/b.jar", "status 404")])
def test_what_cannot_be_had_is_told(tmp_path: Path, repository: str, path: str, says: str) -> None:
    """No test is skipped for it: it fails with this."""
    where = repository if "404" in says else "http://127.0.0.1:1"
    with pytest.raises(NotFetched, match=f"cannot be had .*{says}"):
        class_path(locked(tmp_path, JAR, path), repository=where, cache=tmp_path / "cache")


def test_the_repository_is_the_one_that_this_machine_names(tmp_path: Path) -> None:
    settings = tmp_path / "settings.xml"
    mirrors = [("other", "https://other.invalid"), ("*,!elsewhere", "https://mirror.invalid/maven2")]
    message = "".join(f"<mirror><mirrorOf>{of}</mirrorOf><url>{url}</url></mirror>" for of, url in mirrors)
    settings.write_text(
        f'<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>{message}</mirrors></settings>'
    )
    assert find_repository({}, (tmp_path / "none.xml", settings)) == "https://mirror.invalid/maven2"
    named = {"COMPACTOR_MAVEN_REPOSITORY": "https://named.invalid"}
    assert find_repository(named, (settings,)) == "https://named.invalid"
    assert find_repository({}, ()).endswith("/maven2/")


@pytest.mark.parametrize("lock", sorted(HERE.glob("*.lock")), ids=lambda lock: lock.stem)
def test_locks_are_of_their_poms(lock: Path) -> None:
    libraries = read_lock(lock)
    paths = [library.path for library in libraries]
    assert len(set(paths)) == len(paths)
    assert all(len(library.sha256) == 64 and library.path.endswith(".jar") for library in libraries)
    pom = ElementTree.parse(lock.with_suffix(".pom.xml"))
    dependency = pom.find("{*}dependencies/{*}dependency")
    assert dependency is not None
    names = ("groupId", "artifactId", "version")
    group, artifact, version = (dependency.findtext(f"{{*}}{name}", "") for name in names)
    version = version.replace("${peer.version}", pom.findtext("{*}properties/{*}peer.version", ""))
    assert f"{group.replace('.', '/')}/{artifact}/{version}/{artifact}-{version}.jar" in paths
    assert "://" not in lock.read_text()
