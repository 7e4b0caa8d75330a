"""`compactor topics policies`: show, set and remove the policies of a topic, a namespace or the broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from api.cli.kit.names import TOPIC_HELP
from api.cli.kit.stderr import origin
from api.cli.local.topics_commands import ListingName
from api.components import open_components, open_for_writing
from api.reports import policies_document
from storage.errors import InvalidInput
from storage.model import TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        list[str] | None, typer.Option(metavar="NAME", help="Let the next wider scope count again; may be repeated.")
    ] = None,
    output: Annotated[ListingName, typer.Option(help="For people, or for scripts.")] = ListingName.TABLE,
) -> None:
    """Show, set and remove policies.

    A topic's own policy counts before its namespace's, that before the broker's, that before the default. What is
    shown is what holds in the end, with where it comes from.
    """
    if sum((topic is not None, namespace is not None, broker)) != 1:
        raise InvalidInput(
            "topics policies takes one of a topic, a namespace and the broker",
            "give TOPIC, or --namespace tenant/namespace, or --broker",
        )
    from storage.options import policies

    removed = [policies.policy(name).name for name in remove or ()]
    wanted = dict(map(_parsed, set_ or ()))
    if both := sorted(set(removed) & set(wanted)):
        raise InvalidInput(f"{both[0]} is to be both set and removed", "leave one of them out")
    name = None if topic is None else TopicName.parse(topic)
    with (open_for_writing if removed or wanted else open_components)(context.obj) as components:
        metadata = components.metadata
        scope, of_what = _scope(metadata, name, namespace)
        if removed or wanted:
            metadata.policies.change(
                [scope], {one: policies.shown(one, value) for one, value in wanted.items()}, removed
            )
        found = metadata.policies
        resolved = found.resolved_around(scope) if name is None else found.resolved(metadata.topics.get(name))
    show({**of_what, "policies": policies_document(resolved)}, output)


def _parsed(text: str) -> tuple[str, object]:
    from storage.options import policies

    name, separator, value = text.partition("=")
    if not separator:
        raise InvalidInput(f"{text!r} does not say what the policy shall be", "give --set NAME=VALUE")
    return policies.parse(name, value)


def _scope(metadata: MetadataStore, topic: TopicName | None, namespace: str | None) -> tuple[str, dict[str, object]]:
    """The scope, and how it is told."""
    from storage.metadata.policy_store import BROKER, namespace_scope, topic_scope

    if topic is not None:
        return topic_scope(metadata.topics.get(topic)), {"topic": str(topic)}
    if namespace is not None:
        return namespace_scope(namespace), {"namespace": namespace}
    return BROKER, {"broker": True}


def show(document: Mapping[str, Any], output: ListingName) -> None:
    """Policies with their origins, on stdout."""
    if output is ListingName.JSON:
        print(json.dumps(document, indent=2))  # noqa: T201
        return
    from api.cli.kit.tables import print_table

    found = document["policies"].items()
    print_table(("policy", "value", "from"), ((name, cell(one["value"]), origin(one)) for name, one in found))


def cell(value: object) -> str:
    """A value as `--set` takes it."""
    if isinstance(value, list):
        return ",".join(map(str, value)) or "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)
