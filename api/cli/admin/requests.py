"""Commands that are one request each: `RequestCommand` is a row of the tables in the `…_commands` modules.

The names in braces in a path are arguments and options of the command, which `PARAMETERS` defines; `options` are
further ones, each for a parameter of the query or for the body. An answer to GET is shown; a change is reported on
stderr.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from api.cli.admin.session import expand, session
from api.cli.kit.shared_arguments import TypedTopic

TOPIC = "/admin/v2/persistent/{topic}"
NAMESPACE = "/admin/v2/namespaces/{namespace}"
BROKERS = "/admin/v2/brokers"

Command = Callable[..., None]

Namespace = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", help="The namespace.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]
Run = Annotated[int, typer.Argument(metavar="RUN", min=1, max=2**63 - 1, help="Its number, as `list` has it.")]
Subscription = Annotated[str, typer.Option("-s", "--subscription", metavar="NAME", help="The subscription.")]
Role = Annotated[str, typer.Option("--role", metavar="ROLE", help="The role.")]
Count = Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, help="How many messages.")]
Yes = Annotated[bool, typer.Option("--yes", help="Execute it. Without this, only report what would change.")]


@dataclass(frozen=True)
class RequestOption:
    """An argument or option of type `kind`, as typer takes it.

    `query`: the parameter of the query that has its value; `field`: that of the body; with neither it is the body.

    `parse` converts the typed text to the value. An option without a default is required; None is omitted from the
    request.
    """

    kind: Any
    default: Any = Parameter.empty
    query: str = ""
    field: str = ""
    parse: Callable[[Any], Any] | None = None


PARAMETERS: Mapping[str, RequestOption] = {
    "topic": RequestOption(TypedTopic),
    "namespace": RequestOption(Namespace),
    "tenant": RequestOption(Tenant),
    "cluster": RequestOption(Annotated[str, typer.Argument(metavar="CLUSTER", help="Its name.")]),
    "subscription": RequestOption(Subscription),
    "count": RequestOption(Count, 1),
    "role": RequestOption(Role),
    "run": RequestOption(Run),
}


@dataclass(frozen=True)
class RequestCommand:
    """A command. `report`: the message after a change, with the same names in braces; `query`: fixed parameters.

    `columns`: the answer to a change is shown, as a table of these. `text`: the answer is text without JSON's quotes.
    """

    method: str
    path: str
    help: str
    report: str = ""
    options: Mapping[str, RequestOption] = field(default_factory=dict)
    query: Mapping[str, object] = field(default_factory=dict)
    columns: Sequence[str] = ()
    text: bool = False

    def command(self) -> Command:
        """Return the function that typer registers as a command."""
        parameters = {name: PARAMETERS[name] for name in re.findall(r"{(\w+)}", self.path)} | dict(self.options)

        def run(context: typer.Context, **arguments: Any) -> None:
            self._run(context, arguments)

        run.__doc__ = self.help
        run.__annotations__ = {"context": typer.Context} | {
            name: parameter.kind for name, parameter in parameters.items()
        }
        run.__dict__["__signature__"] = Signature(
            [
                Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context),
                *(
                    Parameter(name, Parameter.KEYWORD_ONLY, annotation=parameter.kind, default=parameter.default)
                    for name, parameter in parameters.items()
                ),
            ]
        )
        return run

    def _run(self, context: typer.Context, arguments: Mapping[str, Any]) -> None:
        values = dict(arguments)
        body: Any = None
        query = dict(self.query)
        for name, option in self.options.items():
            if option.parse is not None:
                values[name] = option.parse(values[name])
            if option.query:
                query[option.query] = values[name]
            elif option.field:
                body = {**(body or {}), option.field: values[name]}
            else:
                body = values[name]
        admin = session(context)
        path = expand(self.path, **values)
        if self.text:
            admin.show(admin.service.ask(self.method, path, query).text.strip())
            return
        answer = admin.service.request(self.method, path, query, body)
        if self.method != "GET":
            texts = {
                name: ", ".join(value) if isinstance(value, list | dict) else value for name, value in values.items()
            }
            admin.done(self.report.format(**texts))
        if self.method == "GET" or self.columns:
            if answer is None and not admin.as_json:
                admin.done("none is set here")
            admin.show(answer, self.columns)


def get(path: str, help_text: str, **settings: Any) -> RequestCommand:
    """Return a command that shows an answer."""
    return RequestCommand("GET", path, help_text, **settings)


def add_commands(group: typer.Typer, commands: Mapping[str, RequestCommand | Command]) -> None:
    """Add commands to a group."""
    for name, command in commands.items():
        group.command(name)(command.command() if isinstance(command, RequestCommand) else command)
