"""A SQLite database in a folder that this process may not write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.errors import Misconfigured
from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock


def opened(file: Path) -> MetadataStore:
    return MetadataStore(f"sqlite:///{file}", ManualClock())


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that has a topic."""
    database_path = tmp_path / "metadata.db"
    store = opened(database_path)
    store.upgrade()
    store.tenancy.ensure_topic(TopicName.parse("t"))
    store.close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    return database_path


def test_it_is_read_and_nothing_is_made_beside_it(file: Path) -> None:
    before = set(file.parent.iterdir())
    store = opened(file)
    assert [str(record.name) for record in store.topics.all()] == ["persistent://public/default/t"]
    assert set(file.parent.iterdir()) == before
    with pytest.raises(Misconfigured, match="readonly"):
        store.tenancy.ensure_topic(TopicName.parse("u"))
    store.close()


def test_a_copy_of_one_in_use_is_refused(file: Path) -> None:
    file.with_name("metadata.db-wal").write_bytes(b"changes")
    with pytest.raises(Misconfigured, match="was copied while a process used it"):
        opened(file)
