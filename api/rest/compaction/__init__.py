"""Routes of compaction: triggers, runs, verification, trimming, garbage."""
