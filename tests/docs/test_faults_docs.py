"""docs/faults.md lists every step at which tests kill, in the code's words, with every scenario that dies there."""

from __future__ import annotations

import re
from pathlib import Path

from storage.failpoints import Failpoint
from tests.faults.test_crashes import CRASHES

PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| (.*?) \| (.*?) \|$", re.MULTILINE)


def test_the_table_is_that_of_the_code() -> None:
    listed = {name: (happened, stores) for name, happened, stores, _ in ROW.findall(PAGE)}
    stores = {None: "local, S3", "file": "local", "s3": "S3"}
    assert listed == {step.name: (step.happened, stores[step.store]) for step in Failpoint}


def test_the_table_names_every_case() -> None:
    listed = {(name, part) for name, _, _, cases in ROW.findall(PAGE) for part in cases.split(", ")}
    created = {(crash.step.name, crash.scenario + ("" if crash.nth == 1 else f" ({crash.nth}.)")) for crash in CRASHES}
    assert listed == created
