"""Fixtures of the PostgreSQL server: import them into a `conftest.py`.

Without PostgreSQL, tests that ask for it are skipped, and say how to get it; with CI=true they fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.budgets import IN_CI
from tests.servers.postgres import PostgresNotFound, PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL; `.new_database()` gives the URL of an empty database of the caller's own."""
    try:
        server = PostgresServer()
    except PostgresNotFound as missing:
        if IN_CI:
            pytest.fail(f"no PostgreSQL to test on: {missing}")
        pytest.skip(f"no PostgreSQL to test on: {missing}")
    yield server
    server.stop()
