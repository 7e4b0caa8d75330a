"""The check of commit subjects: those of the commits that a change adds.

A subject has an area, at most 72 characters and one topic in the imperative ("gateway: split Session from Connection");
the reason stands in the body. The commits of a change are those that the branch it goes to (`origin/main`, or the first
argument) does not have; without that branch, as in a copy without history, nothing is checked.
"""

from __future__ import annotations

import re
import subprocess
import sys

LONGEST = 72
FORM = re.compile(r"[a-z][a-z0-9 ,/_.-]*: \S.*[^.\s]")


def faults(subject: str) -> list[str]:
    """Return the rules that a subject breaks."""
    broken = []
    if len(subject) > LONGEST:
        broken.append(f"has {len(subject)} characters; at most {LONGEST} are allowed")
    if not FORM.fullmatch(subject):
        broken.append('needs the form "area: imperative", without a full stop')
    return broken


def main() -> int:
    branch = sys.argv[1] if len(sys.argv) > 1 else "origin/main"
    log = subprocess.run(
        ["git", "log", "--no-merges", "--format=%h %s", f"{branch}..HEAD"], capture_output=True, text=True, check=False
    )
    lines = [line.partition(" ") for line in log.stdout.splitlines()]
    broken = [f"commit {commit}: {fault}: {subject}" for commit, _, subject in lines for fault in faults(subject)]
    print("\n".join(broken), end="\n" if broken else "", file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
