"""Handlers of requests, by the noun that they are about."""
