"""StatsStore: what stats ask of SQL. Reached as MetadataStore.stats.

Each method is one transaction that only reads, and may raise Unavailable, Misconfigured and TopicNotFound. What it
looks at is said in stats.py.
"""

from __future__ import annotations

from storage.metadata import stats
from storage.metadata.engine import Database
from storage.metadata.stats import TopicStanding
from storage.model import TopicName


class StatsStore:
    """The stats' part of the metadata, over the database of a MetadataStore. Safe to share between threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of(self, name: TopicName, *, lines: bool = False, precise: bool = False) -> TopicStanding:
        """The topic of one moment. `lines`: a line for each ledger, and properties; `precise`: count single
        acknowledgements."""
        with self._database.snapshot() as connection:
            return stats.of_topic(connection, name, lines=lines, precise=precise)
