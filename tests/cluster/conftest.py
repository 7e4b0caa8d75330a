"""Fixtures of the cluster's tests: one standalone cluster, one S3 server, one PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.fixtures_postgres import postgres_server
from tests.servers.fixtures_s3 import versitygw
from tests.servers.spark_cluster import SparkCluster
from tests.servers.versitygw import Versitygw

__all__ = ["postgres_server", "versitygw"]


def credentials(access_key: str, secret_key: str) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory, versitygw: Versitygw) -> Iterator[SparkCluster]:
    """Its workers have the S3 server's credentials, as a role would give them."""
    environment = credentials(versitygw.access_key, versitygw.secret_key)
    with SparkCluster(tmp_path_factory.mktemp("spark"), environment) as cluster:
        yield cluster
