"""Alembic's environment: runs the revisions on the connection, and in the transaction, of `storage.metadata.schema`."""

from __future__ import annotations

from alembic import context

from storage.metadata.tables import METADATA

connection = context.config.attributes.get("connection")
if connection is None:
    raise RuntimeError("migrations need a connection of storage.metadata.schema; run `compactor db upgrade`")

# render_as_batch: SQLite changes a table by rewriting it.
context.configure(connection=connection, target_metadata=METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
