"""`compactor topics table`."""

from __future__ import annotations

import typer

from api.cli.kit.output import show
from api.cli.kit.shared_arguments import Output, OutputFormat, Topic
from api.cli.kit.stderr import say
from api.cli.kit.terminal import print_line
from api.components import open_for_reading
from api.observability.error_text import OPERATOR_WORDING


def show_table_location(context: typer.Context, topic: Topic, output: Output = OutputFormat.TABLE) -> None:
    """Show where the Iceberg table of a topic is.

    Prints the URI of the table's metadata file, which DuckDB (iceberg_scan), polars (scan_iceberg), pyiceberg
    (StaticTable) and others open. The table shows the compacted ledger, up to its horizon. Each compaction writes
    another file. The policy table.enabled must be set.
    """
    from api.broker import tables

    with open_for_reading(context.obj) as environment:
        table = tables.iceberg_table_of(environment, topic)
    snapshot = table.metadata.current_snapshot
    summary = snapshot["summary"]
    rows = int(summary["total-records"]) - int(summary["total-position-deletes"])
    error = table.error.worded(OPERATOR_WORDING) if table.error else None
    if output is OutputFormat.JSON:
        document = {
            "topic": str(table.topic),
            "metadata": table.uri,
            "format_version": table.metadata.format_version,
            "snapshot": table.metadata.snapshot_id,
            "snapshots": [each["snapshot-id"] for each in table.metadata.snapshots],
            "generation": snapshot["sequence-number"],
            "horizon_offset": int(summary["compactor.horizon-offset"]),
            "rows": rows,
            "current": table.is_current,
            "table_error": error,
        }
        show(document, output)
        return
    say(f"Snapshot {table.metadata.snapshot_id}: {rows:,} rows, up to offset {summary['compactor.horizon-offset']}")
    if not table.is_current:
        say(f"The table does not show the compacted ledger {table.ledger_id}, which serves: {error}")
    print_line(table.uri)
