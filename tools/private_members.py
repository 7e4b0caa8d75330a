"""The check that tests use the public interface: no test reads, replaces or imports a private name of the product.

A private name has a single underscore, and the product's code uses it as its own: a function, class, attribute or
variable. Other packages' private names do not count, nor does what a test reaches through `self` or `cls`. Names in
strings count where a call such as `monkeypatch.setattr` takes them. A part of the product that deserves a test of its
own is public.

`ALLOWED` lists the exceptions with their number of places, which must be exact, so that it only falls.

    python tools/private_members.py     print each place beyond the list, and exit with 1
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("api", "compactor", "migrations", "storage")
PATCHES = frozenset(("setattr", "getattr", "hasattr", "delattr", "object", "patch"))
"""The last names of calls whose string arguments name members."""
BOUND = re.compile(r"(?:(?<![\w.\"'])|(?<=\bself\.)|(?<=\bcls\.))_[a-zA-Z]\w*")
"""A private name in the product that is its own: bare, or an attribute of `self` or `cls`."""
USE = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-zA-Z]|[\"'.]_[a-zA-Z]|\bimport\b.*\b_|^    _\w+,$", re.MULTILINE)
"""A file without this uses no private name; it is not parsed."""
ALLOWED = {
    "tests/faults/simulation/bugs.py": 8,  # the seeded bugs, which replace parts of the product
    "tests/faults/test_publishers.py": 1,  # a seeded bug, too
}


def is_private(name: str) -> bool:
    return re.match(r"_[^_]", name) is not None


def used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each use of a private name in a test."""
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Attribute(ast.Name("self" | "cls") | ast.Call(ast.Name("super"))):
                pass
            case ast.Attribute(_, name):
                names = [name]
            case ast.ImportFrom(str(module), aliases) if module.split(".")[0] in PRODUCT:
                names = [alias.name for alias in aliases]
            case ast.Call(ast.Name(function) | ast.Attribute(_, function), arguments) if function in PATCHES:
                values = [item.value for item in arguments if isinstance(item, ast.Constant)]
                names = [value.rpartition(".")[2] for value in values if isinstance(value, str)]
        yield from ((getattr(node, "lineno", 0), name) for name in names if is_private(name))


def texts(folder: str) -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def main() -> int:
    private = {name for folder in PRODUCT for _, text in texts(folder) for name in BOUND.findall(text)}
    errors = []
    for path, text in texts("tests"):
        places = [(line, name) for line, name in used(ast.parse(text)) if name in private] if USE.search(text) else []
        if len(places) > ALLOWED.get(path, 0):
            errors += [f"{path}:{line}: a private name of the product: {name}" for line, name in places]
        elif len(places) < ALLOWED.get(path, 0):
            errors.append(f"{path}: {len(places)} places remain: lower its number in tools/private_members.py")
    print("\n".join(errors), end="\n" if errors else "", file=sys.stderr)
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main())
