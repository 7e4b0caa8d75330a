"""Formats of numbers, sizes, times and names on the dashboard's pages."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from markupsafe import Markup, escape

from api.dashboard.payload_views import with_visible_controls
from api.observability.redaction import redacted

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NONE = "–"
"""Text for a missing value."""
_JUST_NOW_MS = 5_000
_STEPS = (("second", 60), ("minute", 60), ("hour", 48), ("day", 60), ("month", 24))
"""Units of a relative time, each with the number from which the next one is used."""
_SECONDS = {"second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "month": 2_629_746, "year": 31_556_952}
_POLICY_OF_CAUSE = {
    "threshold.bytes": "compaction.threshold.bytes",
    "threshold.messages": "compaction.threshold.messages",
    "dirty.ratio": "min.cleanable.dirty.ratio",
    "max.lag": "max.compaction.lag.ms",
}
"""The policy of each cause in compactor/scheduling/due.py."""
_BREAKS = re.compile(r"(?<=[/._-])(?=[^/._-])")
"""Places in a name after which a line may break."""


def size(value: int | None) -> str:
    """Format a number of bytes in the largest unit that does not exceed it."""
    if value is None:
        return NONE
    number, unit = float(value), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:,.0f} {_UNITS[unit]}" if not unit or number >= 100 else f"{number:.1f} {_UNITS[unit]}"


def count(value: int | None) -> str:
    """Format a number with commas between thousands."""
    return NONE if value is None else f"{value:,}"


def counted(value: int | None, noun: str) -> str:
    """Format a number of things, as in "1 message" and "2,000 messages"."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def share(value: float | None) -> str:
    """Format a fraction of one in percent."""
    return NONE if value is None else f"{100 * value:,.0f} %"


def time(value: int | None) -> str:
    """Format milliseconds since the Unix epoch as a time in UTC, or as they are if no calendar has them: producers may
    send any number."""
    if not value:
        return NONE
    moment = _utc_datetime(value)
    return f"{value:,} ms since 1970" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def exact_time(value: int | None) -> str:
    """Format milliseconds since the Unix epoch as a time in UTC, with the milliseconds; else as `time` does."""
    moment = _utc_datetime(value) if value else None
    return time(value) if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def _utc_datetime(milliseconds: int) -> datetime | None:
    """Convert milliseconds since the Unix epoch to a time in UTC; None: no calendar has it."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def parse_pulsar_time(value: str) -> int:
    """Return the milliseconds since the Unix epoch of a time as Pulsar writes it; 0: there is none."""
    return round(datetime.fromisoformat(value).timestamp() * 1000) if value else 0


def ago(value: int | None, now: int) -> Markup:
    """Format a time relative to `now`, as in "3 minutes ago", with the exact time in UTC as the title."""
    if not value:
        return escape(NONE)
    moment = _utc_datetime(value)
    if moment is None:
        return escape(time(value))
    exact = moment.isoformat(timespec="seconds")
    element = Markup('<time datetime="{}" title="{} UTC">{}</time>')
    return element.format(exact, time(value), _relative_time_text(now - value))


def ahead(value: int | None, now: int) -> Markup:
    """Format the time of something that will happen, relative to `now`; a time that has come is "now"."""
    return ago(value and max(value, now + 1), now)


def _relative_time_text(milliseconds: int) -> str:
    """Return the words for a time that is `milliseconds` ago, or ahead if negative."""
    if abs(milliseconds) < _JUST_NOW_MS:
        return "just now" if milliseconds >= 0 else "now"
    seconds, unit = abs(milliseconds) // 1000, "year"
    for name, limit in _STEPS:
        if seconds // _SECONDS[name] < limit:
            unit = name
            break
    number = seconds // _SECONDS[unit]
    words = f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{words} ago" if milliseconds > 0 else f"in {words}"


def breakable(value: object) -> Markup:
    """Return a name in which a line may break after `/`, `.`, `-` and `_`, and nowhere else."""
    return Markup("<wbr>").join(_BREAKS.split(str(value)))


def shorten(name: str, limit: int = 12) -> str:
    """Return a name, cut after `limit` characters and marked with an ellipsis."""
    return name if len(name) <= limit else name[:limit] + "…"


def policy_of_cause(word: str) -> str:
    """Return the name of the policy that is the cause of a run; any other cause unchanged."""
    return _POLICY_OF_CAUSE.get(word, word)


def duration(value: int | None) -> str:
    """Format a duration in milliseconds, as in "850 ms", "4.2 s" and "63 min 5 s"; None: NONE."""
    if value is None:
        return NONE
    if value < 1:
        return "under 1 ms"
    if value < 1_000:
        return f"{value} ms"
    if value < 10_000:
        return f"{value / 1000:.1f} s"
    seconds = value // 1000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min {seconds % 60} s"


def exact_duration(milliseconds: int) -> str:
    """Return a duration in the largest unit that divides it, as in "7 days"."""
    for unit in ("day", "hour", "minute", "second"):
        number, rest = divmod(milliseconds, 1000 * _SECONDS[unit])
        if number and not rest:
            return f"{number:,} {unit}{'' if number == 1 else 's'}"
    return duration(milliseconds)


def rate(value: float) -> str:
    """Format a number per second, with a digit after the point below 100."""
    return f"{value:,.1f}" if 0 < value < 100 else f"{value:,.0f}"


def text(data: bytes, limit: int = 200, is_cut: bool = False) -> str:
    """Format bytes as text, or in hexadecimal if they are none (`is_binary`), cut after `limit` characters.

    `is_cut`: more bytes follow, so the last ones may be a part of a character.
    """
    decoded = _decode_text(data, is_cut)
    words = data[:limit].hex(" ") if decoded is None else decoded
    return words if len(words) <= limit else words[:limit].rstrip() + "…"


def is_binary(data: bytes | None, is_cut: bool = False) -> bool:
    """Return whether bytes are no text: not UTF-8, or with a NUL. `is_cut`: as for `text`."""
    return data is not None and _decode_text(data, is_cut) is None


def _decode_text(data: bytes, is_cut: bool) -> str | None:
    """Return bytes as text, without a last character that is cut; None: they are no text."""
    try:
        decoded, _ = codecs.utf_8_decode(data, "strict", not is_cut)
    except UnicodeDecodeError:
        return None
    return None if "\0" in decoded else decoded


def chart_tooltip(index: int, height: int, text: str) -> Markup:
    """Return an invisible slice of a chart, one unit wide, with a text that a browser shows over it."""
    return Markup('<rect x="{}" y="0" width="1" height="{}" class="slice"><title>{}</title></rect>').format(
        index, height, text
    )


FILTERS: Mapping[str, Callable[..., object]] = {
    function.__name__: function
    for function in (
        size,
        count,
        counted,
        share,
        time,
        exact_time,
        parse_pulsar_time,
        ago,
        breakable,
        policy_of_cause,
        duration,
        rate,
        text,
        is_binary,
        ahead,
        redacted,
        with_visible_controls,
    )
}
