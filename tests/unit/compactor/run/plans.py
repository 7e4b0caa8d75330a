"""Plans of sources that are nowhere, for tests of what is decided without reading."""

from __future__ import annotations

from collections.abc import Sequence

from compactor.run.plan import RunPlan, RunPolicies, Source
from storage.ledger.hashing import Xxh3KeyHasher
from storage.objects.interface import StoreLocation


def plan_of(sources: Sequence[Source] = (), old_parts: int = 0, bits: int = 0) -> RunPlan:
    location, hasher = StoreLocation("file:///nowhere"), Xxh3KeyHasher(0)
    return RunPlan(location, "u", -1, "a", RunPolicies(), 0, hasher, tuple(sources), old_parts, range_bits=bits)
