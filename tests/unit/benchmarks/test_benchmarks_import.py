"""Benchmarks that no test starts: each module imports, so a name that the product gave up is noticed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "benchmarks").rglob("*.py")
    if file.stem not in ("__init__", "__main__")
)


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_imports(module: str) -> None:
    assert importlib.import_module(module).__doc__
