"""`python -m tests.clients.behaviour`: ask a real Pulsar broker all probes; print its answers, or keep them.

Needs Maven, a JDK of version 17 or newer and 1.5 GB of memory. `--rounds` asks several times: answers must be the same
each time. `--at URL BROKER_URL` asks a broker or a service that runs already, with tokens of `endpoint.SECRET_KEY`.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import PeerFailed
from tests.clients.behaviour.endpoint import Endpoint
from tests.clients.behaviour.real_broker import real_broker
from tests.clients.behaviour.table import PROBES, RECORDED, answers


def main() -> int:
    """Return the exit code: 1 if an answer changed between rounds, or a probe failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.behaviour", description="Ask a broker all probes.")
    parser.add_argument("--record", action="store_true", help=f"write the answers to {RECORDED.name}")
    parser.add_argument("--rounds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--at", nargs=2, metavar=("URL", "BROKER_URL"), help="a broker that runs already")
    parser.add_argument("names", nargs="*", help="probes; default: all")
    options = parser.parse_args()
    if options.record and (options.at or options.names):
        parser.error("--record starts a broker of its own and asks everything")
    with ExitStack() as stack:
        if options.at:
            version, endpoint = "", Endpoint(*options.at)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="behaviour-")))
            try:
                version, endpoint = stack.enter_context(real_broker(folder))
            except PeerFailed as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
        rounds = [answers(endpoint, options.names or PROBES) for _ in range(options.rounds)]
    unsteady = [name for name in rounds[0] if any(each[name] != rounds[0][name] for each in rounds)]
    failed = [name for name, answer in rounds[0].items() if isinstance(answer, dict) and "exception" in answer]
    for name in dict.fromkeys(unsteady + failed):
        print(f"{name}: {[each[name] for each in rounds]}"[:1000], file=sys.stderr)
    if unsteady or failed:
        return 1
    if options.record:
        RECORDED.write_text(_document(version, rounds[0]))
    else:
        print(_document(version, rounds[0]), end="")
    return 0


def _document(version: str, recorded: Mapping[str, Any]) -> str:
    """One probe a line, so that a change is seen in a diff."""
    lines = [f"    {json.dumps(name)}: {json.dumps(answer)}" for name, answer in sorted(recorded.items())]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    head = f'{{\n  "version": {json.dumps(version)},\n  "date": "{today}",\n  "answers": {{\n'
    return head + ",\n".join(lines) + "\n  }\n}\n"


if __name__ == "__main__":
    sys.exit(main())
