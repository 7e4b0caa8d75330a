"""Pulsar's entries: reading and writing one, and what its messages are as rows. No files, no SQL."""
