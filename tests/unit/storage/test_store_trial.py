"""A service tries a store once for each database and location, and keeps the result."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import Misconfigured, ObjectExists, Unavailable
from storage.metadata.store import MetadataStore
from storage.objects.capability_check import CapabilityReport
from storage.objects.interface import StoreLocation
from storage.objects.local import LocalStore
from storage.store_trial import StoreTrial, location_text
from tests.clocks import ManualClock


class EveryWriterWins(LocalStore):
    def put(self, name: str, data: object) -> None:
        try:
            super().put(name, data)  # type: ignore[arg-type]
        except ObjectExists:
            return


class CountsChecks(LocalStore):
    checks = 0

    def check_capabilities(self) -> CapabilityReport:
        self.checks += 1
        return super().check_capabilities()


class Away(LocalStore):
    def check_capabilities(self) -> CapabilityReport:
        raise Unavailable("the store is away", "wait")


@pytest.fixture
def metadata(tmp_path: Path) -> MetadataStore:
    metadata = MetadataStore(f"sqlite:///{tmp_path / 'metadata'}.db", ManualClock())
    metadata.upgrade()
    return metadata


def test_a_store_that_passes_is_tried_once_for_all_processes(metadata: MetadataStore, tmp_path: Path) -> None:
    store = CountsChecks(tmp_path / "objects")
    assert StoreTrial(metadata, store, 30).try_unless_passed()
    assert not StoreTrial(metadata, store, 30).try_unless_passed()
    other = MetadataStore(metadata.database.url, ManualClock())
    assert not StoreTrial(other, CountsChecks(tmp_path / "objects"), 30).try_unless_passed()
    assert store.checks == 1
    assert list(store.list()) == []


def test_a_store_at_another_location_is_tried_again(metadata: MetadataStore, tmp_path: Path) -> None:
    assert StoreTrial(metadata, CountsChecks(tmp_path / "objects"), 30).try_unless_passed()
    assert StoreTrial(metadata, CountsChecks(tmp_path / "moved"), 30).try_unless_passed()


def test_a_store_that_fails_or_is_away_is_tried_each_time(metadata: MetadataStore, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(Misconfigured, match="racing writers won") as refused:
            StoreTrial(metadata, EveryWriterWins(tmp_path / "objects"), 30).try_unless_passed()
        assert "use a store, or a release of its server" in refused.value.remedy
    with pytest.raises(Unavailable):
        StoreTrial(metadata, Away(tmp_path / "objects"), 30).try_unless_passed()
    assert StoreTrial(metadata, CountsChecks(tmp_path / "objects"), 30).try_unless_passed()


def test_a_location_names_bucket_and_server() -> None:
    assert location_text(StoreLocation("s3://bucket/prefix")) == "s3://bucket/prefix"
    assert location_text(StoreLocation("s3://b", "http://s3:7070")) == "s3://b at http://s3:7070"
