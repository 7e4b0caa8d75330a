"""Commands that are one request each: rows of the tables in the `…_commands` modules.

A command is built by `get`, `put`, `post` or `delete` from a path. The names in braces in a path are arguments and
options of the command, which `PARAMETERS` defines. `options` are further ones, each for a parameter of the query or for
the body. The answer to GET is shown. A change is reported on stderr.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Annotated, Any

import typer

from api.cli.admin.session import expand_path, session_of
from api.cli.kit.shared_arguments import Run, TypedTopic

TOPIC = "/admin/v2/persistent/{topic}"
NAMESPACE = "/admin/v2/namespaces/{namespace}"
BROKERS = "/admin/v2/brokers"

Command = Callable[..., None]

Namespace = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE", help="The namespace.")]
Tenant = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant.")]
Subscription = Annotated[str, typer.Option("-s", "--subscription", metavar="NAME", help="The subscription.")]
Role = Annotated[str, typer.Option("--role", metavar="ROLE", help="The role.")]
Count = Annotated[int, typer.Option("-n", "--count", metavar="N", min=1, max=2**63 - 1, help="How many messages.")]


@dataclass(frozen=True)
class RequestOption:
    """An argument or option of a command, with its place in the HTTP request. `kind`: its type for typer.

    `query`: the parameter of the query that gets its value. `field`: the field of the body that gets it. With neither,
    the value is the body. `parse`: converts the typed text to the value. An option without a default is required; None
    is omitted from the request.
    """

    kind: Any
    default: Any = Parameter.empty
    query: str = ""
    field: str = ""
    parse: Callable[[Any], Any] = lambda value: value


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


def option(kind: Any, *names: str, help: str, metavar: str | None = None, **fields: Any) -> RequestOption:
    """Return a command-line option with these names. `fields`: the other fields of RequestOption."""
    return RequestOption(Annotated[kind, typer.Option(*names, metavar=metavar, help=help)], **fields)


def flag(*names: str, help: str, query: str) -> RequestOption:
    """Return a switch of these names, which sets the query parameter `query` to true."""
    return option(bool, *names, help=help, default=False, query=query)


def request_command(
    method: str,
    path: str,
    help: str,
    report: str = "",
    options: Mapping[str, RequestOption] = MappingProxyType({}),
    query: Mapping[str, object] = MappingProxyType({}),
    columns: Sequence[str] = (),
    text: bool = False,
) -> Command:
    """Return a command that sends one request, and shows the answer to a GET.

    `report`: the message after a change, with the same names in braces as `path`. `query`: fixed parameters. `columns`:
    the answer to a change is shown, as a table of these. `text`: the answer is text without JSON's quotes.
    """
    parameters = {name: PARAMETERS[name] for name in re.findall(r"{(\w+)}", path)} | dict(options)

    def run(context: typer.Context, **arguments: Any) -> None:
        values = {name: parameters[name].parse(value) for name, value in arguments.items()}
        body: Any = None
        parameters_sent = dict(query)
        for name, parameter in options.items():
            if parameter.query:
                parameters_sent[parameter.query] = values[name]
            elif parameter.field:
                body = {**(body or {}), parameter.field: values[name]}
            else:
                body = values[name]
        admin = session_of(context)
        expanded = expand_path(path, **values)
        if text:
            admin.show(admin.service.send(method, expanded, parameters_sent).text.strip())
            return
        answer = admin.service.request(method, expanded, parameters_sent, body)
        if method != "GET":
            texts = {
                name: ", ".join(value) if isinstance(value, list | dict) else value for name, value in values.items()
            }
            admin.report_change(report.format(**texts))
        if method == "GET" or columns:
            if answer is None and not admin.as_json:
                admin.report_change("no value is set")
            admin.show(answer, columns)

    run.__doc__ = help
    run.__annotations__ = {"context": typer.Context} | {name: item.kind for name, item in parameters.items()}
    defaults = {name: item.default for name, item in parameters.items()}
    run.__dict__["__signature__"] = Signature(
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind, default=defaults.get(name, Parameter.empty))
            for name, kind in run.__annotations__.items()
        ]
    )
    return run


get = partial(request_command, "GET")
put = partial(request_command, "PUT")
post = partial(request_command, "POST")
delete = partial(request_command, "DELETE")
