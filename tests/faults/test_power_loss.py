"""A power loss at any moment of a local store's life: what was acknowledged is there, what was not is whole or not.

And the other way round: with one kind of fsync taken out, the same check finds something lost, so that it cannot pass
by looking at nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from storage.failpoints import Failpoint
from storage.objects.interface import StoreLocation
from storage.objects.local import LocalStore
from storage.objects.registry import open_store
from tests.failpoint_listeners import observed
from tests.faults.power_loss import PowerLoss
from tests.faults.stages import FIRST, SECOND, compact, import_table
from tests.workbench import Workbench, compacted_only, raw

OBJECTS = {f"topics/{folder}/{name}": f"{folder} {name}".encode() * 100 for folder in "ab" for name in ("1", "2")}


def damaged(image: Path, acknowledged: dict[str, bytes]) -> list[str]:
    """Objects that were acknowledged and are lost, and objects that are there and are not what was written."""
    remaining = LocalStore(image)
    contents = {info.name: remaining.get(info.name) for info in remaining.list()}
    lost = [name for name in acknowledged if name not in contents]
    return lost + [name for name, data in contents.items() if data != OBJECTS[name]]


def losses(folder: Path, loses: Callable[[os.stat_result], bool]) -> list[str]:
    """Write OBJECTS, with a power loss at every step of each and after each; everything that was found damaged."""
    root = folder / "objects"
    store = LocalStore(root)
    problems: list[str] = []
    images = count()
    with PowerLoss(root, loses) as power:
        acknowledged: dict[str, bytes] = {}

        def look(step: Failpoint | None) -> None:
            problems.extend(damaged(power.image(folder / f"image-{next(images)}"), acknowledged))

        with observed(look):
            for name, data in OBJECTS.items():
                with store.create(name) as writer:
                    writer.write(data)
                acknowledged[name] = data
                look(None)
    assert next(images) == len(OBJECTS) * 5
    return problems


def test_nothing_acknowledged_is_lost_and_nothing_is_half_there(tmp_path: Path) -> None:
    assert losses(tmp_path, lambda status: False) == []


def test_without_the_fsync_of_files_objects_are_damaged(tmp_path: Path) -> None:
    assert set(losses(tmp_path, lambda status: stat.S_ISREG(status.st_mode))) == set(OBJECTS)


def test_without_the_fsync_of_folders_objects_are_lost(tmp_path: Path) -> None:
    assert set(losses(tmp_path, lambda status: stat.S_ISDIR(status.st_mode))) == set(OBJECTS)


@pytest.mark.parametrize("level", ["objects", "objects/topics", "objects/topics/a"])
def test_without_the_fsync_of_one_folder_what_is_below_is_lost(tmp_path: Path, level: str) -> None:
    def is_level(status: os.stat_result) -> bool:
        path = tmp_path / level
        return path.exists() and os.path.samestat(status, path.stat())

    below = {name for name in OBJECTS if f"objects/{name}".startswith(f"{level}/")}
    assert set(losses(tmp_path, is_level)) == below


@pytest.mark.slow
def test_a_topic_outlives_a_power_loss_after_each_commit(tmp_path: Path) -> None:
    """All objects that a committed row names are durable before the commit."""
    images = count()
    with PowerLoss(tmp_path / "objects") as power:
        bench = Workbench.embedded(tmp_path)
        topic = bench.topic()

        def look(step: Failpoint) -> None:
            if step in (Failpoint.IMPORT_AFTER_COMMIT, Failpoint.PUBLISH_AFTER_COMMIT):
                image = power.image(tmp_path / f"image-{next(images)}")
                after = replace(bench, store=open_store(StoreLocation(image.as_uri())))
                assert raw(after.topic()) == raw(topic)
                assert compacted_only(after.topic()) == compacted_only(topic)

        with observed(look):
            import_table(bench, FIRST)
            compact(bench)
            import_table(bench, SECOND)
            compact(bench)
    assert next(images) == 4
    bench.metadata.close()
