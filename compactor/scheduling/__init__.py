"""When a topic is compacted, and by which process: backlog, what is due, leadership, workers."""
