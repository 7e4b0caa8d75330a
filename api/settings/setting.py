"""Definition of a setting: an option with a variable in the environment and the names of Pulsar and Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.observability.redaction import redacted, redacted_url
from storage.options.kinds import BOOLEAN, Duration, Size, Text, ValueKind
from storage.options.option import Option, option

ENVIRONMENT = "COMPACTOR_"
_FLAGS = {"compaction.engine": "engine"}
"""Options whose name is not that of their setting, by setting."""


class Url(Text):
    """The kind of a setting whose value is a URL, or empty. Its password is never shown."""

    def to_json(self, value: object) -> object:
        return redacted_url(str(value))


@dataclass(frozen=True)
class ExternalName:
    """The name of a setting in Pulsar or Kafka, with its unit. `unit_ms`: the milliseconds in its unit of time; 0: the
    setting is no duration. `factor`: the number by which its value is multiplied."""

    name: str
    unit_ms: int = 0
    factor: float = 1.0


@dataclass(frozen=True)
class Setting(Option):
    """The definition of a setting. `aliases`: its names in Pulsar and Kafka. `secret`: its value is never shown."""

    aliases: tuple[ExternalName, ...] = ()
    secret: bool = False

    @property
    def flag(self) -> str:
        """Return the name of the command-line option of the setting, such as `--data`."""
        return f"--{_FLAGS.get(self.name, self.name.replace('.', '-'))}"

    @property
    def environment_variable(self) -> str:
        """Return the name of the setting's environment variable, such as `COMPACTOR_DATA`."""
        return ENVIRONMENT + self.name.upper().replace(".", "_").replace("-", "_")

    def displayed(self, value: object) -> object:
        """Return a value of the setting for display as JSON, with secrets redacted; `file:` names are not secret."""
        if self.secret and value and not str(value).startswith("file:"):
            return "***"
        document = self.kind.to_json(value)
        return redacted(document) if isinstance(document, str) else document


def setting(
    default: Any, name: str, kind: ValueKind, doc: str, *aliases: str | ExternalName, secret: bool = False
) -> Any:
    """Return a dataclass field of `api.settings.settings.Settings` that is a setting.

    `default`: its value if no source has one. `name`: with dots. `doc`: the meaning, for people. `aliases`: the names
    that Pulsar and Kafka have for it. `secret`: its value is never shown.
    """
    others = tuple(alias if isinstance(alias, ExternalName) else ExternalName(alias) for alias in aliases)
    return option(Setting(name, kind, doc, default, aliases=others, secret=secret))


def duration(default: Any, name: str, doc: str, *aliases: str | ExternalName, least: int = 1) -> Any:
    """Return the dataclass field of a setting that is a duration in milliseconds, at least `least`.

    A text must name its unit. The other parameters are those of `setting`.
    """
    return setting(default, name, Duration(least=least, needs_unit=True), doc, *aliases)


def size(default: Any, name: str, doc: str, *aliases: str | ExternalName, least: int = 0) -> Any:
    """Return the dataclass field of a setting that is a number of bytes, at least `least`; see `setting`."""
    return setting(default, name, Size(least=least), doc, *aliases)


def switch(default: bool, name: str, doc: str, *aliases: str | ExternalName) -> Any:
    """Return the dataclass field of a setting that is on or off; see `setting`."""
    return setting(default, name, BOOLEAN, doc, *aliases)
