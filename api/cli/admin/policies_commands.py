"""`compactor-admin policies`: all that docs/policies.md lists, for a topic, a namespace or the broker."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from api.cli.admin.session import (
    OutputName,
    namespace_path,
    path,
    session,
    topic_path,
)
from api.cli.kit.names import TOPIC_HELP
from api.cli.kit.stderr import origin
from storage.errors import InvalidInput

Of = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help=f"Of a topic. {TOPIC_HELP}")]
OfNamespace = Annotated[str | None, typer.Option("--namespace", metavar="TENANT/NAMESPACE", help="Of a namespace.")]
OfBroker = Annotated[bool, typer.Option("--broker", help="Of the broker, for all topics.")]


def get_policies(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One policy; all if not given.")] = None,
    topic: Of = None,
    namespace: OfNamespace = None,
    broker: OfBroker = False,
    own: Annotated[bool, typer.Option("--own", help="Only what is set right here.")] = False,
) -> None:
    """Show policies as they hold in the end, and where each comes from."""
    admin = session(context)
    answer = admin.service.get(_path(topic, namespace, broker, *([] if name is None else [name])), applied=not own)
    if admin.output is OutputName.JSON:
        admin.show(answer)
        return
    found: dict[str, Any] = answer if name is None else {name: answer}
    admin.show([{"policy": one, "value": of["value"], "from": origin(of)} for one, of in found.items()])


def set_policies(
    context: typer.Context,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="What to set.")],
    topic: Of = None,
    namespace: OfNamespace = None,
    broker: OfBroker = False,
) -> None:
    """Set policies, all of these or none; the others stay."""
    wanted = {}
    for text in settings:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InvalidInput(f"{text!r} is not NAME=VALUE", "give a policy as segment.bytes=64M")
        wanted[name] = value
    admin = session(context)
    admin.service.put(_path(topic, namespace, broker), wanted)
    admin.done(f"{', '.join(wanted)} set for {_whose(topic, namespace)}")


def remove_policies(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Which.")],
    topic: Of = None,
    namespace: OfNamespace = None,
    broker: OfBroker = False,
) -> None:
    """Remove policies, so that the next wider place counts again."""
    admin = session(context)
    for name in names:
        admin.service.delete(_path(topic, namespace, broker, name))
        admin.done(f"{name} removed from {_whose(topic, namespace)}")


def _path(topic: str | None, namespace: str | None, broker: bool, *rest: str) -> str:
    if sum((topic is not None, namespace is not None, broker)) != 1:
        raise InvalidInput(
            "policies takes one of a topic, a namespace and the broker", "give --topic, --namespace or --broker"
        )
    if topic is not None:
        return topic_path(topic, "policies", *rest)
    if namespace is not None:
        return namespace_path(namespace, "policies", *rest)
    return path("admin", "v2", "brokers", "policies", *rest)


def _whose(topic: str | None, namespace: str | None) -> str:
    return topic or namespace or "the broker"
