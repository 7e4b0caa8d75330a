"""`python -m tests.clients.rest.recorded --write`: record the answers of all tables; without it, list what differs.

A change of `recorded.json` is a change that a caller sees: say so in the commit.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.clients.rest.recorded.replay import RECORDED, SCENES, answers, document


def main() -> int:
    """Return the exit code: 1 if an answer differs and is not written."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.rest.recorded", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {RECORDED.name}")
    write = parser.parse_args().write
    before = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    recorded = {}
    for scene in SCENES:
        with tempfile.TemporaryDirectory(prefix="recorded-") as folder:
            recorded[scene] = answers(scene, Path(folder))
    changed = [scene for scene in SCENES if before.get(scene) != recorded[scene]]
    for scene in changed:
        known = [json.dumps(line) for line in before.get(scene, [])]
        for line in recorded[scene]:
            if json.dumps(line) not in known:
                print(f"{scene}: {json.dumps(line, ensure_ascii=False)[:400]}", file=sys.stderr)
    if write:
        RECORDED.write_text(document(recorded))
        return 0
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
