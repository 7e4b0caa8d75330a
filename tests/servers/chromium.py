"""Chromium, from Debian where it is missing: a browser as people have it."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_INSTALL_SECONDS = 300


@functools.cache
def chromium() -> str:
    """The program; installed by apt-get if this is root's machine. Without one the test is skipped, but in CI it
    fails."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None and os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-qq", *command], env=environment, timeout=_INSTALL_SECONDS, check=True)
        program = shutil.which(_NAMES[0])
    if program is None and not os.environ.get("CI"):
        pytest.skip("there is no Chromium on this machine: install it (Debian: apt-get install chromium)")
    assert program is not None, "this machine has no Chromium, and it cannot be installed"
    return program
