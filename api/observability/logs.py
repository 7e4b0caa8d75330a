"""The service's log: one line a record on stderr, JSON or for a console, with secrets redacted.

`storage` and `compactor` log by the standard library; structlog renders what comes from anywhere. They pass errors as
arguments of the message, so that the advice in them becomes commands here. Fields: `event`,
`level`, `logger`, `timestamp`, the fields of `extra=`, and the fields bound during work: `request_id` of a request,
`topic` and `run` of a compaction. Redaction is the last step before rendering and covers messages, fields and
tracebacks (`api/observability/redaction.py`); values of fields whose name says that they are secret are hidden whole.
"""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from api.observability.error_text import text_if_error
from api.observability.redaction import HIDDEN, LOGGED, redacted_excerpt
from api.settings.settings import Settings
from storage.clock import Clock

_SECRET_NAME = re.compile(
    r"(?i)(^|[_.-])(password|passwd|secret|token|authorization|credentials?|api_?key)([_.-]key)?$"
)
SELDOM_MS = 60_000
"""Time between two warnings of one condition."""
CONDITIONS = 100
"""The conditions that a `LogThrottle` distinguishes: one may contain text of a client."""
_QUIET = (
    "uvicorn.error",
    "uvicorn.access",
    "sqlalchemy",
    "alembic",
    "botocore",
    "boto3",
    "urllib3",
    "py4j",
    "s3transfer",
    "httpx",
    "asyncio",
)
"""Loggers whose lines below WARNING do not help an operator, or hold secrets."""


class LogThrottle:
    """Warnings of a few conditions: each is logged once a minute at most, with the number of its repetitions."""

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._at: dict[str, int] = {}
        self._more: Counter[str] = Counter()

    def warn(self, text: str, *arguments: object, condition: str = "") -> None:
        """Log a warning, or only count it if its condition was logged within the last `SELDOM_MS`.

        `arguments`: formatted into the text as by `logging`. `condition`: by default the text without its arguments, as
        for all conditions after the first `CONDITIONS`.
        """
        if not condition or (condition not in self._at and len(self._at) >= CONDITIONS):
            condition = text
        now = self._clock.now_ms()
        if 0 <= now - self._at.get(condition, -SELDOM_MS) < SELDOM_MS:
            self._more[condition] += 1
            return
        more = self._more.pop(condition, 0)
        self._at[condition] = now
        suffix = f" ({more} times more since this was logged last)" if more else ""
        self._log.warning(f"{text}%s", *arguments, suffix)


def configure(settings: Settings, stream: TextIO | None = None) -> logging.Handler:
    """Send all log records to `stream`, by default stderr, in the format and from the level of the settings.

    Return the handler, so that the caller can remove it.
    """
    out = stream or sys.stderr
    as_json = settings.logging_format == "json" or (settings.logging_format == "auto" and not out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter(as_json))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(settings.logging_level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelNamesMapping()[settings.logging_level]))
    logging.captureWarnings(True)
    return handler


def formatter(as_json: bool) -> logging.Formatter:
    """Return the formatter that makes one line of a log record: JSON, or text for a console. It hides secrets."""
    before: list[Processor] = [
        _format_message,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _drop_rendered_fields,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    last: Processor = (
        structlog.processors.JSONRenderer(default=str)
        if as_json
        else structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        use_get_message=False,
        pass_foreign_args=True,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact_event, last],
    )


def _format_message(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Insert the arguments into the message of a log event. Errors become text for an operator, with commands.

    A structlog processor; it returns the event.
    """
    arguments = event.pop("positional_args")
    if isinstance(arguments, tuple):
        arguments = tuple(map(text_if_error, arguments))
    if arguments:
        event["event"] %= arguments
    return event


def _drop_rendered_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Return the event without the fields in which other formatters and uvicorn repeat its message.

    A structlog processor.
    """
    return {name: value for name, value in event.items() if name not in ("message", "asctime", "color_message")}


def redact_event(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Return the log event with the secrets in all its values redacted. A structlog processor."""
    return {
        name: HIDDEN if value and _SECRET_NAME.search(name) else _redact_value(value) for name, value in event.items()
    }


def _redact_value(value: Any) -> Any:
    """Return a value of a log event with secrets redacted, also inside mappings and lists; long texts are shortened."""
    if isinstance(value, str):
        return redacted_excerpt(value, LOGGED)
    if isinstance(value, Mapping):
        return {
            str(name): HIDDEN if _SECRET_NAME.search(str(name)) else _redact_value(item) for name, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_redact_value(item) for item in value]
    return value if isinstance(value, int | float | bool) or value is None else redacted_excerpt(str(value), LOGGED)
