"""A cursor's world."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock
from tests.cursors import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    metadata = MetadataStore(f"sqlite:///{tmp_path / 'metadata.db'}", clock)
    metadata.upgrade()
    topic = metadata.tenancy.ensure_topic(TopicName.parse("orders"))
    metadata.cursors.ensure(topic.id, "s")
    yield World(metadata, clock, topic)
    metadata.close()
