"""docs/keep-your-cluster.md: its commands are those that tests run with real brokers.

Those for Kafka run in tests/clients/java/test_kafka_mirror.py. Those for Pulsar are the plug-in's, which
tests/clients/java/test_pulsar_compaction.py runs.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def commands(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.startswith("    pulsar-admin ")]


def test_the_commands_at_the_source_are_those_of_the_plug_in() -> None:
    page = (ROOT / "docs" / "keep-your-cluster.md").read_text(encoding="utf-8")
    plug_in = (ROOT / "integrations" / "pulsar-compaction" / "README.md").read_text(encoding="utf-8")
    own = commands(page.partition("\n## Pulsar: replication\n")[2])
    assert len(own) == 3
    assert own == commands(plug_in)[:3]
