"""The times at which retired compacted ledgers may be collected (A3), by the tables that list them.

A retired compacted ledger stays for a grace time. Readers of a topic's Iceberg table take no pin, and a table shows and
lists earlier compacted ledgers, so these stay longer:

- the one that the serving table shows, while it does;
- one that the serving table lists for readers that go back in time, for the age of snapshots after another replaced it.
  A topic without new runs, or whose table cannot follow its runs, so lists snapshots whose objects are gone;
- one that was listed, for a grace time after it left the list, so that reads that have begun may finish.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage.ledger.manifest import TableSnapshot
from storage.metadata.records import CompactedLedgerRecord


def due_times(
    ledgers: Sequence[CompactedLedgerRecord],
    tables: Mapping[int, TableSnapshot | None],
    grace_ms: int,
    snapshot_age_ms: int,
) -> dict[int, int]:
    """Return when each retired compacted ledger may be collected (ms), by id; those that must stay are left out.

    `ledgers`: of a topic, by generation. `tables`: the table of each; None: it has none; left out: it is unknown.
    """
    created = {item.ledger_id: item.created_at for item in ledgers}
    serving = next((tables.get(item.ledger_id) for item in ledgers if item.retired_at is None), None)
    following = {} if serving is None else dict(zip(serving.snapshots, serving.snapshots[1:], strict=False))
    due = {}
    for number, item in enumerate(ledgers):
        if item.retired_at is None or (serving is not None and serving.ledger_id == item.ledger_id):
            continue
        if item.ledger_id in following:
            since, stays_ms = created.get(following[item.ledger_id], item.retired_at), max(grace_ms, snapshot_age_ms)
        else:
            since, stays_ms = _latest_unlisting_time(item, ledgers[number + 1 :], tables), grace_ms
        due[item.ledger_id] = max(since, item.retired_at) + stays_ms
    return due


def _latest_unlisting_time(
    retired: CompactedLedgerRecord,
    later: Sequence[CompactedLedgerRecord],
    tables: Mapping[int, TableSnapshot | None],
) -> int:
    """Return the latest time (ms) at which a retired compacted ledger left the list of snapshots of the table."""
    for item in later:
        if item.ledger_id not in tables:
            continue
        table = tables[item.ledger_id]
        if table is None or retired.ledger_id not in table.snapshots:
            return item.created_at
    return max((item.retired_at or 0 for item in later), default=0)
