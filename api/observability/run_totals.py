"""Totals of all runs by topic, in memory; each run is read once.

The sums are of SQL's history, so every process shows the same, and a restart loses nothing; a deleted topic's runs, and
with them its numbers, are gone. Read at most `PAGES` pages of history in one go: a long one is complete after a few
scrapes. A run whose id comes before one that was seen already, since its claim was committed later, is searched for a
few times. Not safe to share between threads. Must not know: Prometheus.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.metadata.liveness import live_heartbeat_bounds
from storage.metadata.metrics_queries import PAGE_RUNS, RunSummary
from storage.metadata.records import TABLE_ERROR, RunState
from storage.metadata.stores import MetricsQueries
from storage.model import TopicName

PAGES = 10
LATE_IDS, LATE_LOOKS = 200, 10
"""How far behind the newest run one may come late, and how often it is searched for."""


@dataclass
class TopicRunTotals:
    """Totals of one topic's compaction runs.

    `last_…`: of the last successful run; rates in bytes per second. `compacted_…`: size of its compacted ledger.
    `is_table_behind`: the last successful run could not write the topic's Iceberg table.
    """

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    removed_messages: int = 0
    last_duration_ms: int = 0
    last_read_rate: float = 0.0
    last_write_rate: float = 0.0
    compacted_messages: int = 0
    compacted_bytes: int = 0
    last_run_id: int = 0
    is_table_behind: bool = False


@dataclass
class RunTotals:
    """Totals of the compaction runs of all topics. `topics`: the totals by topic id. `names`: the names of existing
    topics by topic id. `running`: the active runs by run id."""

    store: MetricsQueries
    topics: dict[int, TopicRunTotals] = field(default_factory=dict)
    names: dict[int, TopicName] = field(default_factory=dict)
    running: dict[int, RunSummary] = field(default_factory=dict)
    last_finished_at: int | None = None
    max_duration_ms: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    _seen: int = 0
    _late: dict[int, int] = field(default_factory=dict)
    """How often the ids that were left out are still searched for."""

    def refresh(self) -> None:
        """Read the compaction runs that began or ended since the last call, and add them to the totals."""
        self.names = self.store.topic_names()
        self._late = {run_id: looks - 1 for run_id, looks in self._late.items() if looks}
        for _ in range(PAGES):
            runs = self.store.runs(self._seen, [*self.running, *self._late])
            self.running = {}
            for run in runs:
                self._add_run(run)
            if len(runs) < PAGE_RUNS:
                break
        for deleted in self.topics.keys() - self.names.keys():
            del self.topics[deleted]

    def count_live_runs(self, now: int) -> int:
        """Return the number of active runs whose heartbeat has not expired at `now` (milliseconds)."""
        alive = live_heartbeat_bounds(self.store.run_dead_ms, now)
        return sum(alive.contains(run.heartbeat_at) for run in self.running.values())

    def _add_run(self, run: RunSummary) -> None:
        """Add a run to the active runs, or to the totals if it has ended; search later for run ids that it skips."""
        self._late.pop(run.run_id, None)
        left_out = range(max(self._seen + 1, run.run_id - LATE_IDS), run.run_id)
        self._late |= dict.fromkeys(left_out, LATE_LOOKS)
        self._seen = max(self._seen, run.run_id)
        if run.finished_at is None:
            self.running[run.run_id] = run
            return
        totals = self.topics.setdefault(run.topic_id, TopicRunTotals())
        self.last_finished_at = max(self.last_finished_at or 0, run.finished_at)
        if run.state is RunState.ERROR:
            totals.failed += 1
        elif run.state is RunState.CANCELLED:
            totals.cancelled += 1
        else:
            self._add_success(totals, run, run.finished_at)

    def _add_success(self, totals: TopicRunTotals, run: RunSummary, finished_at: int) -> None:
        totals.succeeded += 1
        read, written = _statistic(run, "bytes_read"), _statistic(run, "bytes_written")
        totals.removed_messages += max(
            0, _statistic(run, "messages_in") + _statistic(run, "messages_before") - _statistic(run, "messages_out")
        )
        self.bytes_read += read
        self.bytes_written += written
        self.max_duration_ms = max(self.max_duration_ms, finished_at - run.started_at)
        if run.run_id > totals.last_run_id:
            totals.last_run_id = run.run_id
            totals.last_duration_ms = finished_at - run.started_at
            seconds = max(totals.last_duration_ms, 1) / 1000
            totals.last_read_rate, totals.last_write_rate = read / seconds, written / seconds
            totals.is_table_behind = bool(run.statistics.get(TABLE_ERROR))
            totals.compacted_messages = _statistic(run, "messages_out")
            totals.compacted_bytes = _statistic(run, "logical_bytes_out")


def _statistic(run: RunSummary, name: str) -> int:
    """Return a number from the statistics of a run; 0 if it is missing."""
    value = run.statistics.get(name, 0)
    return value if isinstance(value, int) else 0
