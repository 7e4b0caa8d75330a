"""The two-phase compaction job, its scheduling, and maintenance of topics."""
