"""Retention as Pulsar has it: minutes and MiB, -1 for no limit.

It is stored as the policies `retention.minutes` and `retention.bytes` (docs/policies.md), and matters where the cleanup
policy has `delete`; without that, and without a retention, everything is retained. A retention that is set here
replaces `retention.ms` and `retention.hours` of the same scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, cast

from fastapi import Body
from pydantic import Field

from api.admin.models import Strict
from api.http.problems import Problem
from compactor.maintenance.retention_plan import DELETE
from storage.options.resolution import Origin, Resolved

_MIB = 1 << 20
_MINUTES, _BYTES = "retention.minutes", "retention.bytes"
_TIMES = {"retention.ms": (1, 60_000), _MINUTES: (1, 1), "retention.hours": (60, 1)}
"""The policies of retention by time, the first that is set counts; how many minutes how many of them are."""
NAMES = (*_TIMES, _BYTES)
"""All policies that are a retention."""
_INT, _LONG = (1 << 31) - 1, (1 << 63) - 1
_ZERO = (
    "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a "
    "non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To disable retention both limits "
    "must be set to 0."
)


class Retention(Strict):
    """For how long, and up to which size, messages are retained."""

    retention_time_in_minutes: int = Field(0, le=_INT, ge=-_INT - 1)
    retention_size_in_mb: int = Field(0, alias="retentionSizeInMB", le=_LONG // _MIB, ge=-_LONG)


async def retention_body(retention: Annotated[Retention, Body()]) -> Retention:
    """A route's dependency: its body is a retention."""
    return retention


def set_retention(settings: Mapping[str, object]) -> dict[str, int] | None:
    """The retention that one scope sets; None: it sets nothing of it."""
    times = (
        cast(int, settings[name]) * minutes // units
        for name, (minutes, units) in _TIMES.items()
        if settings.get(name) is not None
    )
    time = next(times, None)
    size = cast("int | None", settings.get(_BYTES))
    if time is None and size is None:
        return None
    return _model(-1 if time is None else max(time, -1), -1 if size is None else size)


def applied_retention(resolved: Resolved) -> dict[str, int]:
    """The retention that holds for a topic."""
    policies, origins = resolved.policies, resolved.origins
    if DELETE not in policies.cleanup_policy and {origins[name] for name in NAMES} == {Origin.DEFAULT}:
        return _model(-1, -1)  # the default of Kafka's policy `delete`, which does not hold here
    time = policies.retention_ms_effective
    return _model(-1 if time is None else time // 60_000, policies.retention_bytes)


def retention_values(retention: Retention) -> dict[str, object]:
    """The policies to set. Raises Problem (412) for a retention that a broker refuses."""
    time, size = retention.retention_time_in_minutes, retention.retention_size_in_mb
    for what, value in (("size", size), ("time", time)):
        if value < -1:
            raise Problem(412, f"Invalid retention policy: {what} limit must be >= -1")
    if (time == 0) != (size == 0):
        raise Problem(412, _ZERO)
    return {_MINUTES: time, _BYTES: size * _MIB if size > 0 else size}


def _model(minutes: int, size: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": size // _MIB if size > 0 else size}
