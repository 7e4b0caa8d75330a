"""Grace time of garbage, for the setting, REST, the command and the collector."""

from __future__ import annotations

GRACE_MS = 3_600_000
"""Default grace time: an hour."""
LEAST_GRACE_MS = 60_000
"""Minimum grace time: twice the TTL of a heartbeat. With less, an active attempt would count as dead."""
