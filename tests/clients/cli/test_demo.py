"""The demo's changelog against git itself, on every kind of repository that somebody may run it in.

`tests/docs/test_wheel.py` runs the whole demo.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.tool_scripts import tool

demo = tool("demo")
IDENTITY = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
    "GIT_AUTHOR_DATE": "1600000000 +0000",
}


class Repository:
    """A git repository of a test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments: str) -> str:
        result = subprocess.run(["git", *arguments], cwd=self.path, capture_output=True, check=True)
        return result.stdout.decode(errors="replace")

    def commit(self, files: dict[str | bytes, str | None]) -> None:
        """Write (or with None delete) files and commit."""
        for name, content in files.items():
            path = os.path.join(os.fsencode(self.path), os.fsencode(name))
            if content is None:
                os.unlink(path)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "a\n\n:100644 100644 0 0 A")

    def changelog(self, folder: Path) -> tuple[list[dict[str, Any]], str]:
        """The changes that the demo writes, and how their keys are encoded."""
        history = demo.read_history(self.path)
        encoding = demo.key_encoding(history)
        file = folder / "changes.jsonl"
        count = demo.write_changelog(history, encoding, file)
        changes = [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line]
        assert len(changes) == count
        return changes, encoding

    def folded(self, folder: Path) -> dict[str, str]:
        """Last write wins over the changelog; asserts that this is HEAD's tree."""
        changes, encoding = self.changelog(folder)
        view: dict[str, str] = {}
        for change in changes:
            if change["value"] is None:
                del view[change["key"]]
            else:
                view[change["key"]] = change["value"]
        assert view == demo.expected_view(self.path, encoding)
        return view


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    for name, value in IDENTITY.items():
        monkeypatch.setenv(name, value)
    return Repository(tmp_path / "repository")


def test_changes_are_puts_and_tombstones_in_order(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a": "1", "sub/b": "1"})
    repository.commit({"a": "2"})
    repository.commit({"a": None})
    changes, encoding = repository.changelog(tmp_path)
    assert encoding == "utf8"
    assert [change["key"] for change in changes] == ["a", "sub/b", "a", "a"]
    assert [change["value"] is None for change in changes] == [False, False, False, True]
    assert re.fullmatch("100644 [0-9a-f]{40}", changes[0]["value"])
    assert changes[0]["event_time"] == 1_700_000_000_000
    assert changes[3]["properties"] == {"commit": repository.git("rev-parse", "HEAD").strip()}
    assert list(repository.folded(tmp_path)) == ["sub/b"]


def test_renames_modes_links_and_types(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a": "same content", "b": "1", "folder": "a file first"})
    repository.git("mv", "a", "moved")
    (repository.path / "b").chmod(0o755)
    (repository.path / "link").symlink_to("b")
    (repository.path / "folder").unlink()
    repository.commit({"folder/inside": "a folder now"})
    view = repository.folded(tmp_path)
    assert sorted(view) == ["b", "folder/inside", "link", "moved"]
    assert view["b"].startswith("100755 ")
    assert view["link"].startswith("120000 ")


def test_merges_count_as_one_step(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"a": "1", "b": "1"})
    repository.git("checkout", "-q", "-b", "side")
    repository.commit({"b": None, "c": "1"})
    repository.commit({"c": "2"})
    repository.git("checkout", "-q", "main")
    repository.commit({"a": "2"})
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    changes, _ = repository.changelog(tmp_path)
    assert [change["key"] for change in changes] == ["a", "b", "a", "b", "c"]
    assert sorted(repository.folded(tmp_path)) == ["a", "c"]


@pytest.mark.parametrize(
    "name", ["with space", "ключ", "line\nend", "\x01" + "0" * 40 + " 1", ":100644 100644 0 0 A", '"q"', "-dash", "\n"]
)
def test_odd_file_names(repository: Repository, tmp_path: Path, name: str) -> None:
    repository.commit({"plain": "1", name: "1"})
    repository.commit({name: "2"})
    assert sorted(repository.folded(tmp_path)) == sorted(["plain", name])


def test_names_that_are_not_utf8_travel_as_base64(repository: Repository, tmp_path: Path) -> None:
    repository.commit({b"caf\xe9": "1", "plain": "1"})
    view = repository.folded(tmp_path)
    assert sorted(base64.b64decode(key) for key in view) == [b"caf\xe9", b"plain"]


def test_submodules(repository: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.commit({"inside": "1"})
    repository.commit({"a": "1"})
    # As `git submodule add` leaves it, which not every git has: it is a script of its own.
    head = other.git("rev-parse", "HEAD").strip()
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{head},module")
    repository.git("commit", "-q", "-m", "a module")
    view = repository.folded(tmp_path)
    assert view["module"].startswith("160000 ")
    assert "module/inside" not in view


def test_a_shallow_clone_begins_with_a_whole_tree(repository: Repository, tmp_path: Path) -> None:
    for content in "123":
        repository.commit({content: content, "changing": content})
    clone = tmp_path / "clone"
    repository.git("clone", "-q", "--depth", "2", repository.path.as_uri(), str(clone))
    shallow = object.__new__(Repository)
    shallow.path = clone
    assert len(shallow.changelog(tmp_path)[0]) == 5
    assert sorted(shallow.folded(tmp_path)) == ["1", "2", "3", "changing"]


def test_a_users_own_git_settings_do_not_matter(repository: Repository, tmp_path: Path) -> None:
    for setting, value in (("diff.renames", "copies"), ("diff.relative", "true"), ("log.showSignature", "true")):
        repository.git("config", setting, value)
    for setting, value in (("color.ui", "always"), ("core.quotePath", "true"), ("log.decorate", "full")):
        repository.git("config", setting, value)
    repository.commit({"sub/a": "1", "b": "1"})
    repository.git("mv", "b", "ü")
    repository.commit({})
    repository.path = repository.path / "sub"
    assert sorted(repository.folded(tmp_path)) == ["sub/a", "ü"]


def fails(repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the demo ends with."""
    monkeypatch.chdir(repository)
    assert demo.main() == 1
    line = capsys.readouterr().err
    assert line.startswith("demo: ")
    assert len(line.splitlines()) == 1
    return line


def test_an_empty_repository(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "has no commits" in fails(repository.path, monkeypatch, capsys)


def test_a_history_without_files(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.commit({})
    assert "changes no file" in fails(repository.path, monkeypatch, capsys)


def test_no_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "empty").mkdir()
    assert "not a git repository" in fails(tmp_path / "empty", monkeypatch, capsys)


def test_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install git" in fails(tmp_path, monkeypatch, capsys)
