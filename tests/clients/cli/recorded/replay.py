"""Replays tables of commands of `compactor` and `compactor-admin` in this process and returns what each leaves behind.

    ARGUMENTS               one command, quoted as in a shell; without the program's name
        text                indented lines are its standard input
    @ACTION ARGUMENTS       a preparation, one function of this module
    # …                     a comment

`usage.commands` and `local.commands` are those of `compactor`, `admin.commands` those of `compactor-admin`. Time stands
still, and what differs between two runs is replaced by a name, as in the record of REST.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import api.cli.admin.main
import api.cli.main
from api.cli.admin import connection
from api.cli.admin.client_config import ClientConfig
from tests.clients.admin_cli.conftest import ToTheService
from tests.clients.cli.conftest import claim as claim_run
from tests.clients.rest.recorded.preparations import Scene
from tests.clients.rest.recorded.replay import normalised, stopped_clock
from tests.program import Program
from tests.serving import serving

HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
TABLES = ("usage", "local", "admin")


@dataclass
class Command:
    """One line of a table, and its standard input."""

    text: str
    stdin: list[str] = field(default_factory=list)


@dataclass
class Bench:
    """The folder that commands work in, and the service that `compactor-admin` asks."""

    folder: Path
    scene: Scene | None = None


def commands_of(table: str) -> list[Command]:
    """The lines of a table."""
    commands: list[Command] = []
    for line in (HERE / f"{table}.commands").read_text().splitlines():
        if line.startswith(" "):
            commands[-1].stdin.append(line.strip())
        elif line and not line.startswith("#"):
            commands.append(Command(line))
    return commands


def outcomes(table: str, folder: Path) -> list[list[Any]]:
    """Each command of a table with what it leaves behind: exit code, standard output, standard error."""
    with pytest.MonkeyPatch.context() as patch, stopped_clock(patch) as clock:
        for name in [name for name in os.environ if name.startswith("COMPACTOR_")]:
            patch.delenv(name)
        patch.setenv("COMPACTOR_DATA", str(folder / "data"))
        patch.setenv("COMPACTOR_SPARK_MASTER", "in-process")
        patch.setenv("HOME", str(folder))
        patch.setenv("COLUMNS", "200")
        (folder / "work").mkdir(exist_ok=True)
        patch.chdir(folder / "work")
        if table != "admin":
            program = Program("compactor", api.cli.main.main, folder, patch)
            return list(_replayed(table, program, Bench(folder / "work")))
        with serving(folder, limits_requests_per_second=0.0) as served:
            scene = Scene(served, clock, patch, folder)
            scene.begin()
            created = connection.Connection

            def connect(target: ClientConfig) -> connection.Connection:
                return created(target, ToTheService(served))

            patch.setattr(connection, "Connection", connect)
            program = Program("compactor-admin", api.cli.admin.main.main, folder, patch)
            with contextlib.closing(scene):
                return list(_replayed(table, program, Bench(folder / "work", scene)))


def _replayed(table: str, program: Program, bench: Bench) -> Iterator[list[Any]]:
    for command in commands_of(table):
        if command.text.startswith("@"):
            action, *arguments = shlex.split(command.text[1:])
            prepare: Callable[..., None] = ACTIONS[action]
            prepare(bench, *arguments, *command.stdin)
            continue
        stdin = "".join(f"{line}\n" for line in command.stdin)
        result = program(*shlex.split(command.text), stdin=stdin.encode())
        folder = bench.folder.parent
        out, err = (normalised(text, folder) for text in (result.stdout, result.stderr))
        yield [command.text, result.exit_code, out, err]


def write(bench: Bench, file: str, *lines: str) -> None:
    """Write a file into the working folder."""
    (bench.folder / file).write_text("".join(f"{line}\n" for line in lines))


def claim(bench: Bench, topic: str) -> None:
    """Begin a run of a topic in another process."""
    claim_run(topic, phase="phase one")


def lose(bench: Bench, kind: str) -> None:
    """Delete the objects whose names contain a word."""
    for path in _objects(bench, kind):
        path.unlink()


def damage(bench: Bench, kind: str) -> None:
    """Cut the objects short whose names contain a word."""
    for path in _objects(bench, kind):
        path.write_bytes(path.read_bytes()[:-8])


def _objects(bench: Bench, kind: str) -> list[Path]:
    paths = [path for path in (bench.folder.parent / "data").rglob("*") if path.is_file() and kind in str(path)]
    assert paths, kind
    return paths


def untouched(bench: Bench) -> None:
    """Check that no command so far has opened the data folder."""
    assert not (bench.folder.parent / "data").exists()


def compact(bench: Bench) -> None:
    """Execute what is requested, as the service that leads does."""
    assert bench.scene is not None
    bench.scene.served.compact_requested()


def run(bench: Bench, topic: str) -> None:
    """Begin a run of a topic of the service in a process that never ends it."""
    assert bench.scene is not None
    scene = bench.scene
    scene.metadata.runs.claim(scene.topic(topic).id, "worker:4711:cafe", {}, 60_000)


ACTIONS: dict[str, Callable[..., None]] = {
    action.__name__: action for action in (write, claim, lose, damage, untouched, compact, run)
}
