"""The control loop of a service, made from its settings."""

from __future__ import annotations

import logging

from api.settings.settings import Settings
from compactor.engines.auto import AutoEngineProvider, default_in_process_limit, engine_kind
from compactor.engines.cluster import is_local, local_parallelism
from compactor.engines.engine import EngineProvider, InProcessEngineProvider
from compactor.engines.kinds import IN_PROCESS
from compactor.engines.shared_session import SparkEngineProvider
from compactor.scheduling.control_loop import ControlLoop, ControlLoopSettings
from compactor.scheduling.worker import WorkerSettings
from storage.environment import Environment
from storage.objects.throttled import RateLimits

LOG = logging.getLogger(__name__)


def control_loop(settings: Settings, environment: Environment) -> ControlLoop:
    """Return the compaction control loop of a service, which the caller starts. Its engines are those of the
    settings."""
    return ControlLoop(
        environment,
        engine_provider(settings),
        loop_settings(settings),
        url=settings.url,
        broker_service_urls=(settings.broker_service_url, settings.broker_service_url_tls),
    )


def loop_settings(settings: Settings) -> ControlLoopSettings:
    """Return the settings of the compaction control loop. The worker slots share the limits of bytes a second
    equally."""
    slots = settings.compaction_max_runs
    rates = RateLimits(settings.compaction_max_read_rate or None, settings.compaction_max_write_rate or None)
    return ControlLoopSettings(
        monitor_interval_ms=settings.compaction_monitor_interval_ms,
        lease_ttl_ms=settings.leader_lease_term_ms,
        automatic=settings.compaction_automatic,
        small_bytes=settings.compaction_batch_bytes,
        batch=settings.compaction_batch_topics,
        in_process_bytes=settings.compaction_in_process_bytes
        or default_in_process_limit(local_parallelism(settings.spark_master)),
        worker=WorkerSettings(
            slots=slots,
            retry_first_ms=settings.compaction_retry_first_ms,
            retry_max_ms=settings.compaction_retry_most_ms,
            run_dead_ms=settings.compaction_run_dead_after_ms,
            stalled_ms=settings.compaction_stalled_after_ms,
            rates=rates.shared_by(slots),
        ),
    )


def engine_provider(settings: Settings) -> EngineProvider:
    """Return the provider of the compaction engines that the settings choose. It opens no engine yet."""
    kind = engine_kind(settings.compaction_engine, settings.spark_master)
    parallelism = local_parallelism(settings.spark_master)
    if kind == IN_PROCESS:
        return InProcessEngineProvider(parallelism)
    spark = SparkEngineProvider(settings.make_data_directory, settings.spark_master, LOG.info)
    if not is_local(settings.spark_master):
        return spark
    return AutoEngineProvider(spark, parallelism, kind, settings.compaction_in_process_bytes)
