"""All probes: importing the modules adds them to the table, which this module gives on."""

from __future__ import annotations

from pathlib import Path

from tests.clients.behaviour import (  # noqa: F401 - each adds its probes
    probes_acks,
    probes_clients,
    probes_dispatch,
    probes_edges,
    probes_permits,
    probes_rest,
    probes_rest_cursor,
    probes_sessions,
)
from tests.clients.behaviour.probes import PROBES, answers

__all__ = ["PROBES", "RECORDED", "answers"]

RECORDED = Path(__file__).with_name("recorded.json")
