"""Random histories of topics over two services, against a model: `python -m tests.faults.random_histories FOLDER`.

Two services, one PostgreSQL behind links that are cut, one S3 server behind proxies that fail, disks that fail.
Producers, consumers and readers work with Pulsar's Python client, with a client of the raw protocol and over REST,
operators over REST, on topics with different policies (histories/topics.py), while services are killed, stopped beyond
every lease, and cut off (histories/disturbing.py). After each round all is calm, and every topic is compared with what
was acknowledged (histories/audit.py, histories/history.py); in the end garbage collection must leave exactly the
referenced objects. From the seed follows also whether the services share one log directory.

The seed decides what is tried; how threads and processes take turns it does not, so the same seed is a similar
history, not the same. The folder is kept if something does not hold: logs of services, `violations.txt`. All servers
listen on loopback; only processes that were started here are ended, by their pids. Exit code 1: something did not hold.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tests.faults.engine.report import line_of
from tests.faults.histories.rounds import ROUND_SECONDS, run
from tests.faults.histories.services import servers


def main() -> int:
    """Return 0 if everything held."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.random_histories", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("folder", type=Path, help="an empty one, or one to be created; removed if everything holds")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long everything works and fails")
    parser.add_argument("--round", type=float, default=ROUND_SECONDS, help="seconds from one check to the next")
    parser.add_argument("--seed", type=int, default=0, help="the seed of all chance")
    arguments = parser.parse_args()
    with servers(arguments.folder / "servers") as (postgres, s3):
        result = run(arguments.folder / "run", postgres, s3, arguments.seconds, arguments.seed, arguments.round)
    print(line_of(result.figures))
    if result.violations:
        print(f"seed {arguments.seed}: {len(result.violations)} violations; logs and violations: {arguments.folder}")
        return 1
    shutil.rmtree(arguments.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
