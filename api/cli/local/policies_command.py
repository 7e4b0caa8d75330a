"""`compactor topics policies`: show, set and remove the policies of a topic, a namespace or the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.kit.output import show
from api.cli.kit.quantity_parsers import parse_pair
from api.cli.kit.reports import show_policies
from api.cli.kit.shared_arguments import TOPIC_HELP, Output, OutputFormat
from api.components import open_environment, open_for_writing
from api.reports import policies_document
from storage.errors import InvalidInput
from storage.model import TopicName

if TYPE_CHECKING:
    from storage.metadata.store import MetadataStore


def topic_policies(
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
    from storage.options import policies

    removed = [policies.policy(name).name for name in remove or ()]
    assigned = dict(policies.parse(*parse_pair(text, "give --set NAME=VALUE")) for text in set_ or ())
    if conflicting := sorted(set(removed) & set(assigned)):
        raise InvalidInput(f"{conflicting[0]} is to be both set and removed", "leave one of them out")
    name = None if topic is None else TopicName.parse(topic)
    with (open_for_writing if removed or assigned else open_environment)(context.obj) as environment:
        metadata = environment.metadata
        scope, subject = _scope(metadata, name, namespace)
        if removed or assigned:
            metadata.policies.change(
                [scope], {policy: policies.to_json(policy, value) for policy, value in assigned.items()}, removed
            )
        stored = metadata.policies
        resolved = stored.resolved_around(scope) if name is None else stored.resolved(metadata.topics.get(name))
    document = policies_document(resolved)
    if output is OutputFormat.JSON:
        show({**subject, "policies": document}, output)
    else:
        show_policies(document)


def _scope(metadata: MetadataStore, topic: TopicName | None, namespace: str | None) -> tuple[str, dict[str, object]]:
    """Return the scope, and the fields that name it in a document. Raises NotFound."""
    from storage.metadata.policy_store import BROKER, namespace_scope, topic_scope

    if topic is not None:
        return topic_scope(metadata.topics.get(topic)), {"topic": str(topic)}
    if namespace is not None:
        return namespace_scope(namespace), {"namespace": namespace}
    return BROKER, {"broker": True}
