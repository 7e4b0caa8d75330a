"""A local folder that fails: full, forbidden, without links; and what dead or racing processes leave in it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from storage.errors import CompactorError, InvalidInput, Misconfigured, ObjectExists, StorageFull, Unavailable
from storage.objects.interface import StoreLocation
from storage.objects.local import LocalStore
from storage.objects.registry import open_store

REPOSITORY = Path(__file__).resolve().parents[3]

FULL_DISK = """
import os, resource, sys
from storage.errors import StorageFull
from storage.objects.interface import StoreLocation
from storage.objects.registry import open_store
store = open_store(StoreLocation(sys.argv[1], "http://127.0.0.1:9", "us-east-1"))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    with store.create("an/object") as writer:
        for _ in range(10):
            writer.write(bytes(1 << 20))
except StorageFull as error:
    print(error.message, "|", error.remedy)
"""


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("scheme", ["file", "s3"])
def test_a_full_disk_is_storage_full_and_nothing_is_left(tmp_path: Path, scheme: str) -> None:
    url = tmp_path.as_uri() if scheme == "file" else "s3://bucket/prefix"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", FULL_DISK, url],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stderr == ""
    assert "object an/object in" in ended.stdout
    assert str(tmp_path) in ended.stdout
    assert "| free space" in ended.stdout
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StorageFull),
        (errno.EDQUOT, StorageFull),
        (errno.EROFS, Misconfigured),
        (errno.EPERM, Misconfigured),
        (errno.EIO, Unavailable),
    ],
)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "link", "mkdir"])
def test_errors_of_the_system_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, kind: type[CompactorError]
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    store = LocalStore(tmp_path / "root")
    store.put("there", b"x")
    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(kind, match="cannot write object folder/a in file://") as caught:
            store.put("folder/a", b"data")
    assert type(caught.value) is kind
    assert os.strerror(number) in caught.value.message
    assert caught.value.remedy
    assert [path.name for path in files_below(tmp_path)] == ["there"]
    store.put("folder/a", b"data")
    assert store.get("folder/a") == b"data"


def test_an_object_whose_folder_cannot_be_made_durable_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.put("there", b"x")
    fsync, calls = os.fsync, iter([False, True])

    def fail_second(descriptor: int) -> None:
        if next(calls):
            raise OSError(errno.EIO, "broken disk")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_second)
    with pytest.raises(Unavailable, match=r"cannot write object a .*broken disk"):
        store.put("a", b"data")
    assert [info.name for info in store.list()] == ["there"]


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    with LocalStore(tmp_path).create("living") as writer:
        writer.write(b"still here")
        dead = tmp_path / ".tmp" / "dead"
        dead.write_bytes(b"left by a crash")
        store = LocalStore(tmp_path)
        assert list(store.list()) == []
        store.put("other", b"x")
        assert not dead.exists()
    assert store.get("living") == b"still here"
    assert files_below(tmp_path / ".tmp") == []


def test_a_name_is_not_an_object_and_a_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", b"x")
    for name in ("a", "a/b/c"):
        with pytest.raises(InvalidInput, match=f"cannot write object {name} in") as caught:
            store.put(name, b"x")
        assert "folder of other objects" in caught.value.remedy
    assert [info.name for info in store.list()] == ["a/b"]


def test_a_folder_that_was_taken_away_is_made_again(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "root")
    store.put("folder/a", b"x")
    store.delete("folder/a")
    (tmp_path / "root" / "folder").rmdir()
    with pytest.raises(Unavailable, match="cannot write object folder/b"):
        store.put("folder/b", b"x")
    store.put("folder/b", b"x")
    assert store.get("folder/b") == b"x"


def test_another_store_of_the_same_folder_is_the_same_store(tmp_path: Path) -> None:
    first = LocalStore(tmp_path / "with space and %")
    first.put("a", b"x")
    second = open_store(first.url)
    assert second.get("a") == b"x"
    with pytest.raises(ObjectExists):
        second.put("a", b"y")


@pytest.mark.parametrize("url", ["/folder", "folder", "ftp://host/x", "file://host/x", "file:relative", "file:///a?b"])
def test_urls_that_name_no_store(url: str) -> None:
    with pytest.raises(Misconfigured, match=r"store URL '.*' (has no scheme|names no local folder)") as caught:
        open_store(StoreLocation(url))
    assert "file:///" in caught.value.remedy


def test_the_registry_needs_no_boto3() -> None:
    code = "import sys, storage.objects.registry as r; r.open_store('file:///x'); print('boto3' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
