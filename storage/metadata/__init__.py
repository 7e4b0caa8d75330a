"""Metadata that must be atomic: topics, ledgers, cursors, runs and leases, in one SQL database.

The only place of SQL. Callers use `store.MetadataStore`; its results are values of `records`.
"""
