"""Pulsar's binary protocol: connections, producers and consumers over the log, readers and cursors of REST."""
