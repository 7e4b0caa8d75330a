"""Routes that produce and read messages."""
