"""MetadataStore: everything the rest of the project asks of SQL: one store a noun, over one database.

Each method of each store is one transaction: it commits when it returns, and changed nothing if it raised. Only after
Unavailable may a change have happened whose answer was lost: the methods that use `Database.write_once`, as
`ledgers.append`, `runs.claim` and `publishing.publish`, find out by themselves; all others may be called again, unless
they say otherwise. Times come from the clock that is handed in; two processes that share a database should agree on it
within the TTL of a lease.

All methods may raise Unavailable (StorageFull) and Misconfigured, and, where a topic is named, TopicNotFound; only
other errors are listed. Must not know: objects, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sqlalchemy import URL

from storage.clock import Clock
from storage.metadata import schema, snapshots
from storage.metadata.attempts import AttemptStore
from storage.metadata.compaction_backlogs import CompactionBacklogStore
from storage.metadata.compaction_control import CompactionControlStore
from storage.metadata.cursors import CursorStore
from storage.metadata.engine import Database
from storage.metadata.leases import LeaseStore
from storage.metadata.ledgers import LedgerStore
from storage.metadata.metrics_queries import MetricsQueries
from storage.metadata.partitions import PartitionStore
from storage.metadata.pins import PinStore
from storage.metadata.policy_store import PolicyStore
from storage.metadata.producer_sequences import ProducerSequenceStore
from storage.metadata.publishing import PublishingStore
from storage.metadata.records import RUN_DEAD_MS, TopicSnapshot
from storage.metadata.runs import RunStore
from storage.metadata.schemas import SchemaStore
from storage.metadata.sealing import SealingStore
from storage.metadata.segments import SegmentStore
from storage.metadata.services import ServiceStore
from storage.metadata.stats import StatsStore
from storage.metadata.store_binding import StoreBinding
from storage.metadata.store_trials import StoreTrials
from storage.metadata.tenancy import TenancyStore
from storage.metadata.topics import TopicStore
from storage.metadata.trimming import TrimmingStore


class MetadataStore:
    """The metadata in one database. Safe to share between threads, not between processes. Close it at the end."""

    def __init__(
        self,
        url: str | URL,
        clock: Clock,
        policies: Mapping[str, object] = MappingProxyType({}),
        run_dead_ms: int = RUN_DEAD_MS,
    ) -> None:
        """`policies`: the broker's defaults (PolicyStore); `run_dead_ms`: see CompactionControlStore.

        Does not connect. Raises Misconfigured for a bad URL.
        """
        self.database = database = Database(url)
        self._clock = clock
        self.topics = TopicStore(database, clock)
        self.leases = LeaseStore(database, clock)
        self.attempts = AttemptStore(database, clock)
        self.ledgers = LedgerStore(database, clock)
        self.segments = SegmentStore(database, clock)
        self.sealing = SealingStore(database, clock)
        self.trimming = TrimmingStore(database, clock, policies)
        self.cursors = CursorStore(database, clock)
        self.runs = RunStore(database, clock)
        self.publishing = PublishingStore(database, clock)
        self.pins = PinStore(database, clock)
        self.compaction_control = CompactionControlStore(database, clock, run_dead_ms)
        self.backlogs = CompactionBacklogStore(database, clock)
        self.policies = PolicyStore(database, policies)
        self.tenancy = TenancyStore(database, clock, policies)
        self.partitions = PartitionStore(database, clock, policies)
        self.services = ServiceStore(database, clock)
        self.producer_sequences = ProducerSequenceStore(database, clock)
        self.schemas = SchemaStore(database, clock)
        self.stats = StatsStore(database, clock)
        self.metrics = MetricsQueries(database, run_dead_ms)
        self.store_binding = StoreBinding(database, clock)
        self.store_trials = StoreTrials(database, clock)

    @property
    def url(self) -> str:
        """The database's URL without its password."""
        return self.database.shown_url

    def upgrade(self) -> None:
        """Bring the database to the schema of this version, from nothing or from an older one.

        Raises Unavailable if services of the older schema still run.
        """
        schema.upgrade(self.database, self._clock)

    def check_schema(self) -> None:
        """Raises Misconfigured unless the schema is exactly this version's. Changes nothing."""
        schema.check(self.database)

    def keep_reserve(self) -> None:
        """Keep some space for a full disk, if the database is a file here (disk_reserve.py). Quick; raises nothing."""
        if self.database.reserve is not None:
            self.database.reserve.keep()

    def close(self) -> None:
        """Close the connections; the store may be used again and then opens new ones."""
        self.database.close()

    def snapshot(self, topic_id: int) -> TopicSnapshot:
        """The topic with its ledgers, unsealed segments, `__compaction` cursor, compacted ledger and last run, of one
        moment."""
        with self.database.snapshot() as connection:
            return snapshots.of_topic(connection, topic_id)
