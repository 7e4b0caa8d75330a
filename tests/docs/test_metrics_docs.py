"""docs/metrics.md, the dashboard and the alert rules against the table of metrics and a real scrape.

When it fails, it says which lines the page should have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.broker.broker import Broker
from api.broker.mirroring.view import MirrorsView
from api.broker.serving.connected_clients import ConnectedClientsView
from api.components import open_environment
from api.documents import SchedulerStatus
from api.http.metrics import METRICS, MetricDefinition, Metrics
from api.settings.settings import Settings
from compactor.scheduling.due import TopicsCheckResult
from tests.clocks import ManualClock

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
ALERTS = ROOT / "deploy" / "prometheus-alerts.yml"
_NAME = re.compile(r"\b((?:compactor|pulsar_compaction|process)_[a-z0-9_]+)")
_JOB = 'job=~".*compactor.*"'
_PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds", "process_max_fds"}


def line(metric: MetricDefinition) -> str:
    """The metric as the table has it."""
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.doc} |"


@pytest.fixture(scope="module")
def scrape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    check = TopicsCheckResult(
        at=0, topics=1, due=1, dirty_bytes=1, max_dirty_ratio=0.5, max_delay_ms=1, uncleanable=0, uncleanable_bytes=0
    )
    with open_environment(Settings(data=str(tmp_path_factory.mktemp("metrics")))) as environment:
        broker = SimpleNamespace(
            settings=Settings(metrics_max_topics=1),
            environment=replace(environment, clock=ManualClock()),
            clients=ConnectedClientsView(),
            mirrors=MirrorsView(),
            control=SimpleNamespace(
                is_leader=True, last_check=check, unqueued_due_topics_since_start=0, engine_error=""
            ),
            logs=SimpleNamespace(appended_entries=0, appended_bytes=0, topics=()),
        )
        metrics = Metrics(cast(Broker, broker))
        metrics.http.labels("GET", "/livez", "200").observe(0.1)
        yield {family.name: family for family in text_string_to_metric_families(metrics.exposition().decode())}


def test_the_table_has_every_metric_in_order_and_no_other() -> None:
    assert re.findall(r"^\| `.*$", PAGE, re.MULTILINE) == [line(metric) for metric in METRICS.values()]


def test_the_registry_has_what_the_table_says(scrape: dict[str, Any]) -> None:
    families = {name: family for name, family in scrape.items() if not name.startswith(("process_", "python_"))}
    families = {name: family for name, family in families.items() if not name.endswith("_created")}
    assert {
        f"{name}_total" if item.type == "counter" else name: (item.type, item.documentation)
        for name, item in families.items()
    } == {metric.name: (metric.kind, metric.doc) for metric in METRICS.values()}


def known(scrape: dict[str, Any]) -> set[str]:
    """All that a query may name."""
    names = set(METRICS) | _PROCESS
    return names | {
        f"{metric.name}_{end}"
        for metric in METRICS.values()
        if metric.kind == "histogram"
        for end in ("bucket", "count", "sum")
    }


def test_the_process_metrics_that_are_used_exist(scrape: dict[str, Any]) -> None:
    assert {name.removesuffix("_total") for name in _PROCESS} <= set(scrape)


def test_the_dashboard_asks_for_metrics_that_exist(scrape: dict[str, Any]) -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    queries += [item["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]
    assert len(queries) > 10
    used = {name for query in queries for name in _NAME.findall(query)}
    assert used <= known(scrape)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids))
    for panel in dashboard["panels"]:
        assert panel["title"]
        assert 0 <= panel["gridPos"]["x"] <= 24 - panel["gridPos"]["w"]


def test_the_alerts_ask_for_metrics_that_exist_and_say_what_to_do(scrape: dict[str, Any]) -> None:
    yaml = pytest.importorskip("yaml")
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 5
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        used = set(_NAME.findall(rule["expr"].replace(_JOB, "")))
        assert used or re.search(r"\bup{", rule["expr"])
        assert used <= known(scrape), rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["remedy"]
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert f"`{rule['alert']}`" in PAGE, "the page tells of each alert"


def test_an_alert_fires_when_one_service_or_all_or_the_leader_is_missing() -> None:
    """A comparison with a series that no target exports any more is empty, and an empty result fires no alert."""
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    rules = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    assert rules["CompactorServiceDown"] == f"up{{{_JOB}}} == 0"
    assert rules["CompactorAllDown"] == f"absent(up{{{_JOB}}} == 1)"
    assert rules["CompactorNoLeader"].endswith(f" or absent(compactor_leader{{{_JOB}}})")


def test_every_panel_shows_the_chosen_jobs_and_no_others() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            metrics = _NAME.findall(target["expr"])
            assert target["expr"].count('job=~"$job"') == len(metrics) > 0, panel["title"]
    (job,) = (item for item in dashboard["templating"]["list"] if item["name"] == "job")
    assert job["allValue"] == ".*"
    assert "hot tail" not in DASHBOARD.read_text(encoding="utf-8")


def test_who_is_alerted_of_failing_topics_is_sent_where_all_of_them_are_shown() -> None:
    """Also one that fails before it has a run, as when the store is away: the list of runs does not have it."""
    remedy = re.search(
        r"alert: CompactorTopicsFail.*?remedy: .*?`(.*?)`", ALERTS.read_text(encoding="utf-8"), re.DOTALL
    )
    assert remedy is not None
    assert remedy[1] == "compactor-admin compactions scheduler"
    assert "failing" in SchedulerStatus.__annotations__


def test_the_unit_runs_a_command_that_exists() -> None:
    unit = (ROOT / "deploy" / "compactor.service").read_text(encoding="utf-8")
    settings = {line.partition("=")[0]: line.partition("=")[2] for line in unit.splitlines() if "=" in line}
    assert settings["ExecStart"].endswith("compactor serve --config /etc/compactor/compactor.toml")
    assert settings["KillSignal"] == "SIGTERM"
