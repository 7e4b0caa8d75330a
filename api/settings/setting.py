"""What one setting is: its name, what it takes, what it means, and by what other names it is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from api.observability.redaction import redacted

ENVIRONMENT = "COMPACTOR_"


class Kind(Protocol):
    """What a setting takes."""

    @property
    def allowed(self) -> str: ...

    def parse(self, name: str, given: object) -> object: ...

    def shown(self, value: object) -> object: ...


@dataclass(frozen=True)
class Alias:
    """Another system's name of a setting; `unit` (ms) of its bare numbers, `part` of its value that is meant."""

    name: str
    unit: int = 0
    part: float = 1.0


@dataclass(frozen=True)
class Setting:
    """What may be set."""

    name: str
    kind: Kind
    doc: str
    default: Any
    aliases: tuple[Alias, ...] = ()
    secret: bool = False
    attribute: str = ""

    @property
    def variable(self) -> str:
        """Its variable in the environment."""
        return ENVIRONMENT + self.name.upper().replace(".", "_").replace("-", "_")

    def shown(self, value: object) -> object:
        """The value as it may be shown, and as JSON has it: secrets redacted."""
        if self.secret and value and not str(value).startswith("file:"):
            return "***"
        told = self.kind.shown(value)
        return redacted(told) if isinstance(told, str) else told


def setting(default: Any, name: str, kind: Kind, doc: str, *aliases: str | Alias, secret: bool = False) -> Any:
    """A field of `api.settings.settings.Settings` that is a setting."""
    others = tuple(one if isinstance(one, Alias) else Alias(one) for one in aliases)
    return field(default=default, metadata={"setting": Setting(name, kind, doc, default, others, secret)})
