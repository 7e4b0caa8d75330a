"""`compactor-admin`: the commands, their help and the options that all commands have.

It has the verbs of Pulsar's `pulsar-admin`, and others for features that Pulsar lacks (runs, policies, verify, …).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from api.cli.admin import (
    compaction_commands as compaction,
    compactions_commands as compactions,
    maintenance_commands as maintenance,
    message_commands as messages,
    policies_commands as policies,
    subscription_commands as subscriptions,
    tenancy_commands as tenancy,
    topics_commands as topics,
)
from api.cli.admin.requests import Command
from api.cli.admin.session import Session
from api.cli.kit import exit_codes
from api.cli.kit.program import add_group, create_program, run_program
from api.cli.kit.shared_arguments import Output, OutputFormat, VersionFlag

NAME = "compactor-admin"
_TOPICS = {
    **topics.COMMANDS,
    **tenancy.OF_TOPICS,
    **compaction.OF_TOPICS,
    **subscriptions.COMMANDS,
    **messages.OF_TOPICS,
    **maintenance.OF_TOPICS,
}
_GROUPS: Mapping[str, tuple[str, Mapping[str, Command]]] = {
    "tenants": ("Tenants.", tenancy.TENANTS),
    "namespaces": ("Namespaces of a tenant.", {**tenancy.NAMESPACES, **compaction.OF_NAMESPACES}),
    "topics": ("Topics: contents, subscriptions, compaction.", _TOPICS),
    "brokers": ("The processes of the service.", tenancy.BROKER_COMMANDS),
    "clusters": ("The cluster.", tenancy.CLUSTERS),
    "compactions": ("Runs of compactions, and what decides about them.", compactions.COMMANDS),
    "policies": ("Policies of a topic, a namespace or the broker.", policies.COMMANDS),
}

app = create_program(NAME, "Administer a running compactor service, with the verbs of pulsar-admin.", exit_codes.HELP)
app.command("gc")(maintenance.collect_garbage)
for _name, (_about, _commands) in _GROUPS.items():
    _group = add_group(app, _name, _about)
    for _verb, _command in _commands.items():
        _group.command(_verb, hidden=_verb in subscriptions.HIDDEN)(_command)


@app.callback()
def read_global_options(
    context: typer.Context,
    admin_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The service: http://host:port [COMPACTOR_ADMIN_URL]")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="TOKEN", help="Token, which others can see in `ps` [COMPACTOR_TOKEN]"),
    ] = None,
    token_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="File with the token [COMPACTOR_TOKEN_FILE]")
    ] = None,
    ca_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Authorities to trust, PEM [COMPACTOR_CA_CERT]")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="admin.toml or a client.conf [COMPACTOR_ADMIN_CONFIG]")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="How long an answer may take [COMPACTOR_ADMIN_TIMEOUT]")
    ] = None,
    output: Output = OutputFormat.TABLE,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: VersionFlag = False,
) -> None:
    flags = {"admin-url": admin_url, "token": token, "token-file": token_file, "ca-cert": ca_cert, "timeout": timeout}
    context.obj = Session(flags, config, output)
    context.call_on_close(context.obj.close)


def main() -> None:
    """Run `compactor-admin`. Exits with a code of `exit_codes`."""
    run_program(app, NAME, "the service continues what was requested")


if __name__ == "__main__":
    main()
