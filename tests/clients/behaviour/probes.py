"""The table of probes: each asks a broker, or this service, one thing and returns what it answered as plain JSON.

An answer has no names, ids or times, so that it is the same at each run. A probe has topics of its own, so that all
may run at once; it waits for what it expects and takes a short quiet time for "nothing else follows".
"""

from __future__ import annotations

import itertools
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tests.clients.behaviour.endpoint import Endpoint

AT_ONCE = 12
_RUN, _NUMBERS = uuid.uuid4().hex[:8], itertools.count()


@dataclass(frozen=True)
class Probe:
    """One question. `findings`: the numbers of the differences that it was written for."""

    name: str
    findings: tuple[str, ...]
    ask: Callable[[Endpoint, str], Any]


PROBES: dict[str, Probe] = {}


def probe(*findings: str) -> Callable[[Callable[[Endpoint, str], Any]], Callable[[Endpoint, str], Any]]:
    """Add a function of an endpoint and a new topic's name to the table."""

    def add(ask: Callable[[Endpoint, str], Any]) -> Callable[[Endpoint, str], Any]:
        name = ask.__name__  # type: ignore[attr-defined]
        assert name not in PROBES, name
        PROBES[name] = Probe(name, findings, ask)
        return ask

    return add


def answers(endpoint: Endpoint, names: Iterable[str] | None = None) -> Mapping[str, Any]:
    """Ask all probes, several at once; the answers by name. What a probe raises is its answer."""
    chosen = [PROBES[name] for name in names] if names is not None else list(PROBES.values())
    with ThreadPoolExecutor(AT_ONCE, "probe") as pool:
        return dict(
            zip((item.name for item in chosen), pool.map(lambda item: _asked(item, endpoint), chosen), strict=True)
        )


def _asked(item: Probe, endpoint: Endpoint) -> Any:
    topic = f"persistent://public/default/{item.name}-{_RUN}-{next(_NUMBERS)}"
    try:
        return item.ask(endpoint, topic)
    except Exception:  # the comparison shows it
        return {"exception": traceback.format_exc(limit=-3).splitlines()}
