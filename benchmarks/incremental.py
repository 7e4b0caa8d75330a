"""`python -m benchmarks.incremental`: runs on a compacted topic with few new messages, beside the full run.

The base has every key once. Then, for each share, new messages of uniform keys are appended and compacted, run after
run on the same topic, so that parts collect deleted rows and index levels merge as in production.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from statistics import median

from benchmarks.bench_session import say, session
from benchmarks.data import Shape
from storage.model import TopicName
from tests.workbench import ensure_topic

GOALS = {"bytes": 0.05, "time": 0.25}
"""Maximum ratios to the full run, at 1 % new messages (issue 4)."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return 0 whatever the speed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.incremental", description=__doc__.split("\n\n")[0])
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--payload", type=int, default=100)
    parser.add_argument("--dirt", default="0.001,0.01,0.1", help="shares of new messages; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each share")
    parser.add_argument("--folder", help="where to work; default: the system's temporary folder")
    options = parser.parse_args(arguments)
    base = Shape(options.keys, options.payload, options.keys, "each")
    print(f"### {options.keys:,} keys of {options.payload} bytes, then uniform updates\n")
    print("| run | time, s (min – max) | of full | bytes written | of full | index records | levels | parts |")
    print("|---|---|---|---|---|---|---|---|")
    with session(options.folder) as bench:
        environment = bench.environment
        topic = ensure_topic(environment, TopicName.parse("incremental"))
        bench.append(topic, base)
        full = bench.compact(topic)
        print(f"| full | {full['seconds']:.2f} | 1 | {full['bytes_written']:,} | 1 | | 1 | {full['parts']} |")
        seed = 2
        for share in map(float, options.dirt.split(",")):
            runs = []
            for number in range(options.rounds):
                messages = max(1, int(options.keys * share))
                bench.append(topic, replace(base, messages=messages, distribution="uniform", seed=seed))
                seed += 1
                runs.append(bench.compact(topic))
                say(f"{share:.1%}, run {number}: {runs[-1]}")
            times = [run["seconds"] for run in runs]
            written = [run["bytes_written"] for run in runs]
            records = median(run["index_records"] for run in runs)
            print(
                f"| {share:.1%} new | {median(times):.2f} ({min(times):.2f} – {max(times):.2f}) "
                f"| {median(times) / full['seconds']:.2f} | {median(written):,.0f} ({max(written):,}) "
                f"| {median(written) / full['bytes_written']:.3f} | {records:,.0f} "
                f"| {runs[-1]['index_levels']} | {runs[-1]['parts']} |",
                flush=True,
            )
            if share == 0.01:
                for figure, goal, ratio in (
                    ("time", GOALS["time"], median(times) / full["seconds"]),
                    ("bytes", GOALS["bytes"], median(written) / full["bytes_written"]),
                ):
                    verdict = "reached" if ratio <= goal else "MISSED"
                    say(f"{figure}: {ratio:.3f} of the full run (goal {goal}: {verdict})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
