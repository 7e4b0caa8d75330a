"""`compactor mirror`: add, list, show, pause, resume, remove, run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from api.cli.kit.output import show
from api.cli.kit.shared_arguments import TOPIC_HELP, Output, OutputFormat, Topic
from api.cli.kit.stderr import counted, say
from api.cli.kit.terminal import print_line
from api.components import open_existing_for_writing, open_for_reading, open_for_writing
from api.formats.inputs import EmptyValues
from storage.model import TopicName

if TYPE_CHECKING:
    As = Annotated[TopicName, typer.Option("--as")]
else:
    As = Annotated[
        str, typer.Option("--as", metavar="TOPIC", help=f"The topic here. {TOPIC_HELP}", parser=TopicName.parse)
    ]
SaslName = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
"""SASL mechanisms; `api.broker.mirroring.source.SASL_MECHANISMS` has them (a test compares)."""
_COLUMNS = ("topic", "source", "state", "lag", "records_per_second", "error")


def add_mirror(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="kafka://host:9092/topic; more brokers after commas.")
    ],
    topic: As,
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS.")] = False,
    tls_ca: Annotated[
        str, typer.Option(metavar="FILE", help="PEM file of certificate authorities; default: the system's.")
    ] = "",
    sasl: Annotated[SaslName | None, typer.Option(help="SASL mechanism.")] = None,
    username: Annotated[str, typer.Option(metavar="NAME", help="User for SASL.")] = "",
    password_from: Annotated[
        str, typer.Option(metavar="env:NAME|file:/PATH", help="Where the process that mirrors reads the password.")
    ] = "",
    empty_values: Annotated[
        EmptyValues, typer.Option(help="Stop at an empty value of a key, which deletes the key here, or let it delete.")
    ] = EmptyValues.REFUSE,
) -> None:
    """Mirror a topic in Kafka: a service appends its records to TOPIC, exactly once, from the earliest on.

    The topic is created with the partitions of the source. Kafka must answer now.
    """
    from api.broker.mirroring import operations
    from api.broker.mirroring.source import MirrorOptions, MirrorSource

    options = MirrorOptions(tls, tls_ca, sasl or "", username, password_from, empty_values.value)
    parsed = MirrorSource.parse(source, options)
    with open_for_writing(context.obj) as environment:
        environment.metadata.tenancy.ensure_namespace(topic)
        added = operations.add(environment, parsed, topic)
        partitions = len(operations.topic_partitions(environment, topic))
    print_line(f"Topic {topic} mirrors {added.record.source}, {counted(partitions, 'partition')}")


def list_mirrors(context: typer.Context, output: Output = OutputFormat.TABLE) -> None:
    """List the mirrors with their states; lag and rate are the last reports of the services."""
    from api.broker.mirroring import operations
    from api.reports import mirror_document

    with open_for_reading(context.obj) as environment:
        documents = [mirror_document(mirror) for mirror in operations.all_mirrors(environment)]
    if not documents:
        say("There are no mirrors: `compactor mirror add` adds one")
    show(documents, output, _COLUMNS)


def show_mirror(context: typer.Context, topic: Topic, output: Output = OutputFormat.TABLE) -> None:
    """Show one mirror and its partitions."""
    from api.broker.mirroring import operations
    from api.reports import mirror_document

    with open_for_reading(context.obj) as environment:
        document = mirror_document(operations.get(environment, topic))
    show(document, output)


def pause_mirror(context: typer.Context, topic: Topic) -> None:
    """Pause a mirror; what it has appended stays."""
    from api.broker.mirroring import operations

    with open_existing_for_writing(context.obj) as environment:
        operations.pause(environment, topic)
    print_line(f"The mirror {topic} pauses")


def resume_mirror(
    context: typer.Context,
    topic: Topic,
    empty_values: Annotated[
        EmptyValues | None, typer.Option(help="What to do with empty values from now on; default: as before.")
    ] = None,
    accept_gaps: Annotated[
        bool,
        typer.Option("--accept-gaps", help="Go on without the records that Kafka removed before they were mirrored."),
    ] = False,
) -> None:
    """Resume a mirror that is paused or has stopped, from where it ended."""
    from api.broker.mirroring import operations

    options: dict[str, Any] = {} if empty_values is None else {"empty_values": empty_values.value}
    with open_existing_for_writing(context.obj) as environment:
        operations.resume(environment, topic, options, accept_gaps=accept_gaps)
    print_line(f"The mirror {topic} runs")


def remove_mirror(context: typer.Context, topic: Topic) -> None:
    """Remove a mirror. Its topic stays, with all messages; a mirror that is added for it again goes on there."""
    from api.broker.mirroring import operations

    with open_existing_for_writing(context.obj) as environment:
        operations.remove(environment, topic)
    print_line(f"The mirror {topic} is removed; the topic stays")


def run_mirror(
    context: typer.Context,
    topic: Topic,
    to_end: Annotated[bool, typer.Option("--to-end", help="End when the source has no more records.")] = False,
) -> None:
    """Run a mirror in this process, until Ctrl-C or until it stops: without a service, or beside those of others.

    Partitions that another process writes are left to it.
    """
    from api.broker.mirroring.foreground import mirror_records_in_foreground

    records = mirror_records_in_foreground(context.obj, topic, to_end=to_end)
    say(f"{counted(records, 'record')} mirrored")
