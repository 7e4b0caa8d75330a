"""A few seconds of random histories over two services; `make soak` runs an hour of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.random_histories import run
from tests.servers.postgres import PostgresServer
from tests.servers.versitygw import Versitygw

SECONDS = 5.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_histories_hold(tmp_path: Path, postgres_server: PostgresServer, versitygw: Versitygw) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    result = run(tmp_path / "services", postgres_server, versitygw, SECONDS, seed)
    assert result["rounds"] == 1
    assert result["messages acknowledged"], "nothing was tried"
