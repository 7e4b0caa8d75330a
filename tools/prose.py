"""The check of the project's English, with a ratchet: counts per folder may fall, never rise.

It counts three things in Python files: docstrings of modules, classes and functions that begin with a word of `STARTS`,
names that are bound although they are participles or pronouns (`NAMES`), and phrases of `WORDS` anywhere in the text.
In Markdown files it counts phrases alone. docs/architecture.md states the rules; `tools/prose.json` holds the limits.

    python tools/prose.py                 compare with the limits; print each folder beyond one, and exit with 1
    python tools/prose.py --list FOLDER   print each place in a folder or file
    python tools/prose.py --lower         lower the limits to the counts of today
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIMITS = ROOT / "tools" / "prose.json"
FOLDERS = ("api", "compactor", "storage", "migrations", "tests", "benchmarks", "tools", "docs")
STARTS = frozenset(("What", "Whether", "Who", "By", "Of", "As", "How", "Where", "Why", "Which"))
_PARTICIPLES = "found wanted given wish told said gone mine ours there one made asked shown going most here"
NAMES = frozenset(_PARTICIPLES.split())
WORDS = re.compile(
    r"\b(whoever|anew|nobody|told|given\s+up|let\s+go|come\s+again|put\s+aside|sent\s+away|taken\s+up|at\s+hand"
    r"|what\s+is\s+to\s+be)\b",
    re.IGNORECASE,
)
EXEMPT = ("tools/prose.py", "CHANGELOG.md")
"""Files that quote the words."""


class Place(NamedTuple):
    """A violation: its kind (`starts`, `names` or `words`), its file, its line, and the text."""

    kind: str
    path: str
    line: int
    text: str


def places(path: Path) -> Iterator[Place]:
    """Yield the violations of one file."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            yield from _starts(name, node)
            yield from _names(name, node)
    for match in WORDS.finditer(text):
        yield Place("words", name, text.count("\n", 0, match.start()) + 1, match.group())


def _starts(path: str, node: ast.AST) -> Iterator[Place]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        start = re.match(r"\w*", ast.get_docstring(node) or "")
        if start and start.group() in STARTS:
            yield Place("starts", path, node.body[0].lineno, start.group())


def _names(path: str, node: ast.AST) -> Iterator[Place]:
    """Yield the banned names that `node` binds: variables, parameters, attributes, aliases and captures."""
    names: tuple[str | None, ...] = ()
    match node:
        case ast.Name(name, ast.Store()) | ast.Attribute(_, name, ast.Store()) | ast.arg(name):
            names = (name,)
        case ast.ExceptHandler(_, name) | ast.MatchAs(_, name) | ast.MatchStar(name) | ast.alias(_, name):
            names = (name,)
        case ast.FunctionDef(name) | ast.AsyncFunctionDef(name):
            names = (name,)
    for name in names:
        if name in NAMES:
            yield Place("names", path, getattr(node, "lineno", 1), name)


def files(root: Path) -> Iterator[Path]:
    """Yield the Python and Markdown files below `root`, or `root` itself, without those that a tool generates."""
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        generated = path.name.endswith("_pb2.py")
        if path.suffix in {".py", ".md"} and not generated and path.relative_to(ROOT).as_posix() not in EXEMPT:
            yield path


def counts() -> dict[str, Counter[str]]:
    """Return, per folder of `FOLDERS`, the number of violations by kind."""
    return {top: Counter(place.kind for path in files(ROOT / top) for place in places(path)) for top in FOLDERS}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", metavar="FOLDER", type=Path, help="print each place in a folder or file")
    parser.add_argument("--lower", action="store_true", help="lower the limits to the counts of today")
    arguments = parser.parse_args()
    if arguments.list is not None:
        for path in files(arguments.list.resolve()):
            for place in sorted(places(path), key=lambda place: place.line):
                print(f"{place.path}:{place.line}: {place.kind}: {place.text}")
        return 0
    limits: dict[str, dict[str, int]] = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    current = counts()
    if arguments.lower:
        lowered = {
            folder: {kind: min(number, limits.get(folder, {}).get(kind, number)) for kind, number in counter.items()}
            for folder, counter in current.items()
        }
        LIMITS.write_text(json.dumps(lowered, indent=1, sort_keys=True) + "\n")
        return 0
    beyond = [
        f"{folder}: {number} {kind}, and {limits.get(folder, {}).get(kind, 0)} are allowed: "
        f"python tools/prose.py --list {folder}"
        for folder, counter in sorted(current.items())
        for kind, number in sorted(counter.items())
        if number > limits.get(folder, {}).get(kind, 0)
    ]
    print("\n".join(beyond), end="\n" if beyond else "", file=sys.stderr)
    return bool(beyond)


if __name__ == "__main__":
    sys.exit(main())
