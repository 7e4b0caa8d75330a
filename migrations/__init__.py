"""The history of the metadata's schema, as Alembic revisions: one for SQLite and PostgreSQL.

`storage.metadata.schema` alone runs them (`compactor db upgrade`), on its own connection. A released revision never
changes; the next one continues from it. `tests/migration` fails if the history and `storage/metadata/tables.py` do not
end at the same schema.
"""
