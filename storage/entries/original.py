"""Rows of a replicated topic as the source cluster has them: with its positions as ids, and without its name.

A replicator adds the name of its cluster to the metadata of each entry (`replicated_from`). The entry at the source has
none, so a reader there must get none.

Must not know: the source of rows, the receivers of entries.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from storage.entries.pulsar_metadata_pb2 import MessageMetadata
from storage.ledger import rows


def has_source_positions(table: pa.Table) -> bool:
    """Return whether every row of a table (rows.SCHEMA) has a position at a source cluster."""
    return not any(table.column(name).null_count for name in rows.SOURCE_COLUMNS)


def with_source_ids(table: pa.Table) -> tuple[pa.Table, frozenset[str]]:
    """Replace the ledger and entry ids of rows by those of the source cluster, and remove the source's name from their
    metadata; return the new table and the names that were removed.

    `table`: of rows.SCHEMA; every row has a position at its source. The names remain in entries that are kept whole.
    """
    for name, source in zip(("ledger_id", "entry_id"), rows.SOURCE_COLUMNS, strict=True):
        column = table.column(source)
        table = table.set_column(table.schema.get_field_index(name), rows.SCHEMA.field(name), column)
    rests = rows.contiguous_array(table.column("metadata")).dictionary_encode()
    stripped, clusters = [], set()
    for rest in rests.dictionary.to_pylist():
        metadata = MessageMetadata()
        metadata.MergeFromString(rest)
        if metadata.HasField("replicated_from"):
            clusters.add(str(metadata.replicated_from))
            metadata.ClearField("replicated_from")
        stripped.append(metadata.SerializePartialToString() or None)
    column = pc.take(pa.array(stripped, pa.binary()), rests.indices)
    at = table.schema.get_field_index("metadata")
    return table.set_column(at, rows.SCHEMA.field("metadata"), column), frozenset(clusters)
