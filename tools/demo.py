"""`make demo`: the main job on real input, from a git history to a verified compacted view.

The repository's own first-parent history is a changelog: a key is a path, its value "mode blob-id", and a deleted path
a tombstone. Imported, compacted and read with read-compacted on, the history must equal `git ls-tree -r HEAD`. Every
step is a command that a user can paste. It runs in the environment of the demo. Each demo creates its own topic, so the
demo can be repeated.

Any history works: merges, shallow clones, submodules, paths that are not UTF-8 (keys are then base64). Without git, a
repository or commits, and if a step fails, the demo prints one line and exits with 1.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from api.cli.kit.stderr import counted, say, size
from api.settings.settings import Settings

_DELETED_MODE = "000000"
_HEADER = b"\x01"


class DemoFailed(Exception):
    """A step failed; the message names it."""


def main() -> int:
    """Run the demo in the repository of the current directory; return the exit code."""
    try:
        run(Path.cwd())
    except DemoFailed as error:
        say(f"demo: {error}")
        return 1
    except KeyboardInterrupt:
        say("demo: interrupted")
        return 130
    return 0


def run(repository: Path) -> None:
    """Import, compact and read the history, and compare the result with the tree. Raises DemoFailed."""
    started = time.perf_counter()
    settings = Settings.load()
    head = find_head(repository)
    changes = _new_file(settings, f"git-history-{head[:8]}")
    history = read_history(repository)
    encoding = key_encoding(history)
    count = write_changelog(history, encoding, changes)
    topic = changes.stem
    keys = [] if encoding == "utf8" else ["--key-encoding", encoding]

    say(f"1. The git history of this repository, up to {head[:12]}, as a changelog:")
    say(f"   {counted(count, 'change')}, {size(changes.stat().st_size)} of JSON Lines in {_shown(changes)}, such as")
    say(f"   {_last_line(changes)}")
    say(f"\n2. Import it as the topic {topic}: the key is the path; a deleted path is a tombstone.")
    _compactor("import", topic, _shown(changes), *keys)
    say("\n3. Compact it: phase one finds the newest message of each key, phase two copies those.")
    say("   (Most of the time goes to starting Spark.)")
    _compactor("compact-topic", "--topic", topic, "--engine", "spark")
    say("\n4. Read it with read-compacted on, and compare with `git ls-tree -r HEAD`.")
    compacted = _compactor("read", topic, "--read-compacted", *keys)
    view = {line["key"]: line["value"] for line in map(json.loads, compacted.splitlines())}
    tree = expected_view(repository, encoding)
    if view != tree:
        wrong = sorted(path for path in view.keys() | tree.keys() if view.get(path) != tree.get(path))
        raise DemoFailed(f"the compacted view differs from git ls-tree in {len(wrong)} paths, first {wrong[:3]}")
    say(f"   Identical: {counted(len(view), 'path')} of {counted(count, 'change')}.")
    say(f"\nDone in {time.perf_counter() - started:.1f} s.")
    for line in _places(settings):
        say(line)
    say("Try next:")
    for command in (
        ["topics", "stats", topic],
        ["read", topic, "--read-compacted", "--limit", "5", "--output", "table", *keys],
        ["read", topic, "--limit", "5", *keys],
        ["--help"],
    ):
        say(f"   {_typed(*command)}")


def find_head(repository: Path) -> str:
    """Return the commit id of HEAD. Raises DemoFailed."""
    _git(repository, "rev-parse", "--git-dir")
    try:
        return _git(repository, "rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    except DemoFailed as error:
        raise DemoFailed("the git repository here has no commits: commit something, then run it again") from error


def read_history(repository: Path) -> bytes:
    """Return the output of `git log --raw`, oldest commit first.

    A commit is `\\x01commit seconds NUL`, then `:modes blobs status NUL path NUL` for each change. First-parent: the
    changes of a merge are one step. A shallow clone begins with its oldest commit, whole.
    """
    return _git(
        repository,
        *("-c", "log.showSignature=false", "log", "--first-parent", "-m", "--reverse", "--root", "--raw"),
        *("--no-renames", "--no-relative", "--no-ext-diff", "--ignore-submodules=none", "--no-abbrev", "--no-color"),
        *("-z", "--format=%x01%H %ct", "HEAD"),
    )


def key_encoding(history: bytes) -> str:
    """Return the encoding of this history's keys in JSON: `utf8`, or `base64` if a path is not UTF-8."""
    try:
        history.decode()
    except UnicodeDecodeError:
        return "base64"
    return "utf8"


def write_changelog(history: bytes, encoding: str, target: Path) -> int:
    """Write a history as JSON Lines, oldest change first, and return the number of changes. Raises DemoFailed for 0."""
    count = 0
    with target.open("w", encoding="utf-8") as lines:
        for change in _changes(history, encoding):
            lines.write(json.dumps(change, ensure_ascii=False) + "\n")
            count += 1
    if not count:
        raise DemoFailed("the git history here changes no file: commit one, then run it again")
    return count


def _changes(history: bytes, encoding: str) -> Iterator[dict[str, object]]:
    # A path may hold any byte but NUL. Only its position identifies it: it follows the description of its change.
    pieces = iter(history.split(b"\0"))
    commit, seconds = "", 0
    for piece in pieces:
        piece = piece.lstrip(b"\n")
        if piece.startswith(_HEADER):
            commit, time_of_commit = piece[1:].decode().split()
            seconds = int(time_of_commit)
        elif piece:
            _, mode, _, blob, _ = piece.removeprefix(b":").decode().split(" ")
            yield {
                "key": _key(next(pieces), encoding),
                "value": None if mode == _DELETED_MODE else f"{mode} {blob}",
                "event_time": seconds * 1000,
                "properties": {"commit": commit},
            }


def expected_view(repository: Path, encoding: str) -> dict[str, str]:
    """Return the expected view: the "mode blob-id" of each path in HEAD."""
    tree = {}
    for entry in _git(repository, "ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0"):
        if entry:
            described, path = entry.split(b"\t", 1)
            mode, _, blob = described.decode().split(" ")
            tree[_key(path, encoding)] = f"{mode} {blob}"
    return tree


def _key(path: bytes, encoding: str) -> str:
    return path.decode() if encoding == "utf8" else base64.b64encode(path).decode()


def _new_file(settings: Settings, stem: str) -> Path:
    """Create a new file, whose stem names the topic. It stays, so that the commands can be repeated."""
    folder = settings.make_data_directory() / "demo"
    folder.mkdir(exist_ok=True)
    for attempt in range(1, 1_000_000):
        file = folder / (f"{stem}.jsonl" if attempt == 1 else f"{stem}-{attempt}.jsonl")
        try:
            file.touch(exist_ok=False)
        except FileExistsError:
            continue
        return file
    raise DemoFailed(f"{folder} is full of demos: remove it")


def _last_line(file: Path) -> str:
    with file.open(encoding="utf-8") as lines:
        *_, last = lines
    return last.strip() if len(last) < 300 else last[:300] + "…"


def _places(settings: Settings) -> list[str]:
    objects = settings.store or f"{settings.data_directory / 'objects'} (plain Parquet)"
    database = "the database of COMPACTOR_DATABASE" if settings.database else settings.data_directory / "metadata.db"
    log = settings.data_directory / "spark.log"
    return [f"Ledgers:     {objects}", f"Metadata:    {database}", f"Spark's log: {log}"]


def _git(repository: Path, *arguments: str) -> bytes:
    try:
        result = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, check=False)
    except OSError as error:
        raise DemoFailed(f"git cannot be run ({error.strerror}): install git") from error
    if result.returncode:
        reason = (result.stderr.decode(errors="replace").strip().splitlines() or ["without a reason"])[0]
        raise DemoFailed(f"git failed ({reason}): run the demo in a clone of the repository")
    return result.stdout


def _compactor(*arguments: str) -> str:
    """Run a command as a user would, and show its stderr; return its stdout."""
    say(f"   $ {_typed(*arguments)}")
    command = [sys.executable, "-m", "api.cli.main", *arguments]
    result = subprocess.run(command, capture_output=True, check=False, encoding="utf-8")
    data = "" if arguments[0] == "read" else result.stdout
    for line in (result.stderr + data).splitlines():
        say(f"   {line}")
    if result.returncode:
        raise DemoFailed(f"compactor {arguments[0]} ended with exit code {result.returncode}; see above")
    return result.stdout


def _typed(*arguments: str) -> str:
    """Return a command that can be pasted in the current directory."""
    script = Path(sys.executable).parent / "compactor"
    program = _shown(script) if script.exists() else f"{_shown(Path(sys.executable))} -m api.cli.main"
    return f"{program} {shlex.join(arguments)}"


def _shown(path: Path) -> str:
    """Return a path, relative to the current directory if it is inside."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


if __name__ == "__main__":
    sys.exit(main())
