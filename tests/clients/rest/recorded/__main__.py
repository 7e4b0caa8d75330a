"""`python -m tests.clients.rest.recorded --write`: record the answers of all tables; without it, list what differs.

A change of `recorded.json` is a change that a caller sees: say so in the commit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.clients.rest.recorded.replay import RECORDED, SCENES, answers, document


def record(module: str, file: Path, tables: Sequence[str], replay: Callable[[str, Path], list[list[Any]]]) -> int:
    """Replay all tables, list what differs from the file, and write it if the command line says so.

    Return the exit code: 1 if something differs and is not written.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--write", action="store_true", help=f"write {file.name}")
    write = parser.parse_args().write
    before = json.loads(file.read_text()) if file.exists() else {}
    after = {}
    for table in tables:
        with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
            after[table] = replay(table, Path(folder))
    for table in tables:
        lines = [json.dumps(line) for line in before.get(table, [])]
        for line in after[table]:
            if json.dumps(line) not in lines:
                print(f"{table}: {json.dumps(line, ensure_ascii=False)[:1000]}", file=sys.stderr)
    if write:
        file.write_text(document(after))
    return 0 if write or before == after else 1


if __name__ == "__main__":
    sys.exit(record("tests.clients.rest.recorded", RECORDED, SCENES, answers))
