"""What is done for topics beside compaction: retention, garbage collection, backlog limits, clearing."""
