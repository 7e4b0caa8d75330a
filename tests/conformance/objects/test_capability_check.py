"""The capability probe finds stores that break a promise, names it, and cleans up; and listing beyond one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage.errors import Misconfigured, ObjectExists, Unavailable
from storage.objects.capability_check import LARGE_BODY_BYTES, PROBE_PREFIX, check_capabilities
from storage.objects.interface import ObjectInfo, ObjectStore, ObjectWriter
from storage.objects.local import LocalStore
from storage.objects.s3 import S3Requests, S3Store
from tests.conformance.objects.conftest import s3_store
from tests.servers.fixtures_s3 import S3Server, use_credentials


class EveryoneWins(LocalStore):
    def put(self, name: str, data: object) -> None:
        try:
            super().put(name, data)  # type: ignore[arg-type]
        except ObjectExists:
            return


class NobodyWins(LocalStore):
    def put(self, name: str, data: object) -> None:
        super().put(name, data)  # type: ignore[arg-type]
        if "/put-" in name:
            raise ObjectExists(f"object {name} exists", "none")


class KeepsAnothersBytes(LocalStore):
    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return b"another's" if "/put-" in name else super().get(name, start, length)


class LosesObjects(LocalStore):
    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return super().get(name.replace("/put-", "/lost-"), start, length)


class LargeOnesOverwrite(LocalStore):
    def create(self, name: str) -> ObjectWriter:
        return super().create(name if "/large-" not in name else f"{name}-{next(self.numbers)}")

    numbers = iter(range(1000))


class IgnoresRanges(LocalStore):
    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        return super().get(name)


class ListsByFolder(LocalStore):
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter(sorted(super().list(prefix), key=lambda info: info.name.split("/")[::-1]))


class ListsLate(LocalStore):
    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter([])


class NeverDeletes(LocalStore):
    def delete(self, name: str) -> None:
        return


@pytest.mark.parametrize(
    ("kind", "broken", "finding"),
    [
        (EveryoneWins, "conditional put", "3 of 3 racing writers won round 1"),
        (NobodyWins, "conditional put", "0 of 3 racing writers won round 1"),
        (KeepsAnothersBytes, "conditional put", "the object is not the winner's"),
        (LosesObjects, "conditional put", "does not exist"),
        (LargeOnesOverwrite, "conditional put of large objects", "3 of 3 racing writers won"),
        (IgnoresRanges, "ranged get", "wrong bytes for start=0 length=1"),
        (ListsByFolder, "list after write", "out of order"),
        (ListsLate, "list after write", "was not listed"),
        (NeverDeletes, "delete", "still listed"),
    ],
)
def test_a_broken_promise_is_found_and_named(tmp_path: Path, kind: type[LocalStore], broken: str, finding: str) -> None:
    store = kind(tmp_path)
    # Bodies of large objects go through a sound store's writer except where that is what is broken.
    report = check_capabilities(
        store, streamed=store if kind is LargeOnesOverwrite else LocalStore(tmp_path), rounds=2, racers=3
    )
    (failed,) = [capability for capability in report.capabilities if not capability.held]
    assert failed.name == broken
    assert finding in failed.finding
    with pytest.raises(Misconfigured, match=broken) as caught:
        report.require()
    assert store.url in caught.value.message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("operation", "broken"),
    [("PutObject", "conditional put"), ("CompleteMultipartUpload", "conditional put of large objects")],
)
def test_an_s3_server_that_takes_no_notice_of_conditions_is_found(
    versitygw: S3Server, monkeypatch: pytest.MonkeyPatch, operation: str, broken: str
) -> None:
    def forget_condition(request: Any, **_: Any) -> None:
        del request.headers["If-None-Match"]

    use_credentials(monkeypatch, versitygw)
    store = s3_store(versitygw, versitygw.make_bucket())
    streamed = S3Store(store.location, S3Requests(0, LARGE_BODY_BYTES, attempts=1))
    for each in (store, streamed):
        each.client.meta.events.register(f"before-sign.s3.{operation}", forget_condition)
    report = check_capabilities(store, streamed=streamed, rounds=1, racers=3)
    assert [(capability.name, capability.finding) for capability in report.capabilities if not capability.held] == [
        (broken, "3 of 3 racing writers won round 1")
    ]
    assert list(store.list()) == []
    for each in (store, streamed):
        each.close()


def test_the_probe_cleans_up_after_a_failure(tmp_path: Path) -> None:
    store = EveryoneWins(tmp_path)
    report = store.check_capabilities()
    assert not report.capabilities[0].held
    with pytest.raises(Misconfigured, match="conditional put"):
        report.require()
    assert list(store.list(PROBE_PREFIX)) == []


def test_a_failing_racer_does_not_leave_the_others_waiting(tmp_path: Path) -> None:
    class FailsOnce(LocalStore):
        def create(self, name: str) -> ObjectWriter:
            if next(turns) == 1:
                raise Unavailable(f"object {name} cannot be written", "try again")
            return super().create(name)

    turns = iter(range(1000))
    sound = LocalStore(tmp_path)
    with pytest.raises(Unavailable, match="cannot be written"):
        check_capabilities(sound, streamed=FailsOnce(tmp_path), rounds=1, racers=3)
    assert list(sound.list()) == []


def test_listing_is_complete_beyond_one_page(store: ObjectStore, request: pytest.FixtureRequest) -> None:
    """A page of S3 has 1,000 objects. moto takes 5 ms to store one: its pages are made smaller."""
    page = 1000
    if isinstance(store, S3Store) and request.node.callspec.params["store"] == "moto":
        page = 100
        store.client.meta.events.register("provide-client-params.s3.ListObjectsV2", _with_pages_of(page))
    created = [f"ledgers/{number:05}/data" for number in range(page + 10)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: store.put(name, b"x"), reversed(created)))
    assert [info.name for info in store.list()] == created
    assert [info.name for info in store.list(f"ledgers/{page // 10:04}")] == created[page:]


def _with_pages_of(size: int) -> Callable[..., dict[str, Any]]:
    return lambda params, **_: params | {"MaxKeys": size}
