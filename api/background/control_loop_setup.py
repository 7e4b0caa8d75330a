"""The control loop of a service, made from its settings."""

from __future__ import annotations

import logging
import threading

from api.settings.settings import Settings
from compactor.engines.engine import IN_PROCESS, Engine, EngineProvider, InProcessEngineProvider
from compactor.scheduling.control_loop import ControlLoop, ControlLoopSettings
from compactor.scheduling.worker import WorkerSettings
from storage.environment import Environment
from storage.errors import Unavailable
from storage.objects.throttled import RateLimits

LOG = logging.getLogger(__name__)


def control_loop(settings: Settings, environment: Environment) -> ControlLoop:
    """The loop, not started. Spark is imported when it is needed first."""
    return ControlLoop(
        environment,
        _engines(settings),
        loop_settings(settings),
        url=settings.url,
        broker_service_urls=(settings.broker_service_url, settings.broker_service_url_tls),
    )


def loop_settings(settings: Settings) -> ControlLoopSettings:
    """Return the control loop's part of the settings; the worker slots share the limits of bytes a second."""
    slots = settings.compaction_max_runs
    rates = RateLimits(settings.compaction_max_read_rate or None, settings.compaction_max_write_rate or None)
    return ControlLoopSettings(
        monitor_interval_ms=settings.compaction_monitor_interval_ms,
        lease_ttl_ms=settings.leader_lease_term_ms,
        automatic=settings.compaction_automatic,
        small_bytes=settings.compaction_batch_bytes,
        batch=settings.compaction_batch_topics,
        worker=WorkerSettings(
            slots=slots,
            retry_first_ms=settings.compaction_retry_first_ms,
            retry_max_ms=settings.compaction_retry_most_ms,
            run_dead_ms=settings.compaction_run_dead_after_ms,
            stalled_ms=settings.compaction_stalled_after_ms,
            rates=rates.shared_by(slots),
        ),
    )


def _engines(settings: Settings) -> EngineProvider:
    if settings.spark_master == IN_PROCESS:
        return InProcessEngineProvider()
    return _Spark(settings)


class _Spark:
    """Spark's engines, imported with the first: the service answers long before. Safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._engines: EngineProvider | None = None
        self._ended = False

    def open(self) -> Engine:
        with self._lock:
            if self._ended:
                raise Unavailable(
                    "Spark is not started, as this service is ending", "another service does the work", is_public=True
                )
            if self._engines is None:
                from compactor.engines.shared_session import SparkEngineProvider
                from compactor.engines.spark import SparkSettings

                log_file = self._settings.make_data_directory() / "spark.log"
                self._engines = SparkEngineProvider(SparkSettings(log_file, self._settings.spark_master), LOG.info)
        return self._engines.open()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            if self._engines is not None:
                self._engines.end()

    def close(self) -> None:
        with self._lock:
            if self._engines is not None:
                self._engines.close()
