"""The session of a command: the connection to the service, and the output format.

Data goes to stdout: tables, one name a line, or with `--output json` the service's answer. Messages go to stderr; a
command that changes something reports it there in one line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from api.cli.admin.client_config import load_client_config
from api.cli.kit.output import show
from api.cli.kit.quantity_parsers import parse_pair
from api.cli.kit.shared_arguments import OutputFormat
from api.cli.kit.stderr import say
from storage.errors import InvalidInput
from storage.model import TopicName

if TYPE_CHECKING:
    from api.cli.admin.connection import Connection


@dataclass
class Session:
    """State of one call of the program: its global options, and its connection to the service."""

    flags: Mapping[str, str | None]
    config: str | None = None
    output: OutputFormat = OutputFormat.TABLE

    @cached_property
    def service(self) -> Connection:
        """Return the connection to the service. The first use opens it and imports httpx."""
        from api.cli.admin.connection import Connection

        return Connection(load_client_config(self.flags, self.config, os.environ))

    @property
    def as_json(self) -> bool:
        """Return whether the output format is JSON."""
        return self.output is OutputFormat.JSON

    def close(self) -> None:
        """Close the connection to the service, if it was opened."""
        if "service" in vars(self):
            self.service.close()

    def show(self, answer: Any, columns: Sequence[str] = ()) -> None:
        """Print an answer of the service, as table or JSON; `columns`: the fields of a list of objects, all if
        empty."""
        show(answer, self.output, columns)

    def report_change(self, change: str) -> None:
        """Report a completed change on stderr."""
        say(f"compactor-admin: {change}")


def session_of(context: typer.Context) -> Session:
    """Return the session that the program's callback stored in a command's context."""
    obj = context.obj
    assert isinstance(obj, Session)
    return obj


def expand_path(template: str, **values: object) -> str:
    """Fill in a path template such as `/admin/v2/persistent/{topic}/stats`. Each value is percent-encoded.

    `topic` becomes tenant, namespace and topic; `namespace` tenant and namespace; any other value is one part. Raises
    InvalidInput for a name that cannot exist.
    """
    parts: list[str] = []
    for part in template.strip("/").split("/"):
        name = part.strip("{}")
        if name == part:
            parts.append(part)
        elif name == "topic":
            topic = TopicName.parse(str(values[name]))
            parts += (topic.tenant, topic.namespace, topic.topic)
        elif name == "namespace":
            parts += _parse_namespace(str(values[name]))
        else:
            parts.append(_require_name(name, str(values[name])))
    return _encode_path(parts)


def topic_path(topic: str, *parts: str) -> str:
    """Return the path of a topic, or of `parts` below it: `/admin/v2/persistent/t/n/topic/stats`. Each part is encoded.

    An error about an empty part names the part before it, as in `subscription`. Raises InvalidInput for a name that
    cannot exist.
    """
    name = TopicName.parse(topic)
    below = [_require_name(noun, part) for noun, part in pairwise(("topic", *parts))]
    return _encode_path(["admin", "v2", "persistent", name.tenant, name.namespace, name.topic, *below])


def _require_name(noun: str, name: str) -> str:
    if not name:
        raise InvalidInput(f"the name of the {noun} is empty", "give a name")
    return name


def _encode_path(parts: Sequence[str]) -> str:
    return "/" + "/".join(map(_encode_path_part, parts))


def _parse_namespace(text: str) -> tuple[str, str]:
    tenant, separator, namespace = text.partition("/")
    if not separator or not tenant or not namespace or "/" in namespace:
        raise InvalidInput(f"{text!r} is not the name of a namespace", "give tenant/namespace")
    return tenant, namespace


def _encode_path_part(part: str) -> str:
    """Percent-encode one part of a URL path; a part of dots alone is encoded, too."""
    return quote(part, safe=":=") if part.strip(".") else part.replace(".", "%2E")


def parse_key_values(option: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse `a=b` texts, which are repeated or separated by commas, to a mapping. `option`: its name for the error.
    Raises InvalidInput."""
    pairs = (pair for text in texts for pair in text.split(","))
    return dict(parse_pair(pair, f"give {option} key=value") for pair in pairs)


def split_names(texts: Iterable[str] | None) -> list[str]:
    """Split texts at commas, and return all names in one list; None gives an empty list."""
    return [name for text in texts or () for name in text.split(",") if name]
