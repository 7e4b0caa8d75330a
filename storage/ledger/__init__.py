"""Immutable ledgers: Parquet rows, key index, compacted parts, manifest, object names (docs/format.md)."""
