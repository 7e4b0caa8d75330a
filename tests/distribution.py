"""The distribution of tests over the processes of pytest-xdist: a file to one, all files that need Spark to one, and
those of a folder that share a browser.

A pytest plugin. So a server that the tests of a file share is started once, and one Spark serves the run. Files go out
in the order of their paths: the cheap ones, those of tests/unit, come last and keep all processes at work to the end.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_ROOT = Path(__file__).resolve().parents[1]
_SPARK = "spark_engine"
"""The fixture of Spark (conftest.py)."""
_TOGETHER = ("tests/clients/browser",)
"""Folders whose tests share what takes seconds of CPU to start."""


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives out files; those that name the fixture of Spark are one unit, and those of a folder of `_TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        return _unit(nodeid.partition("::")[0])


@cache
def _unit(file: str) -> str:
    folder = file.rpartition("/")[0]
    if folder in _TOGETHER:
        return folder
    return _SPARK if _SPARK in (_ROOT / file).read_text(encoding="utf-8") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FileScheduling:
    config.option.loadscopereorder = False
    return FileScheduling(config, log)
