"""The history of the metadata's schema, as Alembic revisions: one for SQLite and PostgreSQL.

Run by `storage.metadata.schema` alone (`compactor db upgrade`), with a connection handed in. A revision that was
released never changes; the next one continues from it. `tests/migration` fails if the history and
`storage/metadata/tables.py` do not end at the same schema.
"""
