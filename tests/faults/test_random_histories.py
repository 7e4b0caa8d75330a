"""Some seconds of random histories over two services; `make soak` runs an hour of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.histories.rounds import run
from tests.servers.postgres import PostgresServer
from tests.servers.versitygw import Versitygw

SECONDS = 3.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_histories_hold(tmp_path: Path, postgres_server: PostgresServer, versitygw: Versitygw) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    result = run(tmp_path / "run", postgres_server, versitygw, SECONDS, seed)
    if not result.violations and not result.figures.get(
        "messages acknowledged"
    ):  # a busy machine: no client was connected
        result = run(tmp_path / "longer", postgres_server, versitygw, 10 * SECONDS, seed)
    assert not result.violations, "\n".join(result.violations)
    assert result.figures["rounds"] == 1
    assert result.figures.get("messages acknowledged"), "nothing was tried"
    assert result.figures["topics checked"]
