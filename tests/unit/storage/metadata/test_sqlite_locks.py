"""A SQLite database that several processes use at once: its write-ahead log stays while one of them is open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from storage.metadata.store import MetadataStore
from storage.model import TopicName
from tests.clocks import ManualClock

_READ_AND_CLOSE = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM topics").fetchone()[0])
connection.close()
"""


def test_another_process_keeps_the_log_of_a_database_that_was_upgraded_in_an_existing_file(tmp_path: Path) -> None:
    """The file exists without tables after another process began the same upgrade. The last process that closes the
    database deletes its log: each that has it open must hold SQLite's lock on it."""
    file = tmp_path / "metadata.db"
    file.touch()
    store = MetadataStore(f"sqlite:///{file}", ManualClock())
    store.upgrade()
    assert _topics_of_another_process(file) == 0
    store.tenancy.ensure_topic(TopicName.parse("t"))
    assert _topics_of_another_process(file) == 1
    store.close()


def _topics_of_another_process(file: Path) -> int:
    command = [sys.executable, "-c", _READ_AND_CLOSE, str(file)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)
