"""Routes of topics and partitioned topics: their lifecycle, stats and owner."""
