"""Benchmarks that no test starts: each module imports, so a name that the product gave up is noticed."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from benchmarks.this_job import Without, patched

ROOT = Path(__file__).resolve().parents[3]
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "benchmarks").rglob("*.py")
    if file.stem not in ("__init__", "__main__")
)


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_imports(module: str) -> None:
    assert importlib.import_module(module).__doc__


def test_what_a_run_omits_exists() -> None:
    with patched(Without(index=True, checks=True, fsync=True)):
        assert os.fsync(0) is None
