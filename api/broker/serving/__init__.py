"""State that one process serves live: connected producers and consumers. It knows no socket and no protobuf command."""
