"""The two-phase compaction job and everything that decides when it runs."""
