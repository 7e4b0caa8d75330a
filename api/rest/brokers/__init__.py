"""Routes of the service itself: brokers, health, and calls that are not offered."""
