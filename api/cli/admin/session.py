"""What a command is given: the service, and how its answers are shown.

stdout is data: tables, or one name a line, or with `--output json` what the service said; stderr is talk. A command
that changes something says in one line on stderr what it did.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from api.cli.admin.target import find_target
from api.cli.kit.stderr import say
from api.cli.kit.terminal import plain, put, put_json
from storage.errors import InvalidInput
from storage.model import TopicName

if TYPE_CHECKING:
    from api.cli.admin.connection import Connection


class OutputName(StrEnum):
    """For people, or for scripts."""

    TABLE = "table"
    JSON = "json"


@dataclass
class Session:
    """One call of the program."""

    flags: Mapping[str, str | None]
    config: str | None = None
    output: OutputName = OutputName.TABLE

    @cached_property
    def service(self) -> Connection:
        """The service, spoken to from the first command that needs it; httpx is imported only then."""
        from api.cli.admin.connection import Connection

        return Connection(find_target(self.flags, self.config, os.environ))

    def close(self) -> None:
        """Close the connection, if there is one."""
        if "service" in vars(self):
            self.service.close()

    def show(self, answer: Any, columns: Sequence[str] = ()) -> None:
        """Print what the service said. `columns`: of a list of objects, which fields in which order; all if empty."""
        if self.output is OutputName.JSON:
            put_json(json.dumps(answer, indent=2, ensure_ascii=False))
            return
        from api.cli.kit.tables import print_table

        if isinstance(answer, list) and answer and all(isinstance(one, dict) for one in answer):
            named = list(columns) or list(dict.fromkeys(key for one in answer for key in one))
            rows = [[_cell(name, one.get(name)) for name in named] for one in answer]
            print_table([name.replace("_", " ") for name in named], rows)
        elif isinstance(answer, list):
            for one in answer:
                put(plain(_cell("", one)))
        elif isinstance(answer, dict):
            print_table(("what", "value"), [(name, _cell(name, value)) for name, value in flatten(answer)])
        elif answer is not None:
            put(plain(_cell("", answer)))

    def done(self, what: str) -> None:
        """Say what was changed."""
        say(f"compactor-admin: {what}")


def session(context: typer.Context) -> Session:
    """The session that the program's callback made."""
    found = context.obj
    assert isinstance(found, Session)
    return found


def topic_path(text: str, *rest: str) -> str:
    """The path of a topic, or of something of it: `/admin/v2/persistent/t/n/topic/stats`. Raises InvalidTopicName."""
    name = TopicName.parse(text)
    return path("admin", "v2", "persistent", name.tenant, name.namespace, name.topic, *rest)


def namespace_path(text: str, *rest: str) -> str:
    """The path of a namespace, or of something of it. Raises InvalidInput."""
    return path("admin", "v2", "namespaces", *namespace_parts(text), *rest)


def namespace_parts(text: str) -> tuple[str, str]:
    """Tenant and namespace. Raises InvalidInput."""
    tenant, separator, namespace = text.partition("/")
    if not separator or not tenant or not namespace or "/" in namespace:
        raise InvalidInput(f"{text!r} is not the name of a namespace", "give tenant/namespace")
    return tenant, namespace


def path(*parts: str) -> str:
    """A path of these parts, each of them encoded. Raises InvalidInput for an empty one."""
    if "" in parts:
        raise InvalidInput("a name is empty", "give a name")
    # A part of dots would be taken for a way through folders.
    return "/" + "/".join(quote(part, safe=":=") if part.strip(".") else part.replace(".", "%2E") for part in parts)


def key_values(option: str, given: Iterable[str]) -> dict[str, str]:
    """`a=b` given many times, or `a=b,c=d`, as a mapping. Raises InvalidInput."""
    found = {}
    for text in given:
        for one in text.split(","):
            key, separator, value = one.partition("=")
            if not separator or not key:
                raise InvalidInput(f"{one!r} is no key=value for {option}", f"give {option} key=value")
            found[key] = value
    return found


def flatten(answer: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, Any]]:
    """The fields of nested objects by dotted names, for a table of two columns."""
    for key, value in answer.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and value:
            yield from flatten(value, name)
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            for position, one in enumerate(value):
                yield from flatten(one, f"{name}[{position}]")
        else:
            yield name, value


def _cell(name: str, value: Any) -> str:
    """A value for a person; times since 1970 as times."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and name.endswith("_at") and value > 10**11:
        from datetime import UTC, datetime

        return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False) if value else "-"
    return str(value)


def to_terminal() -> bool:
    """Whether a person watches stderr, so that one line may be written over and over."""
    return sys.stderr.isatty()
