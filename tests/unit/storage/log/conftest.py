"""A segment in a folder of its own, and what is flushed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.segments import OneSegment


@pytest.fixture
def segment(tmp_path: Path) -> OneSegment:
    return OneSegment(tmp_path)


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of the file at each fdatasync."""
    sizes: list[int] = []
    real = os.fdatasync

    def record(descriptor: int) -> None:
        real(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fdatasync", record)
    return sizes
