"""Space that is kept for a full disk: the first access that fails for lack of it frees it, the next one has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import text

from storage.errors import StorageFull
from storage.metadata import disk_reserve
from storage.metadata.disk_reserve import LEAST_BYTES, DiskReserve
from storage.metadata.store import MetadataStore
from tests.clocks import ManualClock
from tests.workbench import Workbench


@contextmanager
def full(metadata: MetadataStore) -> Iterator[None]:
    """A database that may not grow by a page."""
    with metadata.database.read() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
    metadata.close()
    from sqlalchemy import event

    def limit(connection: object, _: object) -> None:
        connection.execute(f"PRAGMA max_page_count = {pages}").close()  # type: ignore[attr-defined]

    event.listen(metadata.database.engine, "connect", limit)
    try:
        yield
    finally:
        event.remove(metadata.database.engine, "connect", limit)
        metadata.close()


def test_a_full_disk_frees_what_is_kept(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = bench.metadata
    kept = metadata.database.reserve
    assert kept is not None
    metadata.ensure_reserve()
    assert kept.path.stat().st_blocks * 512 >= LEAST_BYTES, "it takes the space"
    size, created = kept.path.stat().st_size, kept.path.stat().st_mtime_ns
    metadata.ensure_reserve()
    assert kept.path.stat().st_mtime_ns == created
    topic = bench.topic()

    def grow() -> None:
        with metadata.database.write() as connection:
            connection.execute(text("CREATE TABLE large (data BLOB)"))
            connection.execute(text(f"INSERT INTO large VALUES (zeroblob({1 << 20}))"))

    with full(metadata):
        with pytest.raises(StorageFull, match="full") as answer:
            grow()
        assert "reserved" not in str(answer.value), "there is space on the disk; it is the database that may not grow"
        assert kept.path.exists()
        monkeypatch.setattr(disk_reserve, "free_bytes", lambda _: 0)
        with pytest.raises(StorageFull, match=f"the disk is full, and {size} bytes that were reserved .* try again"):
            grow()
        assert "that were reserved for this are freed" in caplog.text
        assert not kept.path.exists()
        metadata.ensure_reserve()
        assert not kept.path.exists(), "there is no space for it"
        metadata.tenancy.delete_topic(topic.record.id)
    monkeypatch.undo()
    metadata.ensure_reserve()
    assert kept.path.exists()


def test_it_is_as_large_as_the_database_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "metadata.db"
    kept = DiskReserve(database)
    kept.ensure()
    assert not kept.path.exists(), "there is no database"
    monkeypatch.setattr(disk_reserve, "MOST_BYTES", 4 << 20)
    for size, expected in ((0, LEAST_BYTES), (LEAST_BYTES + 1, LEAST_BYTES), (600_000, 600_000), (9 << 20, 4 << 20)):
        database.write_bytes(b"")
        with database.open("r+b") as file:
            file.truncate(size)
        kept.ensure()
        assert kept.path.stat().st_size == expected


def test_a_database_on_another_machine_keeps_nothing() -> None:
    store = MetadataStore("postgresql://me@host/db", ManualClock())
    assert store.database.reserve is None
    store.ensure_reserve()
