"""Maintenance of topics beside compaction: retention, garbage collection, backlog limits, truncation."""
