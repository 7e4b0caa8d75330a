"""Routes of topics and partitioned topics: their life, stats and owner."""
