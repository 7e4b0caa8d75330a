"""The stage of a test of scheduling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.compactor.scheduling.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.engines.go.set()
    for loop in stage.loops:
        loop.drain(0)
    stage.metadata.close()
