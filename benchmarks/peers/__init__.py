"""`python -m benchmarks.peers`: this job beside the compaction of a real Apache Kafka and a real Apache Pulsar broker.

`command` reads the options and prints; `sitting` lets the contenders take turns on one shape of data, `steady` on a
topic that grows; `this_job`, `this_service`, `kafka` and `pulsar` are the contenders, with the interface
`contender.Contender`; `records` writes the same messages
for all and compares the survivors; `artifacts` gets the brokers through Maven.
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    from benchmarks.peers.command import run

    return run(arguments)
