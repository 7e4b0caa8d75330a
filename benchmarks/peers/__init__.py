"""`python -m benchmarks.peers`: this job beside the compaction of a real Apache Kafka and a real Apache Pulsar broker.

`command` reads the options and prints; `sitting` lets the contenders take turns on one shape of data; `this_job`,
`kafka` and `pulsar` are the contenders, each behind `contender.Contender`; `records` makes the same messages for all
and says whether what survives is the same; `artifacts` gets the brokers through Maven.
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    from benchmarks.peers.command import run

    return run(arguments)
