"""MetadataStore: the metadata in one SQL database, as one store per noun (stores.py).

Each method of each store is one transaction: it commits when it returns, and changed nothing if it raised. Only after
Unavailable may a change have happened whose answer was lost: the methods that are bound by `writes_once`, as
`ledgers.append` and `runs.claim`, and `publishing.publish` find out by themselves; all others may be called again,
unless their docstrings state otherwise. Times come from the clock that is handed in; two processes that share a
database should agree on it within the TTL of a lease.

All methods may raise Unavailable (StorageFull) and Misconfigured, and, where a topic is named, TopicNotFound; only
other errors are listed. Must not know: objects, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy import URL

from storage.clock import Clock
from storage.metadata import schema, snapshots, stores
from storage.metadata.engine import Database
from storage.metadata.publishing import PublishingStore
from storage.metadata.records import RUN_DEAD_MS, TopicSnapshot


class MetadataStore:
    """The metadata in one database. Safe to share between threads, not between processes. Close it at the end."""

    def __init__(
        self,
        url: str | URL,
        clock: Clock,
        policies: Mapping[str, object] = MappingProxyType({}),
        run_dead_ms: int = RUN_DEAD_MS,
    ) -> None:
        """Create the stores; does not connect. Raises Misconfigured for a URL that cannot be used.

        `policies`: the broker's default policies, by name. `run_dead_ms`: the age of a heartbeat from which its run is
        dead.
        """
        self.database = database = Database(url)
        self._clock = clock
        parts = database, clock, policies, run_dead_ms
        self.topics = stores.TopicStore(*parts)
        self.leases = stores.LeaseStore(*parts)
        self.attempts = stores.AttemptStore(*parts)
        self.ledgers = stores.LedgerStore(*parts)
        self.segments = stores.SegmentStore(*parts)
        self.sealing = stores.SealingStore(*parts)
        self.trimming = stores.TrimmingStore(*parts)
        self.cursors = stores.CursorStore(*parts)
        self.runs = stores.RunStore(*parts)
        self.publishing = PublishingStore(*parts)
        self.pins = stores.PinStore(*parts)
        self.compaction_control = stores.CompactionControlStore(*parts)
        self.backlogs = stores.CompactionBacklogStore(*parts)
        self.topic_work = stores.TopicWorkStore(*parts)
        self.policies = stores.PolicyStore(*parts)
        self.tenancy = stores.TenancyStore(*parts)
        self.partitions = stores.PartitionStore(*parts)
        self.services = stores.ServiceStore(*parts)
        self.producer_sequences = stores.ProducerSequenceStore(*parts)
        self.mirrors = stores.MirrorStore(*parts)
        self.schemas = stores.SchemaStore(*parts)
        self.stats = stores.StatsStore(*parts)
        self.metrics = stores.MetricsQueries(*parts)
        self.store_binding = stores.StoreBinding(*parts)

    @property
    def url(self) -> str:
        """The URL of the database without its password."""
        return self.database.redacted_url

    def upgrade(self) -> None:
        """Bring the database to the schema of this version, from nothing or from an older one. Idempotent.

        Raises Unavailable if services of the older schema still run.
        """
        schema.upgrade(self.database, self._clock)

    def check_schema(self) -> None:
        """Raise Misconfigured unless the schema is exactly this version's. Changes nothing."""
        schema.check(self.database)

    def ensure_reserve(self) -> None:
        """Create the disk reserve if it is missing or too small, for a database that is a local file (disk_reserve.py).

        Quick; raises nothing.
        """
        if self.database.reserve is not None:
            self.database.reserve.ensure()

    def close(self) -> None:
        """Close the connections; the store may be used again and then opens new ones."""
        self.database.close()

    def topic_snapshot(self, topic_id: int) -> TopicSnapshot:
        """Return a topic as of one moment. Raises TopicNotFound.

        The snapshot has its ledgers, unsealed segments, `__compaction` cursor, compacted ledger and last run.
        """
        with self.database.snapshot() as connection:
            return snapshots.of_topic(connection, topic_id)
