"""The environment that `make demo` makes, cut out of the one that the tests run in, for the commands of pages.

`requirements/dev.lock` is a superset of `requirements/runtime.lock` with the same pins, so hiding the other packages
gives the same environment without a network: an import of one fails, and PATH has this project's programs and none of
the others'. `pip install NAME` lets the named package be imported; it must be one of `dev.lock`.
Must not know: pages.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

from api import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("compactor", "compactor-admin")
_HOOK = """
import json, sys
from pathlib import Path

class Hidden:
    folder = Path(__file__).parent
    hidden = json.loads((folder / "hidden.json").read_text())

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        packages = cls.hidden.get(name.partition(".")[0])
        if packages and not set(packages) & set((cls.folder / "installed").read_text().split()):
            raise ModuleNotFoundError(f"No module named {name!r}, which is of {packages}", name=name)

sys.meta_path.insert(0, Hidden)
"""


def runtime_environment(folder: Path) -> dict[str, str]:
    """Make the environment in a new folder; return its variables, without settings of Compactor."""
    folder.mkdir()
    (folder / "hidden.json").write_text(json.dumps(_hidden()))
    (folder / "installed").touch()
    (folder / "sitecustomize.py").write_text(_HOOK)
    scripts = Path(sys.executable).parent
    _script(folder / "python", f'exec {sys.executable} "$@"')
    _script(folder / "pip", f'[ "$1" = install ]; shift; printf "%s\\n" "$@" >> {folder}/installed')
    for name in PROGRAMS:
        _script(folder / name, f'exec {scripts / name} "$@"')
    others = [item for item in os.environ["PATH"].split(os.pathsep) if Path(item) != scripts]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COMPACTOR_", "PYTHON"))}
    return {**kept, "PATH": os.pathsep.join([str(folder), *others]), "PYTHONPATH": str(folder)}


@cache
def _hidden() -> dict[str, list[str]]:
    """Return the packages of each module that is hidden; to read what all packages have installed takes a second."""
    lock = (ROOT / "requirements" / "runtime.lock").read_text(encoding="utf-8")
    installed = {_normal(name) for name in re.findall(r"^([A-Za-z0-9._-]+)(?:\[.*\])?==", lock, re.MULTILINE)}
    installed.add(DISTRIBUTION)
    modules = {name: [_normal(package) for package in packages] for name, packages in packages_distributions().items()}
    return {name: packages for name, packages in modules.items() if not installed.intersection(packages)}


def _normal(package: str) -> str:
    return re.sub(r"[-_.]+", "-", package).lower()


def _script(file: Path, command: str) -> None:
    file.write_text(f"#!/bin/sh\nset -e\n{command}\n")
    file.chmod(0o700)
