"""Metrics for Prometheus: one table of what there is, and a registry that makes them in the scrape.

`METRICS` names every metric with its kind, labels and meaning; docs/metrics.md is the same table, and a test compares
them. Pulsar's `pulsar_compaction_*` keep a broker's names, kinds, meanings and labels (cluster, namespace, topic);
Kafka's cleaner gauges have our names with units. What SQL knows is read in the scrape, at most every `REFRESH_MS`; what
the leader's last check of all topics saw is asked of the control loop. A database that cannot answer does not fail the
scrape: `compactor_up` is 0, and what SQL knows is left out. Topics with series of their own are bounded by a setting,
those that ran last; the sums are of all. No globals: each service has a registry of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from api.broker.broker import Broker
from api.broker.mirroring.view import MirrorCounts
from api.broker.serving.connected_clients import ClientCounts
from api.observability.run_totals import RunTotals, TopicRunTotals
from compactor.scheduling.due import TopicsCheckResult
from storage.clock import is_due
from storage.errors import CompactorError
from storage.log.log_space import LogSpaceStatus
from storage.metadata.metrics_queries import TopicCounts
from storage.metadata.mirrors import MirrorState
from storage.model import TopicName

LOG = logging.getLogger("api.observability.metrics")  # the name that its log lines have always had
Counts = TypeVar("Counts")
DatabaseAnswers: TypeAlias = bool
"""The result of a refresh: whether the database answers, or has answered within the last `REFRESH_MS`."""
REFRESH_MS = 2_000
_TOPIC = ("cluster", "namespace", "topic")
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class MetricDefinition:
    """The definition of one metric: its name, its text of help, its labels, and its kind: gauge, counter or
    histogram."""

    name: str
    doc: str
    labels: tuple[str, ...] = ()
    kind: str = "gauge"


METRICS: Mapping[str, MetricDefinition] = {
    item.name: item
    for item in (
        MetricDefinition(
            "pulsar_compaction_removed_event_count", "Messages that compactions have removed, in all.", _TOPIC
        ),
        MetricDefinition("pulsar_compaction_succeed_count", "Compactions that succeeded.", _TOPIC),
        MetricDefinition("pulsar_compaction_failed_count", "Compactions that failed.", _TOPIC),
        MetricDefinition(
            "pulsar_compaction_duration_time_in_mills", "Duration of the last one, in milliseconds.", _TOPIC
        ),
        MetricDefinition("pulsar_compaction_read_throughput", "Bytes a second that the last one read.", _TOPIC),
        MetricDefinition("pulsar_compaction_write_throughput", "Bytes a second that the last one wrote.", _TOPIC),
        MetricDefinition("pulsar_compaction_compacted_entries_count", "Messages in the compacted ledger.", _TOPIC),
        MetricDefinition("pulsar_compaction_compacted_entries_size", "Logical bytes of the compacted ledger.", _TOPIC),
        MetricDefinition("pulsar_active_connections", "Connections of Pulsar's clients to this service."),
        MetricDefinition("pulsar_producers_count", "Producers of a topic that are connected here.", _TOPIC),
        MetricDefinition("pulsar_consumers_count", "Consumers and readers of a topic that are connected here.", _TOPIC),
        MetricDefinition("pulsar_subscriptions_count", "Subscriptions that have or had consumers here.", _TOPIC),
        MetricDefinition(
            "pulsar_in_messages_total", "Messages that the topic received since clients connected.", _TOPIC, "counter"
        ),
        MetricDefinition("pulsar_in_bytes_total", "The same in bytes of entries.", _TOPIC, "counter"),
        MetricDefinition("pulsar_out_messages_total", "Messages that were sent to consumers.", _TOPIC, "counter"),
        MetricDefinition("pulsar_out_bytes_total", "The same in bytes of entries.", _TOPIC, "counter"),
        MetricDefinition(
            "pulsar_subscription_unacked_messages",
            "Unacknowledged messages of consumers.",
            _TOPIC,
        ),
        MetricDefinition(
            "compactor_stale_readers_total",
            "Compacted readers of Pulsar's clients that continued although unread deletions were dropped.",
            _TOPIC,
            "counter",
        ),
        MetricDefinition("compactor_up", "1 if the database answered this scrape."),
        MetricDefinition("compactor_topics", "Existing topics."),
        MetricDefinition("compactor_runs", "Compaction runs of existing topics, by outcome.", ("state",)),
        MetricDefinition("compactor_runs_running", "Active runs of all services, by their heartbeats."),
        MetricDefinition("compactor_read_bytes", "Bytes that successful runs have read, in all."),
        MetricDefinition("compactor_written_bytes", "Bytes that successful runs have written, in all."),
        MetricDefinition(
            "compactor_recopy_ratio", "Bytes written to bytes read by runs (Kafka: cleaner-recopy-percent)."
        ),
        MetricDefinition(
            "compactor_max_clean_time_seconds", "The longest successful run (Kafka: max-clean-time-secs)."
        ),
        MetricDefinition(
            "compactor_time_since_last_run_seconds",
            "Since a run ended; absent if none has (Kafka: time-since-last-run-ms).",
        ),
        MetricDefinition("compactor_queue_topics", "Topics that wait for a run."),
        MetricDefinition("compactor_queue_oldest_seconds", "How long the first of them has waited."),
        MetricDefinition("compactor_paused_topics", "Topics whose compaction is paused."),
        MetricDefinition("compactor_failing_topics", "Topics whose last compaction failed, tried again later."),
        MetricDefinition(
            "compactor_engine_up",
            "1 if compactions can begin in this service, 0 if Spark or its executors are missing.",
        ),
        MetricDefinition("compactor_leader", "1 in the service that schedules, 0 in the others."),
        MetricDefinition(
            "compactor_last_check_seconds", "Since the leader's last check of the queued topics; only in the leader."
        ),
        MetricDefinition("compactor_due_topics", "Topics that were due then; only in the leader."),
        MetricDefinition(
            "compactor_missed_topics_total",
            "Topics that were due and not queued, found by the walk over all topics: 0, or a bug (operations.md).",
            kind="counter",
        ),
        MetricDefinition(
            "compactor_dirty_bytes",
            "Bytes that no run has read, by the last walk over all topics, as the next lines; only in the leader.",
        ),
        MetricDefinition(
            "compactor_max_dirty_ratio",
            "The dirtiest topic's share of dirty bytes, 0 to 1; only in the leader (Kafka: max-dirty-percent).",
        ),
        MetricDefinition(
            "compactor_max_compaction_delay_seconds",
            "How far a topic is behind its maximum lag; only in the leader (Kafka: max-compaction-delay-secs).",
        ),
        MetricDefinition(
            "compactor_uncleanable_topics",
            "Topics that fail; only in the leader (Kafka: uncleanable-partitions-count).",
        ),
        MetricDefinition(
            "compactor_uncleanable_bytes",
            "Dirty bytes of topics that fail; only in the leader (Kafka: uncleanable-bytes).",
        ),
        MetricDefinition(
            "compactor_unreadable_policies", "Stored policies that this version cannot read; only in the leader."
        ),
        MetricDefinition("compactor_log_segments", "Unsealed segments, by state.", ("state",)),
        MetricDefinition("compactor_log_rolled_bytes", "Bytes of rolled segments that wait to be sealed."),
        MetricDefinition(
            "compactor_log_segments_given_up", "Rolled segments whose sealing was abandoned: seal them by hand."
        ),
        MetricDefinition(
            "compactor_log_appended_entries_total",
            "Entries that this process has appended for clients.",
            kind="counter",
        ),
        MetricDefinition(
            "compactor_log_appended_bytes_total", "Bytes of entries that it has appended.", kind="counter"
        ),
        MetricDefinition("compactor_log_open_topics", "Topics that it has open for writing."),
        MetricDefinition("compactor_log_free_bytes", "Free bytes of the disk of its log directory."),
        MetricDefinition(
            "compactor_log_least_free_bytes", "Appends are refused when less is free (`limits.log-free-bytes`)."
        ),
        MetricDefinition(
            "compactor_log_full", "1 if appends are refused because the log directory has no room, else 0."
        ),
        MetricDefinition("compactor_tables_behind", "Topics whose Iceberg table does not show their last compaction."),
        MetricDefinition("compactor_mirrors", "Mirrors of Kafka's topics, by state.", ("state",)),
        MetricDefinition(
            "compactor_mirror_lag_records",
            "Offsets that Kafka is ahead, over the partitions that this service mirrors.",
            _TOPIC,
        ),
        MetricDefinition(
            "compactor_mirror_records_total", "Records that this service has mirrored.", _TOPIC, "counter"
        ),
        MetricDefinition("compactor_mirror_bytes_total", "The same in bytes of entries.", _TOPIC, "counter"),
        MetricDefinition(
            "compactor_mirror_errors_total", "Tries of this service to mirror that failed.", _TOPIC, "counter"
        ),
        MetricDefinition(
            "compactor_http_request_duration_seconds",
            "Requests, until their answer was sent; `route` is the path's pattern.",
            ("method", "route", "status"),
            "histogram",
        ),
    )
}
"""Every metric of our own, by name. The process's (`process_*`) are prometheus-client's."""


class Metrics(Collector):
    """The metrics of a service: those read from SQL, those of the process, and durations of HTTP requests (`http`)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._max_topics = broker.settings.metrics_max_topics
        self._lock = threading.Lock()
        self._totals = RunTotals(broker.environment.metadata.metrics)
        self._counts: TopicCounts | None = None
        self._mirrors: Mapping[MirrorState, int] = {}
        self._read_at: int | None = None
        self._registry = CollectorRegistry()
        http = METRICS["compactor_http_request_duration_seconds"]
        self.http = Histogram(http.name, http.doc, http.labels, registry=self._registry, buckets=_BUCKETS)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format. Reads SQL, so a thread calls it."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics of the database and of the process; those of the process alone if the database does
        not answer."""
        with self._lock:
            now = self._broker.environment.clock.now_ms()
            up = self._refresh_from_database(now)
            yield _unlabelled_metric("compactor_up", int(up))
            if up and self._counts:
                yield from self._database_metrics(self._counts, now)
                yield from self._topic_metrics()
        yield from self._process_metrics(now)

    def _refresh_from_database(self, now: int) -> DatabaseAnswers:
        """Read the counts from SQL if they are older than `REFRESH_MS`. Return False if the database does not
        answer."""
        if not is_due(self._read_at, REFRESH_MS, now):
            return True
        try:
            self._counts = self._broker.environment.metadata.metrics.counts()
            self._mirrors = self._broker.environment.metadata.mirrors.counts()
            self._totals.refresh()
        except CompactorError as error:
            LOG.warning("no metrics of the database: %s", error)
            self._read_at = None
            return False
        self._read_at = now
        return True

    def _database_metrics(self, counts: TopicCounts, now: int) -> Iterator[Metric]:
        totals = self._totals
        yield _unlabelled_metric("compactor_topics", counts.topics)
        by_state: dict[tuple[str, ...], float] = {
            ("SUCCESS",): sum(topic.succeeded for topic in totals.topics.values()),
            ("ERROR",): sum(topic.failed for topic in totals.topics.values()),
            ("CANCELLED",): sum(topic.cancelled for topic in totals.topics.values()),
        }
        yield _labelled_metric("compactor_runs", by_state)
        yield _unlabelled_metric("compactor_runs_running", totals.count_live_runs(now))
        yield _unlabelled_metric("compactor_read_bytes", totals.bytes_read)
        yield _unlabelled_metric("compactor_written_bytes", totals.bytes_written)
        yield _unlabelled_metric(
            "compactor_recopy_ratio", totals.bytes_written / totals.bytes_read if totals.bytes_read else 0
        )
        yield _unlabelled_metric("compactor_max_clean_time_seconds", totals.max_duration_ms / 1000)
        yield _unlabelled_metric("compactor_time_since_last_run_seconds", _seconds_since(totals.last_finished_at, now))
        yield _unlabelled_metric("compactor_queue_topics", counts.requested)
        yield _unlabelled_metric("compactor_queue_oldest_seconds", _seconds_since(counts.oldest_request_at, now) or 0)
        yield _unlabelled_metric("compactor_paused_topics", counts.paused)
        yield _unlabelled_metric("compactor_failing_topics", counts.failing)
        yield _labelled_metric(
            "compactor_log_segments", {(state,): counts.segments.get(state, 0) for state in _SEGMENTS}
        )
        yield _unlabelled_metric("compactor_log_rolled_bytes", counts.rolled_bytes)
        yield _unlabelled_metric("compactor_log_segments_given_up", counts.abandoned_segments)
        yield _unlabelled_metric(
            "compactor_tables_behind", sum(topic.is_table_behind for topic in self._totals.topics.values())
        )
        yield _labelled_metric(
            "compactor_mirrors", {(state.value,): self._mirrors.get(state, 0) for state in MirrorState}
        )

    def _topic_metrics(self) -> Iterator[Metric]:
        latest = sorted(self._totals.topics.items(), key=lambda item: -item[1].last_run_id)[: self._max_topics]
        yield from self._metrics_by_topic(
            _BY_TOPIC, [(self._totals.names[topic_id], totals) for topic_id, totals in latest]
        )

    def _client_metrics(self) -> Iterator[Metric]:
        clients = self._broker.clients
        yield _unlabelled_metric("pulsar_active_connections", clients.connections())
        yield from self._metrics_by_topic(_BY_CLIENTS, list(islice(clients.counts(), self._max_topics)))

    def _mirror_metrics(self) -> Iterator[Metric]:
        counts = [(item.topic, item) for item in islice(self._broker.mirrors.counts(), self._max_topics)]
        yield from self._metrics_by_topic(_BY_MIRROR, counts)
        mirrored = [(topic, item.lag) for topic, item in counts if item.lag is not None]
        yield from self._metrics_by_topic({"compactor_mirror_lag_records": lambda lag: lag}, mirrored)

    def _metrics_by_topic(
        self, values: Mapping[str, Callable[[Counts], float]], topics: Sequence[tuple[TopicName, Counts]]
    ) -> Iterator[Metric]:
        """Yield metrics with a sample for each topic. `values`: by a metric's name, its value from a topic's counts."""
        cluster = self._broker.settings.cluster_name
        for name, value in values.items():
            family = _empty_metric_family(name)
            for topic, counts in topics:
                family.add_metric((cluster, f"{topic.tenant}/{topic.namespace}", str(topic)), value(counts))
            yield family

    def _process_metrics(self, now: int) -> Iterator[Metric]:
        yield from self._client_metrics()
        yield from self._mirror_metrics()
        logs, room, control = self._broker.logs, self._broker.environment.log.space_limit, self._broker.control
        yield _unlabelled_metric("compactor_log_appended_entries_total", logs.appended_entries)
        yield _unlabelled_metric("compactor_log_appended_bytes_total", logs.appended_bytes)
        yield _unlabelled_metric("compactor_log_open_topics", len(logs.topics))
        space = LogSpaceStatus() if room is None else room.status()
        yield _unlabelled_metric("compactor_log_free_bytes", space.free_bytes)
        yield _unlabelled_metric("compactor_log_least_free_bytes", space.least_free_bytes)
        yield _unlabelled_metric("compactor_log_full", int(space.refusal is not None))
        error = control.engine_error
        yield _unlabelled_metric("compactor_engine_up", None if error is None else int(not error))
        leads = control.is_leader
        yield _unlabelled_metric("compactor_leader", int(leads))
        check = control.last_check if leads else None
        yield _unlabelled_metric("compactor_missed_topics_total", control.unqueued_due_topics_since_start)
        for name, value in _CHECKED.items():
            yield _unlabelled_metric(name, value(check, now) if check else None)


_BY_CLIENTS: Mapping[str, Callable[[ClientCounts], float]] = {
    "pulsar_producers_count": lambda item: item.producers,
    "pulsar_consumers_count": lambda item: item.consumers,
    "pulsar_subscriptions_count": lambda item: item.subscriptions,
    "pulsar_in_messages_total": lambda item: item.messages_in,
    "pulsar_in_bytes_total": lambda item: item.bytes_in,
    "pulsar_out_messages_total": lambda item: item.messages_out,
    "pulsar_out_bytes_total": lambda item: item.bytes_out,
    "pulsar_subscription_unacked_messages": lambda item: item.unacked,
    "compactor_stale_readers_total": lambda item: item.stale_reader_count,
}
_BY_MIRROR: Mapping[str, Callable[[MirrorCounts], float]] = {
    "compactor_mirror_records_total": lambda item: item.records,
    "compactor_mirror_bytes_total": lambda item: item.bytes,
    "compactor_mirror_errors_total": lambda item: item.errors,
}
_SEGMENTS = ("OPEN", "ROLLED", "SEALED")
_BY_TOPIC: Mapping[str, Callable[[TopicRunTotals], float]] = {
    "pulsar_compaction_removed_event_count": lambda item: item.removed_messages,
    "pulsar_compaction_succeed_count": lambda item: item.succeeded,
    "pulsar_compaction_failed_count": lambda item: item.failed,
    "pulsar_compaction_duration_time_in_mills": lambda item: item.last_duration_ms,
    "pulsar_compaction_read_throughput": lambda item: item.last_read_rate,
    "pulsar_compaction_write_throughput": lambda item: item.last_write_rate,
    "pulsar_compaction_compacted_entries_count": lambda item: item.compacted_messages,
    "pulsar_compaction_compacted_entries_size": lambda item: item.compacted_bytes,
}
_CHECKED: Mapping[str, Callable[[TopicsCheckResult, int], float]] = {
    "compactor_last_check_seconds": lambda check, now: (now - check.at) / 1000,
    "compactor_due_topics": lambda check, _: check.due,
    "compactor_dirty_bytes": lambda check, _: check.dirty_bytes,
    "compactor_max_dirty_ratio": lambda check, _: check.max_dirty_ratio,
    "compactor_max_compaction_delay_seconds": lambda check, _: check.max_delay_ms / 1000,
    "compactor_uncleanable_topics": lambda check, _: check.uncleanable,
    "compactor_uncleanable_bytes": lambda check, _: check.uncleanable_bytes,
    "compactor_unreadable_policies": lambda check, _: check.unreadable_policies,
}


def _empty_metric_family(name: str) -> Any:
    known = METRICS[name]
    kind = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
    return kind(name, known.doc, labels=known.labels)


def _unlabelled_metric(name: str, value: float | None) -> Metric:
    """Return a metric without labels; for the value None, without a sample."""
    return _labelled_metric(name, {} if value is None else {(): value})


def _labelled_metric(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a metric with labels. `values`: the value of each sample, by the values of its labels."""
    family = _empty_metric_family(name)
    for labels, value in values.items():
        family.add_metric(labels, value)
    assert isinstance(family, Metric)
    return family


def _seconds_since(at: int | None, now: int) -> float | None:
    """Return the seconds from `at` to `now`, both in milliseconds; None without `at`."""
    return None if at is None else max(0, now - at) / 1000
