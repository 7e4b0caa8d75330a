"""The definition of a setting: an option with a variable in the environment and Pulsar's and Kafka's own names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.observability.redaction import redacted, shown_url
from storage.options.kinds import Text, ValueKind
from storage.options.option import Option, option

ENVIRONMENT = "COMPACTOR_"


class Url(Text):
    """A text that is one URL, or empty; its password is never shown."""

    def to_json(self, value: object) -> object:
        return shown_url(str(value))


@dataclass(frozen=True)
class ExternalName:
    """Another system's name of a setting; `unit` (ms) of its bare numbers, `part` of its value that is meant."""

    name: str
    unit: int = 0
    part: float = 1.0


@dataclass(frozen=True)
class Setting(Option):
    """A setting: its option, the names that other systems have for it, and whether it is secret."""

    aliases: tuple[ExternalName, ...] = ()
    secret: bool = False

    @property
    def variable(self) -> str:
        """Return its variable in the environment."""
        return ENVIRONMENT + self.name.upper().replace(".", "_").replace("-", "_")

    def displayed(self, value: object) -> object:
        """Return the value as JSON has it, with secrets redacted."""
        if self.secret and value and not str(value).startswith("file:"):
            return "***"
        document = self.kind.to_json(value)
        return redacted(document) if isinstance(document, str) else document


def setting(
    default: Any, name: str, kind: ValueKind, doc: str, *aliases: str | ExternalName, secret: bool = False
) -> Any:
    """Return a field of `api.settings.settings.Settings` that is a setting."""
    others = tuple(alias if isinstance(alias, ExternalName) else ExternalName(alias) for alias in aliases)
    return option(Setting(name, kind, doc, default, aliases=others, secret=secret))
