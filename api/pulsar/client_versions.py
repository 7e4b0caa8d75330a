"""Differences between client libraries, by the version that a client reports."""

from __future__ import annotations

import re

_JAVA_VERSION = re.compile(r"java[^0-9]*(\d+)\.(\d+)\.(\d+)", re.IGNORECASE)
_GIVES_BACK_ALL = re.compile(r"cpp|c\+\+|python|node|\bgo\b", re.IGNORECASE)
_FIRST_FIXED = {(2, 10): 6, (2, 11): 4, (3, 0): 3, (3, 1): 3, (3, 2): 1}
"""Java clients that give back permits only for what they deliver, by release line (apache/pulsar #22091)."""


def returns_permits_for_hidden_slots(client_version: str) -> bool:
    """Return whether a client gives back flow permits also for the messages of a batch that its ack set leaves out.

    False for an unknown client.
    """
    java = _JAVA_VERSION.search(client_version)
    if java is not None:
        line, patch = (int(java[1]), int(java[2])), int(java[3])
        return line < (3, 3) and patch < _FIRST_FIXED.get(line, 1 << 30)
    return _GIVES_BACK_ALL.search(client_version) is not None
