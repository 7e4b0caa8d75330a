"""Pulsar's admin REST API at its own paths, and what goes beyond it under the same tree."""
