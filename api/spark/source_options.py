"""The options of a read and of a write: the topic, and the database and store or the service. Without Spark.

Errors: InvalidInput, which names the option and its values.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from api.settings.settings import Settings
from api.spark.service_scan import DEFAULT_PARTITIONS, Service
from storage.errors import InvalidInput
from storage.model import TopicName

_SETTINGS = {"data": "data", "database": "database", "store": "store", "s3endpoint": "s3_endpoint"}
_SERVICE = {"url", "token", "partitions"}
_OPTIONS = {"path", "readcompacted", "startingoffset", "maxmessagespertrigger", *_SETTINGS, *_SERVICE}


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read or write of Spark. `settings`: database, store and log directory; other settings come from
    the environment.

    `starting_offset`: of a stream: earliest, latest or a number. `max_messages`: the most of one batch of a stream.
    `service`: reads the topic, in `partitions` tasks at most for each of its compacted and raw messages; None: the
    driver and the tasks read database and store.
    """

    topic: TopicName
    read_compacted: bool
    settings: Mapping[str, str]
    starting_offset: str = "earliest"
    max_messages: int | None = None
    service: Service | None = None
    partitions: int = DEFAULT_PARTITIONS

    @staticmethod
    def parse_for_write(options: Mapping[str, str]) -> SourceOptions:
        """Parse the options of a write of Spark. Raises InvalidInput, which names the option and its values."""
        if "url" in {name.lower() for name in options}:
            raise InvalidInput("a service does not take the ledgers of a write", "name database and store, not url")
        values = _checked_options(options, {"path", *_SETTINGS}, '.save("persistent://public/default/orders")')
        return SourceOptions(TopicName.parse(values["path"]), False, _settings_of(values))

    @staticmethod
    def parse_for_read(options: Mapping[str, str]) -> SourceOptions:
        """Parse the options of a read of Spark. Raises InvalidInput, which names the option and its values."""
        values = _checked_options(options, _OPTIONS, '.load("persistent://public/default/orders")')
        flag = values.get("readcompacted", "false").lower()
        if flag not in ("true", "false"):
            raise InvalidInput(f"readCompacted is {flag!r}", "use true or false")
        start = values.get("startingoffset", "earliest").lower()
        if start not in ("earliest", "latest") and not start.isdecimal():
            raise InvalidInput(f"startingOffset is {start!r}", "use earliest, latest or an offset")
        limit = values.get("maxmessagespertrigger")
        if limit is not None and not (limit.isdecimal() and int(limit)):
            raise InvalidInput(f"maxMessagesPerTrigger is {limit!r}", "use a number above 0")
        partitions = values.get("partitions", str(DEFAULT_PARTITIONS))
        if not (partitions.isdecimal() and int(partitions)):
            raise InvalidInput(f"partitions is {partitions!r}", "use a number above 0")
        return SourceOptions(
            TopicName.parse(values["path"]),
            flag == "true",
            _settings_of(values),
            start,
            None if limit is None else int(limit),
            _service_of(values),
            int(partitions),
        )

    def load_settings(self) -> Settings:
        """Return the settings that result from these options, the environment and the defaults."""
        flags: dict[str, object] = dict(self.settings)
        return Settings.load(os.environ, None, **flags)


def _checked_options(options: Mapping[str, str], known: Collection[str], example: str) -> dict[str, str]:
    """Return options with names in lower case. Raise InvalidInput for an unknown option, or if no topic is named."""
    values = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(set(values) - set(known)):
        raise InvalidInput(f"unknown option {unknown[0]}", f"use one of {', '.join(sorted(known))}")
    if not values.get("path"):
        raise InvalidInput("no topic is named", f"name it: {example}")
    return values


def _settings_of(values: Mapping[str, str]) -> dict[str, str]:
    return {attribute: values[option] for option, attribute in _SETTINGS.items() if option in values}


def _service_of(values: Mapping[str, str]) -> Service | None:
    """Return the service that the options name; None: they name none. Raise InvalidInput for contradictory options."""
    url = values.get("url")
    if url is None:
        if others := sorted(_SERVICE & set(values)):
            raise InvalidInput(f"the option {others[0]} is of a read by a service", "name the service with url, too")
        return None
    if others := sorted(set(_SETTINGS) & set(values)):
        raise InvalidInput(f"the options url and {others[0]} contradict each other", "use one of them")
    return Service(url, values.get("token"))
