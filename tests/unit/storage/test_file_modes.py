"""Messages are their owner's: modes of what is made, under the usual umask, and in folders that are there already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.components import open_environment
from api.server import check_settings_and_create_log_directory, exposed_folder_warnings
from api.settings.settings import Settings
from storage.model import TopicName
from tests.entries import produce, single
from tests.workbench import ensure_topic


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def filled(settings: Settings) -> None:
    """A topic with a message, in the log and in the store."""
    check_settings_and_create_log_directory(settings)
    with open_environment(settings) as environment:
        topic = ensure_topic(environment, TopicName.parse("t"))
        produce(topic, [single(b"k", b"v")])
        topic.log_manager().roll(topic.record, 0)
        assert list(topic.log_manager().seal(topic.record))
        environment.store.put("a/b", b"x")
        produce(topic, [single(b"k", b"w")])


def modes(folder: Path) -> dict[str, str]:
    """Return the modes of all files and folders by path."""
    return {str(path.relative_to(folder)): oct(path.stat().st_mode & 0o777) for path in sorted(folder.rglob("*"))} | {
        ".": oct(folder.stat().st_mode & 0o777)
    }


def test_what_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    settings = Settings(data=str(tmp_path / "deep" / "data"), spark_master="in-process")
    filled(settings)
    modes_by_path = modes(settings.data_directory)
    folders = {name for name in modes_by_path if (settings.data_directory / name).is_dir()}
    assert {modes_by_path[name] for name in folders} == {"0o700"}
    assert {modes_by_path[name] for name in modes_by_path.keys() - folders} == {"0o600"}, modes_by_path
    assert {"metadata.db", "log/log.uid", "objects/a/b"} <= modes_by_path.keys()
    assert exposed_folder_warnings(settings) == []
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o755, "no folder of ours"


def test_the_write_ahead_log_of_the_database_is_private_too(tmp_path: Path) -> None:
    with open_environment(Settings(data=str(tmp_path / "data"))) as environment:
        ensure_topic(environment, TopicName.parse("t"))
        modes_by_path = modes(tmp_path / "data")
    of_database = {name: mode for name, mode in modes_by_path.items() if name.startswith("metadata.db")}
    assert of_database.keys() >= {"metadata.db", "metadata.db-shm", "metadata.db-wal"}
    assert set(of_database.values()) == {"0o600"}


@pytest.mark.parametrize(("mode", "file", "exposed"), [(0o755, "0o644", True), (0o770, "0o640", False)])
def test_a_folder_that_is_there_keeps_its_mode_and_what_is_made_in_it_is_like_it(
    tmp_path: Path, mode: int, file: str, exposed: bool
) -> None:
    """The folder may be of an older version, or of an operator who shares it with a group."""
    settings = Settings(data=str(tmp_path / "data"), spark_master="in-process")
    folders = [settings.data_directory / name for name in ("", "log", "objects")]
    for folder in folders:
        folder.mkdir()
        folder.chmod(mode)
    filled(settings)
    assert {folder.stat().st_mode & 0o777 for folder in folders} == {mode}
    modes_by_path = modes(settings.data_directory)
    assert modes_by_path["objects/a"] == oct(mode & ~0o022)
    assert {modes_by_path["log/log.uid"], modes_by_path["objects/a/b"]} == {file}
    assert modes_by_path["metadata.db"] == "0o600"
    answer = exposed_folder_warnings(settings)
    assert ([f"chmod 700 {folder}" in line for folder, line in zip(sorted(folders), answer, strict=False)]) == (
        [True] * 3 if exposed else []
    )
