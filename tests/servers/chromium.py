"""Chromium, from Debian where it is missing: a browser as people have it.

`python -m tests.servers.chromium` installs it in CI.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_PLAYWRIGHT = (
    "AvoidUnnecessaryBeforeUnloadCheckSync,DestroyProfileOnBrowserClose,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,"
    "LensOverlay,MediaRouter,PaintHolding,ThirdPartyStoragePartitioning,AvoidCorsURLLoaderRestartOnRedirect,"
    "OptimizationHints,NetworkTimeServiceQuerying,AimEnabled,PreconnectToSearch"
)
"""The features that Playwright disables: of two switches with features, Chromium takes the last one alone."""
OPTIONS = ("--no-sandbox", f"--disable-features={_PLAYWRIGHT},WebUIOmniboxPopup,WebUIOmniboxAimPopup")
"""For the launch. Without the last two features a window has no pages for its address bar: 1 s of CPU each."""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_INSTALL_SECONDS = 300
_LOCK = Path(__file__).resolve().parents[2] / ".cache" / "chromium.lock"


@functools.cache
def chromium() -> str:
    """The program; installed by apt-get if this is root's machine. Without one the test is skipped, but in CI it
    fails."""
    program = _installed()
    if program is None and os.environ.get("CI") and os.geteuid() == 0 and shutil.which("apt-get"):
        program = _install()
    if program is None and not os.environ.get("CI"):
        pytest.skip("there is no Chromium on this machine: install it (Debian: apt-get install chromium)")
    assert program is not None, "this machine has no Chromium, and it cannot be installed"
    return program


def _installed() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


def _install() -> str | None:
    """Install the program, and return it. One process installs, others wait for it."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    _LOCK.parent.mkdir(exist_ok=True)
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (program := _installed()) is not None:
            return program
        for command in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", "-qq", *command], env=environment, timeout=_INSTALL_SECONDS, check=True)
    return _installed()


if __name__ == "__main__":
    chromium()
