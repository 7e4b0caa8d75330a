"""`make demo`: the main job on real input, from a git history to a verified compacted view.

The repository's own first-parent history is a changelog: key = path, value = "mode blob-id", a deleted path = a
tombstone. Imported, compacted and read with read-compacted on, it must be exactly what `git ls-tree -r HEAD` says.
Every step is one that a user can type: the commands are printed as they are run.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from api.cli.talk import number, say

TOPIC = "git-history"
_DELETED_MODE = "000000"


class DemoFailed(Exception):
    """A step did not do what it should; the message says which."""


def main() -> int:
    """Run the demo in the repository of the current directory; the exit code."""
    try:
        run(Path.cwd())
    except DemoFailed as error:
        say(f"demo: {error}")
        return 1
    return 0


def run(repository: Path) -> None:
    """Import, compact, read, compare. Raises DemoFailed."""
    data = Path(os.environ.get("COMPACTOR_DATA", ".compactor"))
    head = _git(repository, "rev-parse", "--short", "HEAD").decode().strip()
    topic = f"{TOPIC}-{head}-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="compactor-demo-") as folder:
        changes = Path(folder) / "history.jsonl"
        count = write_changelog(repository, changes)
        say(f"1. The git history of this repository up to {head} has {number(count)} changes of files.\n")
        say("2. Import it as a changelog: key = path, value = mode and blob id, deleted = tombstone.")
        _compactor("import", topic, str(changes))
    say("\n3. Compact it: two phases on Spark, the newest message of each path goes to a compacted ledger.")
    _compactor("compact-topic", "--topic", topic)
    say("\n4. Read it with read-compacted on, and compare with git ls-tree -r HEAD.")
    compacted = _compactor("read", topic, "--read-compacted")
    view = {line["key"]: line["value"] for line in map(json.loads, compacted.splitlines())}
    tree = read_tree(repository)
    if view != tree:
        wrong = sorted(path for path in view.keys() | tree.keys() if view.get(path) != tree.get(path))
        raise DemoFailed(f"the compacted view differs from git ls-tree in {len(wrong)} paths, first {wrong[:3]}")
    say(f"   Identical: {number(len(view))} paths of {number(count)} changes.\n")
    say(f"The ledgers lie in {data.absolute()}/objects (plain Parquet), the metadata in {data.absolute()}/metadata.db.")
    compactor = shlex.quote(os.path.relpath(Path(sys.executable).parent / "compactor"))
    say("Try next:")
    say(f"   {compactor} topics stats {topic}")
    say(f"   {compactor} read {topic} --read-compacted --limit 5 --output table")
    say(f"   {compactor} --help")


def write_changelog(repository: Path, target: Path) -> int:
    """Write the first-parent history as JSON Lines, oldest first; the number of changes."""
    count = 0
    with target.open("w", encoding="utf-8") as lines:
        for change in _changes(repository):
            lines.write(json.dumps(change) + "\n")
            count += 1
    if not count:
        raise DemoFailed("the git history here has no changes: run it in a clone with at least one commit")
    return count


def _changes(repository: Path) -> Iterator[dict[str, object]]:
    """The changes of `git log --raw`: `:old-mode new-mode old-blob new-blob status NUL path NUL`, after each commit."""
    log = _git(
        repository,
        *("log", "--first-parent", "--diff-merges=first-parent", "--reverse", "--root", "--raw", "--no-renames"),
        *("--no-abbrev", "-z", "--format=%x01%H %ct"),
    )
    for commit in log.split(b"\x01")[1:]:
        header, *fields = commit.split(b"\0")
        commit_id, seconds = header.decode().split()
        fields = [field.lstrip(b"\n") for field in fields if field.strip(b"\n")]
        for described, path in zip(fields[0::2], fields[1::2], strict=True):
            _, mode, _, blob, _ = described[1:].decode().split(" ")
            yield {
                "key": path.decode(),
                "value": None if mode == _DELETED_MODE else f"{mode} {blob}",
                "event_time": int(seconds) * 1000,
                "properties": {"commit": commit_id},
            }


def read_tree(repository: Path) -> dict[str, str]:
    """The oracle: path → "mode blob-id" of HEAD."""
    tree = {}
    for entry in _git(repository, "ls-tree", "-r", "-z", "HEAD").split(b"\0"):
        if entry:
            described, path = entry.split(b"\t", 1)
            mode, _, blob = described.decode().split(" ")
            tree[path.decode()] = f"{mode} {blob}"
    return tree


def _git(repository: Path, *arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, check=False)  # noqa: S603, S607
    except OSError as error:
        raise DemoFailed(f"git cannot be run ({error.strerror}): install git") from error
    if done.returncode:
        raise DemoFailed(
            f"git {arguments[0]} failed ({done.stderr.decode().strip()}): run it in a clone of the repository"
        )
    return done.stdout


def _compactor(*arguments: str) -> str:
    """Run a command as a user would; what it wrote to stdout."""
    say(f"   $ compactor {shlex.join(arguments)}")
    command = [sys.executable, "-m", "api.cli.main", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, encoding="utf-8")  # noqa: S603
    if done.returncode:
        raise DemoFailed(f"compactor {arguments[0]} ended with exit code {done.returncode}")
    if arguments[0] != "read":
        sys.stdout.write(done.stdout)
        sys.stdout.flush()
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
