"""How long garbage stays: the one home of the grace time, for the setting, REST, the command and the collector."""

from __future__ import annotations

GRACE_MS = 3_600_000
"""The default: an hour."""
LEAST_GRACE_MS = 60_000
"""Twice the TTL of a heartbeat: with less, an attempt that is at work would count as dead."""
