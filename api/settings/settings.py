"""Table of all settings: name, kind of values, meaning, default.

The first source that has a value wins: a flag of the command line, the environment (`COMPACTOR_…`), the file
(`--config` or `COMPACTOR_CONFIG`; `api/settings/sources.py`), the default. A new setting is a field here and a line in
docs/settings.md, which a test compares. Names are dotted; the field has underscores, and `_ms` where it is a duration.
Pulsar's and Kafka's own names are aliases, each in its own unit. A file may also hold policies: they are the broker's
defaults, below what was set for the broker (`storage/options/policies.py`).

Values only; components (clock, store, database) are made from them in `api/components.py`. Secrets are in no `repr`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from api.settings.setting import ExternalName, Setting, Url, duration, setting, size, switch
from compactor.engines.kinds import AUTO, IN_PROCESS, SPARK
from compactor.maintenance.grace import GRACE_MS, LEAST_GRACE_MS
from storage.errors import Misconfigured
from storage.file_modes import create_private_folder
from storage.options.kinds import BOOLEAN, Choice, Decimal, Optional, Text, TextList, WholeNumber
from storage.options.option import options_of

_PORT = WholeNumber("the port", greatest=65_535)
_COUNT = WholeNumber("pieces", least=1)
_THREADS = WholeNumber("threads", least=1, greatest=1024)
CONFIG_VARIABLE = "COMPACTOR_CONFIG"


@dataclass(frozen=True, repr=False)
class Settings:
    """The settings of one process. Durations are milliseconds, sizes bytes."""

    # Directories and stores

    data: str = setting(".compactor", "data", Text("a directory"), "Directory of the embedded parts.")
    store: str = setting(
        "", "store", Url("a URL"), "Object store, file:///… or s3://bucket/prefix; empty: in the data directory."
    )
    s3_endpoint: str = setting("", "s3-endpoint", Url("a URL"), "Endpoint of an S3 server other than AWS.")
    database: str = setting(
        "", "database", Url("a URL"), "Database; empty: SQLite in the data directory. Its password is never shown."
    )
    log: str = setting(
        "",
        "log",
        Text("a directory"),
        "Directory of the unsealed segments, on a local disk; empty: in the data directory.",
    )
    spark_master: str = setting(
        "local[*]",
        "spark-master",
        Text("a Spark master"),
        "Spark master of large compactions, and of all of them on a cluster.",
    )

    compaction_engine: str = setting(
        AUTO,
        "compaction.engine",
        Choice((AUTO, IN_PROCESS, SPARK)),
        "Where compactions run: small ones in this process, large ones on Spark; all on Spark; or all in this process.",
    )

    compaction_in_process_bytes: int = size(
        0,
        "compaction.in-process-bytes",
        "Bytes below which a job runs in this process with the engine auto; 0: 2 GiB, or 256 MiB on more than 4 cores.",
    )

    # The service's address

    host: str = setting("127.0.0.1", "host", Text("an address"), "Address to bind to.", "bindAddress")
    port: int = setting(8080, "port", _PORT, "Port; 0: any free one, which is printed.", "webServicePort")
    advertised_url: str = setting(
        "",
        "advertised-url",
        Url("a URL or host"),
        "URL of this service for clients and other services; empty: host and port. A bare host gets scheme and port.",
        "advertisedAddress",
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "allowed-hosts",
        TextList("names"),
        "Names that requests may use for this service besides loopback, host and advertised-url, while access control "
        "is off.",
    )
    cluster_name: str = setting("standalone", "cluster-name", Text("a name"), "The one cluster's name.", "clusterName")
    tls_certificate: str = setting(
        "", "tls.certificate", Text("a PEM file"), "Certificate and its chain; with it only HTTPS is served."
    )
    tls_key: str = setting("", "tls.key", Text("a PEM file"), "The certificate's private key.")
    tls_reload_interval_ms: int = duration(
        60_000,
        "tls.reload-interval",
        "How often the files of certificate and key are checked; changed ones are read again.",
        ExternalName("tlsCertRefreshCheckDurationSec", unit_ms=1000),
    )
    tls_ca: str = setting(
        "",
        "tls.ca",
        Text("a PEM file"),
        "Further certificate authorities to trust for other services.",
        "brokerClientTrustCertsFilePath",
    )
    shutdown_grace_ms: int = duration(
        30_000,
        "shutdown.grace",
        "How long requests and runs may take to end after SIGTERM.",
        ExternalName("brokerShutdownTimeoutMs", unit_ms=1),
        least=0,
    )
    forwarding_timeout_ms: int = duration(
        30_000, "forwarding.timeout", "How long another service may take for a forwarded request."
    )

    # Automatic compaction

    compaction_automatic: bool = switch(
        True,
        "compaction.automatic",
        "Compact due topics automatically. Requests are executed in any case.",
        "log.cleaner.enable",
    )
    compaction_monitor_interval_ms: int = duration(
        60_000,
        "compaction.monitor-interval",
        "How often all topics are checked.",
        ExternalName("brokerServiceCompactionMonitorIntervalInSeconds", unit_ms=1000),
        ExternalName("log.cleaner.backoff.ms", unit_ms=1),
    )
    compaction_max_runs: int = setting(
        4,
        "compaction.max-runs",
        WholeNumber("runs", least=1),
        "Compactions at once: of one large topic each, or of a batch of small ones.",
        "log.cleaner.threads",
    )
    compaction_batch_topics: int = setting(
        100, "compaction.batch-topics", WholeNumber("topics", least=1), "Small topics in one job at most."
    )
    compaction_batch_bytes: int = size(
        64 << 20, "compaction.batch-bytes", "Dirty bytes up to which a topic is a small one."
    )
    compaction_max_read_rate: int = size(
        0,
        "compaction.max-read-rate",
        "Bytes a second that runs read at most, all together; 0: no limit. Kafka's limit is of both, half for each.",
        ExternalName("log.cleaner.io.max.bytes.per.second", factor=0.5),
    )
    compaction_max_write_rate: int = size(
        0,
        "compaction.max-write-rate",
        "Bytes a second that runs write at most, all together; 0: no limit.",
        ExternalName("log.cleaner.io.max.bytes.per.second", factor=0.5),
    )
    compaction_retry_first_ms: int = duration(
        30_000, "compaction.retry-first", "How long after its first failure a topic is tried again."
    )
    compaction_retry_most_ms: int = duration(
        3_600_000, "compaction.retry-most", "Longest delay; it doubles with each failure."
    )
    compaction_run_dead_after_ms: int = duration(
        30_000,
        "compaction.run-dead-after",
        "A run without a heartbeat for this time counts as dead, and is started again. The same in all services.",
        least=1000,
    )
    compaction_stalled_after_ms: int = duration(
        1_800_000,
        "compaction.stalled-after",
        "A run none of whose tasks ends within this time fails, and is tried again; waiting for cores does not count. "
        "Longer than a task may take.",
        least=1000,
    )
    leader_lease_term_ms: int = duration(
        10_000,
        "leader.lease-term",
        "TTL of the leader's lease, renewed three times within it; another service takes over when it expires.",
        least=100,
    )

    # Maintenance

    maintenance_seal_interval_ms: int = duration(
        5_000, "maintenance.seal-interval", "How often rolled segments become ledgers."
    )
    maintenance_prepared_bytes: int = size(
        128 << 20,
        "maintenance.prepared-bytes",
        "Memory of the sealing process for open segments that it encodes while they fill; 0: none is "
        "encoded before its roll.",
    )
    maintenance_interval_ms: int = duration(
        300_000,
        "maintenance.interval",
        "How often cleanup policies and retention are applied; limits of backlogs at this interval, or every minute if "
        "it is longer.",
        ExternalName("log.retention.check.interval.ms", unit_ms=1),
    )
    gc_interval_ms: int = duration(
        3_600_000, "gc.interval", "How often garbage is collected, of the topics that may have some."
    )
    gc_scrub_interval_ms: int = duration(
        86_400_000,
        "gc.scrub-interval",
        "How often all objects of the store are listed, for garbage to which no row leads.",
    )
    gc_grace_ms: int = duration(
        GRACE_MS,
        "gc.grace",
        "Age of garbage before it is deleted, and time without a heartbeat after which an attempt counts as dead.",
        least=LEAST_GRACE_MS,
    )
    producers_max: int = setting(1000, "producers.max", _COUNT, "Topics that are open for writing at once.")
    producers_idle_ms: int = duration(
        5_000, "producers.idle", "How long a topic stays open for writing without a message."
    )

    # Pulsar's binary protocol

    broker_service_port: int | None = setting(
        None,
        "broker-service-port",
        Optional(_PORT),
        "Port of Pulsar's binary protocol; none: 6650, or any free one where port is 0.",
        "brokerServicePort",
    )
    broker_service_port_tls: int | None = setting(
        None,
        "broker-service-port-tls",
        Optional(_PORT),
        "Its port with TLS, with the service's certificate; none: it is not served with TLS.",
        "brokerServicePortTls",
    )
    broker_service_tls_only: bool = switch(
        False, "broker-service-tls-only", "Serve Pulsar's binary protocol with TLS only: no token goes in clear."
    )
    broker_max_connections: int = setting(
        10_000,
        "broker.max-connections",
        WholeNumber("connections", least=1),
        "Connections of Pulsar's clients at once, at most a quarter of the file descriptors that the process may have.",
        "brokerMaxConnections",
    )
    broker_max_concurrent_lookups: int = setting(
        10_000,
        "broker.max-concurrent-lookups",
        WholeNumber("requests", least=1),
        "Lookups of topics, their partitions and namespaces that are active at once; others are refused.",
        "maxConcurrentLookupRequest",
    )
    broker_keep_alive_interval_ms: int = duration(
        30_000,
        "broker.keep-alive-interval",
        "A client without a command for this time gets a PING; after twice this time it is disconnected.",
        ExternalName("keepAliveIntervalSeconds", unit_ms=1_000),
        least=1_000,
    )
    broker_max_pending_publishes: int = setting(
        1_000,
        "broker.max-pending-publishes",
        _COUNT,
        "Entries of one connection that may wait to be appended; beyond, the service does not read from it.",
        "maxPendingPublishRequestsPerConnection",
    )
    broker_publish_buffer_bytes: int = size(
        256 << 20,
        "broker.publish-buffer-bytes",
        "Bytes of all connections that may wait to be appended (Pulsar: maxMessagePublishBufferSizeInMB).",
        least=1 << 20,
    )
    broker_max_unacked_messages: int = setting(
        50_000,
        "broker.max-unacked-messages",
        WholeNumber("messages"),
        "Unacknowledged messages that a shared consumer may have; 0: any number.",
        "maxUnackedMessagesPerConsumer",
    )
    broker_max_consumers_per_subscription: int = setting(
        1_000,
        "broker.max-consumers-per-subscription",
        WholeNumber("consumers"),
        "Consumers of one subscription; further ones are refused; 0: any number.",
        "maxConsumersPerSubscription",
    )
    broker_max_producers_per_topic: int = setting(
        10_000,
        "broker.max-producers-per-topic",
        WholeNumber("producers"),
        "Producers of one topic; further ones are refused; 0: any number.",
        "maxProducersPerTopic",
    )
    broker_deduplication_max_producers: int = setting(
        10_000,
        "broker.deduplication-max-producers",
        WholeNumber("producers", least=1),
        "Producers of a topic whose sequence ids are known; above, those that stored nothing for longest are dropped.",
        "brokerDeduplicationMaxNumberOfProducers",
    )
    broker_auto_topic_creation: bool = switch(
        True,
        "broker.auto-topic-creation",
        "Create a topic when a producer or consumer first uses it.",
        "allowAutoTopicCreation",
    )
    broker_cache_bytes: int = size(
        64 << 20, "broker.cache-bytes", "Newest entries of all topics that are kept in memory for consumers."
    )
    broker_page_bytes: int = size(
        128 << 20,
        "broker.page-bytes",
        "Entries that are buffered for the consumers of all subscriptions; beyond, those of slow consumers are dropped "
        "and read again later.",
    )

    mirrors_buffer_bytes: int = size(
        64 << 20,
        "mirrors.buffer-bytes",
        "Answers of Kafka's brokers that all mirrors have in memory together; each has up to 4 MiB, or one batch.",
        least=4 << 20,
    )

    dashboard: bool = switch(True, "dashboard", "The pages at `/` and `/dashboard`, for browsers.")

    # Limits

    limits_body_bytes: int = size(16 << 20, "limits.body-bytes", "Largest body of a request; 413 above.", least=1024)
    limits_bodies_bytes: int = size(
        256 << 20, "limits.bodies-bytes", "Bytes of all bodies in memory; 503 above.", least=1024
    )
    limits_header_bytes: int = size(
        64 << 10,
        "limits.header-bytes",
        "Largest request line and headers together.",
        "httpMaxRequestHeaderSize",
        least=4096,
    )
    limits_requests_per_second: float = setting(
        1000.0,
        "limits.requests-per-second",
        Decimal(),
        "Requests a second of one role, or of one address without a role; 429 above; 0: no limit.",
    )
    limits_requests_at_once: int = setting(
        512, "limits.requests-at-once", WholeNumber("requests", least=1), "Active requests; 503 above."
    )
    limits_rolled_bytes: int = size(
        0,
        "limits.rolled-bytes",
        "Rolled segments in the log directory that wait to be sealed, together; no appends above; 0: no limit.",
    )
    limits_log_free_bytes: int = size(
        128 << 20, "limits.log-free-bytes", "Free space of the log's disk below which appends are refused."
    )
    limits_messages: int = setting(
        10_000,
        "limits.messages",
        WholeNumber("messages", least=1),
        "Messages in the body of a produce request; 413 above.",
    )
    limits_request_timeout_ms: int = duration(
        30_000,
        "limits.request-timeout",
        "How long a request may wait for database, log directory or object store; 503 then. "
        "Streams, verifying, trimming and garbage collection may take longer.",
        least=100,
    )
    limits_waiting_polls: int = setting(
        128,
        "limits.waiting-polls",
        WholeNumber("requests", least=1),
        "Reads with waitMs that wait at once, of one role or, without a role, of one address; 503 above.",
    )
    limits_connections: int = setting(
        1024,
        "limits.connections",
        WholeNumber("connections", least=1),
        "Connections at once, at most a quarter of the file descriptors that the process may have; closed above.",
    )
    limits_header_timeout_ms: int = duration(
        10_000,
        "limits.header-timeout",
        "How long request line and headers may take to arrive, with TLS its handshake too.",
    )
    limits_body_timeout_ms: int = duration(
        60_000, "limits.body-timeout", "How long a body may take to arrive; 408 then."
    )
    limits_answer_timeout_ms: int = duration(
        60_000,
        "limits.answer-timeout",
        "How long a client may take for the next 64 KiB of its answer; its connection is closed then.",
    )
    threads_database: int = setting(
        16, "threads.database", _THREADS, "Requests at once that wait for the database alone."
    )
    threads_log: int = setting(
        40,
        "threads.log",
        _THREADS,
        "Requests at once that wait for the log directory: they open a topic to produce, or ask for stats.",
    )
    threads_commit: int = setting(
        16,
        "threads.commit",
        _THREADS,
        "Threads that write entries to the log, for all topics; none waits while a disk flushes many files.",
    )
    threads_store: int = setting(
        16, "threads.store", _THREADS, "Requests at once that wait for the object store: they read."
    )
    threads_work: int = setting(
        4, "threads.work", _THREADS, "Requests at once that verify, trim, truncate or collect garbage."
    )
    read_max_messages: int = setting(
        10_000, "read.max-messages", WholeNumber("messages", least=1), "Messages in a page."
    )
    read_max_bytes: int = size(
        16 << 20, "read.max-bytes", "Bytes in a page of messages; one message always fits.", least=1
    )

    # Access

    auth_enabled: bool | None = setting(
        None,
        "auth.enabled",
        Optional(BOOLEAN),
        "Whether requests need a token; none: if there is a key to check tokens with.",
        "authenticationEnabled",
    )
    auth_token_secret_key: str = setting(
        "",
        "auth.token-secret-key",
        Text("file:///… or data:;base64,…"),
        "Key of tokens signed by HS256.",
        "tokenSecretKey",
        secret=True,
    )
    auth_token_previous_secret_key: str = setting(
        "",
        "auth.token-previous-secret-key",
        Text("file:///… or data:;base64,…"),
        "The previous secret key, whose tokens are valid until they expire; a missing file is no key.",
        secret=True,
    )
    auth_token_public_key: str = setting(
        "",
        "auth.token-public-key",
        Text("file:///… or data:;base64,…"),
        "Public key of tokens signed by RS256 or ES256, by the type of the key.",
        "tokenPublicKey",
    )
    auth_jwks_file: str = setting("", "auth.jwks-file", Text("a JSON file"), "Public keys by their id (JWKS).")
    auth_revoked_tokens_file: str = setting(
        "", "auth.revoked-tokens-file", Text("a text file"), "Ids (jti) of revoked tokens, one a line."
    )
    auth_reload_interval_ms: int = duration(
        10_000, "auth.reload-interval", "How often the files of keys and of revoked tokens are read again."
    )
    auth_role_claim: str = setting(
        "sub", "auth.role-claim", Text("a claim"), "Claim that is the role.", "tokenAuthClaim"
    )
    auth_audience: str = setting("", "auth.audience", Text("a text"), "`aud` that tokens must have.", "tokenAudience")
    auth_leeway_ms: int = duration(
        0,
        "auth.leeway",
        "How far clocks may differ when a token's times are checked.",
        ExternalName("tokenAllowedClockSkewSeconds", unit_ms=1000),
        least=0,
    )
    auth_superuser_roles: tuple[str, ...] = setting(
        (), "auth.superuser-roles", TextList("roles"), "Roles that may do everything.", "superUserRoles", "super.users"
    )
    auth_proxy_roles: tuple[str, ...] = setting(
        (),
        "auth.proxy-roles",
        TextList("roles"),
        "Roles of proxies: a request needs a permission of the proxy and one of the original principal that it names.",
        "proxyRoles",
    )

    # Metrics and logging

    metrics_authenticate: bool = switch(
        False, "metrics.authenticate", "Whether /metrics needs a superuser's token.", "authenticateMetricsEndpoint"
    )
    metrics_max_topics: int = setting(
        1000, "metrics.max-topics", WholeNumber("topics"), "Topics with series of their own; the rest are summed."
    )
    logging_format: str = setting(
        "auto",
        "logging.format",
        Choice(("auto", "json", "console")),
        "How `compactor serve` logs; auto: console on a terminal, JSON elsewhere.",
    )
    logging_level: str = setting(
        "INFO", "logging.level", Choice(("DEBUG", "INFO", "WARNING", "ERROR")), "The lowest level that is logged."
    )

    # Sources of the values

    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """By setting's or policy's name: `flag`, `environment COMPACTOR_…` or `file …`; the others are defaults."""
    policies: Mapping[str, object] = field(default_factory=dict)
    """The broker's defaults that the file sets, by the policies' own names, as `storage.options.policies.parse` gives
    them.
    """
    notes: tuple[str, ...] = field(default=(), compare=False)
    """Notes about the sources, for the operator."""

    @classmethod
    def load(cls, environment: Mapping[str, str] = os.environ, config: str | None = None, **flags: object) -> Settings:
        """Return the settings from flags (by attribute; None: not set), the environment, the file and the defaults.

        Raises InvalidInput, which names the flag; Misconfigured, which names where the value is set.
        """
        from api.settings.sources import read_file, read_overrides

        file = config or environment.get(CONFIG_VARIABLE) or ""
        content = read_file(Path(file)) if file else None
        values: dict[str, Any] = dict(content.settings) if content else {}
        origins = dict.fromkeys([*values, *content.policies], f"file {file}") if content else {}
        overrides, from_ = read_overrides(environment, flags)
        return cls(
            **{SETTINGS[name].attribute: value for name, value in {**values, **overrides}.items()},
            origins={**origins, **from_},
            policies=content.policies if content else {},
            notes=content.notes if content else (),
        )

    def with_flags(self, **flags: object) -> Settings:
        """Return a copy with the flags (by attribute) that are not None. Raises InvalidInput."""
        from api.settings.sources import read_overrides

        overrides, from_ = read_overrides({}, flags)
        changed: dict[str, Any] = {SETTINGS[name].attribute: value for name, value in overrides.items()}
        return replace(self, **changed, origins={**self.origins, **from_})

    def __repr__(self) -> str:
        values = {
            setting.name: setting.displayed(getattr(self, setting.attribute))
            for setting in SETTINGS.values()
            if self.origin(setting.name)
        }
        return f"Settings({values})"

    def origin(self, name: str) -> str:
        """Return the source of a setting or policy; empty: it is the default."""
        return self.origins.get(name, "")

    @property
    def data_directory(self) -> Path:
        """Return the absolute path of the data directory."""
        return Path(self.data).expanduser().absolute()

    @property
    def store_url(self) -> str:
        """Return the object store's URL."""
        return self.store or (self.data_directory / "objects").as_uri()

    @property
    def log_directory(self) -> Path:
        """Return the absolute path of the directory of the segments."""
        return Path(self.log).expanduser().absolute() if self.log else self.data_directory / "log"

    @property
    def database_url(self) -> str:
        """Return the database's URL."""
        return self.database or f"sqlite:///{self.embedded_database_file}"

    @property
    def embedded_database_file(self) -> Path:
        """Return the absolute path of the embedded default database."""
        return self.data_directory / "metadata.db"

    @property
    def is_database_embedded(self) -> bool:
        """Return whether the database is the embedded default, which upgrades itself."""
        return not self.database

    @property
    def has_access_control(self) -> bool:
        """Return whether requests need a token."""
        keys = self.auth_token_secret_key or self.auth_token_public_key or self.auth_jwks_file
        return bool(keys) if self.auth_enabled is None else self.auth_enabled

    @property
    def url(self) -> str:
        """Return the URL of the service for others, once `port` is the bound port."""
        scheme = "https" if self.tls_certificate else "http"
        if "://" in self.advertised_url:
            return self.advertised_url.rstrip("/")
        if re.fullmatch(r"([^:\[\]]+|\[[^\[\]]+\]):\d{1,5}", self.advertised_url, re.ASCII):
            return f"{scheme}://{self.advertised_url}"
        host = self.advertised_url.strip("[]") or self.host
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def broker_service_url(self) -> str | None:
        """Return the URL of Pulsar's protocol, once the port is the bound port; None: it is not served."""
        return _broker_url("pulsar", self.url, self.broker_service_port)

    @property
    def broker_service_url_tls(self) -> str | None:
        """Return the URL of Pulsar's protocol with TLS; None: it is not served with TLS."""
        return _broker_url("pulsar+ssl", self.url, self.broker_service_port_tls)

    def make_data_directory(self) -> Path:
        """Create the directory of embedded parts and Spark's log, and return its path. Raises Misconfigured."""
        try:
            create_private_folder(self.data_directory)
        except OSError as error:
            raise Misconfigured(
                f"the data directory {self.data_directory} cannot be created ({error.strerror})",
                "set COMPACTOR_DATA, or --data, to a directory that can be written",
            ) from error
        return self.data_directory


SETTINGS = options_of(Settings, Setting)
"""All settings by name, in the order in which they are shown."""


def _broker_url(scheme: str, url: str, port: int | None) -> str | None:
    host = urlsplit(url).hostname or ""
    return None if port is None else f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
