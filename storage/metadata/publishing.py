"""The commit point of a compaction: one transaction in which a new compacted ledger begins to serve (A1).

Before it, a run has written only objects that no row names; after it, readers use the new ledger. Horizon, pointer,
generation, compacted ledger and run change together or not at all. Of several publishers one wins: the topic's row is
compared and swapped on (generation, epoch), whatever was read before. The preconditions, with their reasons, are in
invariants.check_publish.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, insert, update

from storage.errors import Fenced
from storage.failpoints import Failpoint, failpoint
from storage.metadata import attempts, compaction_control_rows, cursors, row_mapping, runs, topic_work, topics
from storage.metadata.invariants import RERUN, check_publish
from storage.metadata.records import COMPACTION_CURSOR, CompactedLedgerRecord, CompactionRetry, RunRecord, RunState
from storage.metadata.tables import compacted_ledgers, topics as topics_table
from storage.metadata.transactions import Store


def publish(
    connection: Connection,
    run: RunRecord,
    expected_generation: int,
    compacted: CompactedLedgerRecord,
    statistics: Mapping[str, object],
    retry: CompactionRetry | None,
    now: int,
) -> RunRecord:
    """Make `compacted` the compacted ledger that serves, and end the run as SUCCESS; return the run.

    Raises Fenced; then nothing has changed (W3).
    `retry`: a further run of the topic is needed; None: it is not.
    """
    topic = topics.lock(connection, run.topic_id)
    record = runs.get(connection, run.run_id)
    cursor = cursors.find(connection, topic.id, COMPACTION_CURSOR)
    check_publish(topic, record, expected_generation, cursor.mark_delete if cursor else None, compacted)
    attempts.lock_and_check_unfinished(connection, [record.attempt_id])

    if not _compare_and_swap_generation(connection, topic.id, expected_generation, record.epoch):
        # The lock makes this impossible; A1 promises the swap itself, so it does not rely on the lock.
        raise Fenced(f"generation or epoch of {topic.name} moved while run {run.run_id} published", RERUN)

    cursors.retire_compacted_ledger(connection, topic.id, now)
    connection.execute(insert(compacted_ledgers).values(**row_mapping.compacted_ledger_values(topic.id, compacted)))
    cursors.move_horizon(connection, topic.id, compacted.horizon, compacted.ledger_id)
    runs.succeed(connection, record, compacted.ledger_id, statistics, now)
    if retry is not None:
        compaction_control_rows.store_failures(connection, topic.id, 1, retry.at, retry.error)
    topic_work.mark(connection, topic_work.WorkKind.COMPACT, [topic.id])
    failpoint(Failpoint.PUBLISH_INSIDE_TRANSACTION)
    return runs.get(connection, run.run_id)


def _compare_and_swap_generation(connection: Connection, topic_id: int, expected_generation: int, epoch: int) -> bool:
    """Increment the topic's generation. Returns False, unchanged, if generation or epoch are not the expected ones."""
    swapped = connection.execute(
        update(topics_table)
        .where(
            topics_table.c.id == topic_id,
            topics_table.c.generation == expected_generation,
            topics_table.c.epoch == epoch,
        )
        .values(generation=topics_table.c.generation + 1)
    )
    return swapped.rowcount == 1


class PublishingStore(Store):
    """The commit point of compactions."""

    def publish(
        self,
        run: RunRecord,
        expected_generation: int,
        compacted: CompactedLedgerRecord,
        statistics: Mapping[str, object],
        retry: CompactionRetry | None = None,
    ) -> RunRecord:
        """Make `compacted` the compacted ledger that serves, move the horizon and end the run (A1). Returns the run.

        `expected_generation`: the one that the run has read. `retry`: a further run of the topic is needed; None: it is
        not. Raises Fenced if run, epoch or generation are not the topic's any more; then nothing has changed. Finds out
        by itself whether a COMMIT whose answer was lost has happened.
        """

        def happened(connection: Connection, _: RunRecord) -> bool:
            topics.lock(connection, run.topic_id)
            record = runs.get(connection, run.run_id)
            return record.state is RunState.SUCCESS and record.compacted_ledger_id == compacted.ledger_id

        failpoint(Failpoint.PUBLISH_BEFORE_TRANSACTION)
        published = self._database.write_once(
            lambda connection: publish(
                connection, run, expected_generation, compacted, statistics, retry, self._clock.now_ms()
            ),
            happened,
            f"whether run {run.run_id} published compacted ledger {compacted.ledger_id}",
        )
        failpoint(Failpoint.PUBLISH_AFTER_COMMIT)
        return published
