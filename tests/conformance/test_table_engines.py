"""DuckDB 1.5 and Spark 4.1 read topics' Iceberg tables as the topics' own reader delivers them, also over S3 and REST.

Only `make soak` runs these: each engine has an environment of its own, which takes minutes to make.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.budgets import IN_SOAK
from tests.properties.test_table_properties import live
from tests.servers.compactor_service import compactor_service
from tests.servers.fixtures_s3 import use_credentials, versitygw
from tests.servers.table_engines import by_duckdb, by_spark
from tests.servers.versitygw import Versitygw
from tests.tables import expected, table_uri
from tests.workbench import Workbench

__all__ = ["versitygw"]
pytestmark = [pytest.mark.slow, pytest.mark.soak]
LIVES, LEAST_RUNS = (50, 200) if IN_SOAK else (3, 1)
COLUMNS = '"offset", key, payload, publish_time, event_time'


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[Any]]]:
    """Rows of each snapshot of random topics, by the URI of its metadata."""
    rows: dict[str, list[list[Any]]] = {}
    for seed in range(LIVES):
        bench = Workbench.embedded(tmp_path_factory.mktemp("life"))
        topic = bench.topic()
        for _ in live(bench, topic, 1000 + seed, 2 + seed % 2):
            rows[table_uri(bench, topic)] = [[cell(row[at]) for at in (0, 4, 5, 6, 7)] for row in expected(topic)]
        bench.metadata.close()
    assert len(rows) >= LEAST_RUNS
    return rows


def cell(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def test_duckdb_reads_every_snapshot(tables: dict[str, list[list[Any]]]) -> None:
    orders = [{"before": [], "query": f"SELECT {COLUMNS} FROM iceberg_scan('{uri}') ORDER BY 1"} for uri in tables]
    for uri, rows in zip(tables, by_duckdb(orders), strict=True):
        assert rows == tables[uri], uri


def test_spark_reads_every_snapshot_in_vectors_and_row_by_row(tables: dict[str, list[list[Any]]]) -> None:
    for uri, ways in zip(tables, by_spark(list(tables)), strict=True):
        for rows in ways:
            assert rows == tables[uri], uri


def test_duckdb_attaches_the_catalog_and_reads_from_s3(
    versitygw: Versitygw, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_credentials(monkeypatch, versitygw)
    environment = {
        "COMPACTOR_STORE": f"s3://{versitygw.make_bucket()}/in a prefix",
        "COMPACTOR_S3_ENDPOINT": versitygw.endpoint,
        "COMPACTOR_S3_REGION": "us-east-1",
    }
    with compactor_service(tmp_path, **environment) as service, httpx.Client(base_url=service.url) as client:
        topic = "/persistent/public/default/users"
        client.put(f"/admin/v2{topic}").raise_for_status()
        client.put(f"/admin/v2{topic}/policies", json={"table.enabled": True}).raise_for_status()
        messages = [{"key": f"k{number % 7}", "payload": f"v{number}"} for number in range(20)]
        for sent in (messages, messages[:3]):
            client.post(f"/topics{topic}", json={"messages": sent}).raise_for_status()
            compact(client, f"/admin/v2{topic}")
        host = versitygw.endpoint.removeprefix("http://")
        before = [
            f"CREATE SECRET (TYPE s3, KEY_ID '{versitygw.access_key}', SECRET '{versitygw.secret_key}', "
            f"ENDPOINT '{host}', USE_SSL false, URL_STYLE 'path', REGION 'us-east-1')",
            f"ATTACH 'any' AS c (TYPE iceberg, ENDPOINT '{service.url}/iceberg', AUTHORIZATION_TYPE 'none', "
            "SUPPORT_NESTED_NAMESPACES true)",
        ]
        query = 'SELECT decode(key), decode(payload) FROM c."public.default".users ORDER BY 1'
        (rows,) = by_duckdb([{"before": before, "query": query}])
        newest = {message["key"]: message["payload"] for message in (*messages, *messages[:3])}
        assert dict(rows) == newest


def compact(client: httpx.Client, topic: str) -> None:
    """Compact the topic, and wait for the end of the run."""
    client.put(f"{topic}/compaction").raise_for_status()
    pause = threading.Event()
    while (status := client.get(f"{topic}/compaction").json()["status"]) == "RUNNING":
        pause.wait(0.05)
    assert status == "SUCCESS"
