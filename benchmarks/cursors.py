"""`python -m benchmarks cursors`: acknowledgements per second, in order and with a hole before each, by batch.

The database is SQLite on this disk, so a flush costs its fsync. The figure of interest is the ratio of many
acknowledgements per transaction to one each, in the same run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from storage.clock import SystemClock
from storage.cursor import Cursor
from storage.metadata.store import MetadataStore
from storage.model import LogPosition, MessageId, TopicName

SINGLE = 500
"""Number of acknowledgements with a transaction each, whose rate does not depend on their number."""


def run(acknowledgements: int, folder: str | None = None) -> list[tuple[str, int, float]]:
    """Return (name, acknowledgements, seconds) of each way."""
    results: list[tuple[str, int, float]] = []
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        metadata = MetadataStore(f"sqlite:///{Path(directory) / 'metadata.db'}", SystemClock())
        metadata.upgrade()
        topic = metadata.tenancy.ensure_topic(TopicName.parse("cursors"))
        for way, step, batch, count in (
            ("in order, a transaction each", 1, 1, min(SINGLE, acknowledgements)),
            ("in order, 1,000 a transaction", 1, 1000, acknowledgements),
            ("every second one, 1,000 a transaction", 2, 1000, acknowledgements),
        ):
            positions = [LogPosition(1 + step * n, MessageId(1, 1 + step * n)) for n in range(count)]
            name = f"cursor-{len(results)}"
            metadata.cursors.create(topic.id, name, LogPosition(0, MessageId(1, 0)) if step == 1 else None, {})
            cursor = Cursor(metadata, topic, name, lambda offset: None, lambda: 1 << 40)
            started = time.perf_counter()
            for number, position in enumerate(positions, 1):
                cursor.acknowledge(position)
                if number % batch == 0:
                    cursor.flush()
            cursor.close()
            results.append((way, count, time.perf_counter() - started))
        metadata.close()
    return results


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 whatever the speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cursors", description=__doc__.split("\n\n")[0])
    parser.add_argument("--acknowledgements", type=int, default=1_000_000)
    parser.add_argument("--folder", help="where the database is; default: the system's temporary folder")
    options = parser.parse_args(arguments)
    print("| how | acknowledgements | a second |\n|---|---|---|")
    for way, count, seconds in run(options.acknowledgements, options.folder):
        print(f"| {way} | {count:,} | {count / seconds:,.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
