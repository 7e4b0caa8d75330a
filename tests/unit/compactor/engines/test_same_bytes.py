"""Every engine writes the same bytes: rows, indexes, bitmaps and manifests of several runs, from the same messages."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from compactor.engines.auto import AutoEngine
from compactor.engines.engine import Engine, InProcessEngine
from compactor.run.plan import Sizing
from tests.workbench import TINY, Workbench, content, hashing_alike

RANDOM_ID = re.compile(rb"[0-9a-f]{32}|(?<=-)[0-9a-f]{8}(?=\.)")
"""The ids of topics, attempts and tries of a task, which are drawn for each."""


STORE_UID = "store.uid"


def stored(bench: Workbench) -> list[tuple[bytes, bytes]]:
    """Return the names and bytes of all objects of the topic, without random ids, in order."""
    objects = [(info.name, bench.store.get(info.name)) for info in bench.store.list() if info.name != STORE_UID]
    return sorted((RANDOM_ID.sub(b"-", name.encode()), RANDOM_ID.sub(b"-", data)) for name, data in objects)


def written(folder: Path, engine: Engine, sizing: Sizing) -> list[tuple[bytes, bytes]]:
    """Return all objects after several runs on one engine."""
    choices = random.Random(7)
    folder.mkdir()
    bench = Workbench.embedded(folder, engine, sizing)
    with hashing_alike():
        topic = bench.topic()
    for size in (60, 5, 30, 1, 60):
        rows = [
            (choices.choice([None, *(b"%d" % key for key in range(25))]), choices.choice([None, b"", b"v" * 40]))
            for _ in range(size)
        ]
        bench.append(topic, [content(*rows)], ledger_bytes=600)
        bench.compact(topic, retain_null_key=True)
        bench.advance(1000)
    objects = stored(bench)
    bench.metadata.close()
    return objects


@pytest.mark.parametrize("sizing", [TINY, Sizing(2)], ids=["small parts", "usual parts"])
def test_spark_writes_what_this_process_writes(tmp_path: Path, spark_engine: Engine, sizing: Sizing) -> None:
    in_process = written(tmp_path / "in-process", InProcessEngine(), sizing)
    assert len(in_process) > 20
    assert written(tmp_path / "spark", spark_engine, sizing) == in_process
    # phases of one run on both engines: the limit is between their sizes
    auto = AutoEngine(lambda: spark_engine, sizing.parallelism, in_process_limit=8 << 10)
    assert written(tmp_path / "auto", auto, sizing) == in_process
