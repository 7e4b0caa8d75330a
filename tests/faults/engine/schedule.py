"""The choice of the next event, for every driver of the random engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

Event = TypeVar("Event")


def choose(chance: random.Random, events: Sequence[tuple[Event, float]]) -> Event:
    """Return one of the events. `events`: each with its weight, relative to the other weights."""
    (event,) = chance.choices([event for event, _ in events], [weight for _, weight in events])
    return event
