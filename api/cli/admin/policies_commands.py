"""`compactor-admin policies`: the policies of docs/policies.md, for a topic, a namespace or the broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from api.cli.admin.requests import BROKERS, NAMESPACE, TOPIC, Command
from api.cli.admin.session import expand_path, session_of
from api.cli.kit.quantity_parsers import parse_pair
from api.cli.kit.reports import show_policies
from api.cli.kit.shared_arguments import TOPIC_HELP
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
    own: Annotated[bool, typer.Option("--own", help="Only the policies that are set for this scope.")] = False,
) -> None:
    """Show the effective policies and the origin of each."""
    admin = session_of(context)
    answer = admin.service.get(_policies_path(topic, namespace, broker, name), applied=not own)
    if admin.as_json:
        admin.show(answer)
    else:
        show_policies(answer if name is None else {name: answer})


def set_policies(
    context: typer.Context,
    settings: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="What to set.")],
    topic: Of = None,
    namespace: OfNamespace = None,
    broker: OfBroker = False,
) -> None:
    """Set policies, all of them or none; other policies stay."""
    values = dict(parse_pair(text, "give a policy as segment.bytes=64M") for text in settings)
    admin = session_of(context)
    admin.service.request("PUT", _policies_path(topic, namespace, broker), body=values)
    admin.report_change(f"{', '.join(values)} set for {topic or namespace or 'the broker'}")


def remove_policies(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Which.")],
    topic: Of = None,
    namespace: OfNamespace = None,
    broker: OfBroker = False,
) -> None:
    """Remove policies, so that those of the next wider scope apply."""
    admin = session_of(context)
    for name in names:
        admin.service.request("DELETE", _policies_path(topic, namespace, broker, name))
        admin.report_change(f"{name} removed from {topic or namespace or 'the broker'}")


def _policies_path(topic: str | None, namespace: str | None, broker: bool, name: str | None = None) -> str:
    if sum((topic is not None, namespace is not None, broker)) != 1:
        raise InvalidInput(
            "policies takes one of a topic, a namespace and the broker", "give --topic, --namespace or --broker"
        )
    scope = BROKERS if broker else TOPIC if namespace is None else NAMESPACE
    path = f"{scope}/policies" if name is None else f"{scope}/policies/{{name}}"
    return expand_path(path, topic=topic, namespace=namespace, name=name)


COMMANDS: Mapping[str, Command] = {"get": get_policies, "set": set_policies, "remove": remove_policies}
