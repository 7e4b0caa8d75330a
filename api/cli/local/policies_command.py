"""`compactor topics policies`: show, set and remove the policies of a topic, a namespace or the broker."""

from __future__ import annotations

from typing import Annotated

import typer

from api.cli.kit.output import show
from api.cli.kit.quantity_parsers import parse_pair
from api.cli.kit.reports import show_policies
from api.cli.kit.shared_arguments import TOPIC_HELP, Output, OutputFormat
from api.components import open_for_reading, open_for_writing
from api.reports import policies_document
from storage.errors import InvalidInput
from storage.model import TopicName


def show_or_change_policies(
    context: typer.Context,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help=TOPIC_HELP, show_default=False)] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="TENANT/NAMESPACE", help="Policies of all topics of a namespace.")
    ] = None,
    broker: Annotated[bool, typer.Option("--broker", help="Policies of all topics.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Set a policy; may be repeated.")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Remove a policy, so that the next wider scope's applies; may be repeated."),
    ] = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Show, set and remove policies.

    A topic's own policy takes precedence over its namespace's, that over the broker's, that over the default. The
    effective value is shown, with its origin.
    """
    if sum((topic is not None, namespace is not None, broker)) != 1:
        raise InvalidInput(
            "topics policies takes one of a topic, a namespace and the broker",
            "give TOPIC, or --namespace tenant/namespace, or --broker",
        )
    from api.broker import policies
    from storage.options.policies import policy
    from storage.options.resolution import PolicyOrigin

    values = dict(parse_pair(text, "give --set NAME=VALUE") for text in set_ or ())
    if conflicting := {policy(text).name for text in values} & {policy(text).name for text in remove or ()}:
        raise InvalidInput(f"{min(conflicting)} is to be both set and removed", "leave one of them out")
    name = None if topic is None else TopicName.parse(topic)
    origin = PolicyOrigin.BROKER if broker else PolicyOrigin.NAMESPACE if name is None else PolicyOrigin.TOPIC
    scope = policies.PolicyScope(origin, name, namespace)
    with (open_for_writing if values or remove else open_for_reading)(context.obj) as environment:
        if values or remove:
            policies.change(environment, scope, values, remove or ())
        document = policies_document(policies.resolved(environment, scope))
    if output is OutputFormat.JSON:
        show({origin.value: str(name) if name else namespace or True, "policies": document}, output)
    else:
        show_policies(document)
