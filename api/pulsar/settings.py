"""Settings of the Pulsar door."""

from __future__ import annotations

from dataclasses import dataclass

from api.broker.serving.topic import TopicSettings
from api.settings.settings import Settings
from storage.options.policies import TopicPolicies

_CONNECTION_BYTES = 32 << 20
"""Bytes of one connection that may wait to be appended."""


@dataclass(frozen=True)
class PulsarSettings:
    """The settings of the protocol. Times are milliseconds, sizes bytes."""

    max_message_size: int
    """Until `PulsarServer.start` has read the broker's policies."""
    connect_timeout_ms: int
    keep_alive_ms: int
    max_concurrent_lookups: int
    liveness_seconds: float
    max_pending_publishes: int
    max_pending_bytes: int
    max_all_pending_bytes: int
    auto_create: bool
    tail_bytes: int
    page_bytes: int
    topic: TopicSettings
    topic_idle_ms: int

    @classmethod
    def of(cls, settings: Settings) -> PulsarSettings:
        """Return the door's part of the service's settings."""
        return cls(
            max_message_size=TopicPolicies.max_message_bytes,
            connect_timeout_ms=settings.limits_header_timeout_ms,
            keep_alive_ms=settings.broker_keep_alive_interval_ms,
            max_concurrent_lookups=settings.broker_max_concurrent_lookups,
            liveness_seconds=5.0,
            max_pending_publishes=settings.broker_max_pending_publishes,
            max_pending_bytes=min(_CONNECTION_BYTES, settings.broker_publish_buffer_bytes),
            max_all_pending_bytes=settings.broker_publish_buffer_bytes,
            auto_create=settings.broker_auto_topic_creation,
            tail_bytes=settings.broker_cache_bytes,
            page_bytes=settings.broker_page_bytes,
            topic=TopicSettings(settings.broker_max_unacked_messages),
            topic_idle_ms=settings.producers_idle_ms,
        )
