"""Unknown query parameters: a misspelled one is an error, not ignored.

For routes that only this service has: Pulsar's clients may send parameters that only a broker knows.
"""

from __future__ import annotations

import difflib

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant

from api.http.problems import RestException

_ANYWHERE = "authoritative"
"""A parameter that Pulsar's clients send with every request."""


async def check_known_query(request: Request) -> None:
    """Raise RestException (400) for a query parameter that the route does not have."""
    if not request.query_params:
        return
    known = sorted(_query_parameter_names(request.scope["route"].dependant))
    for name in request.query_params:
        if name not in known and name != _ANYWHERE:
            near = difflib.get_close_matches(name, known, n=1) or [
                item for item in known if item.lower() == name.lower()
            ]
            advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            raise RestException(400, f"there is no query parameter {name[:100]!r} here: {advice}")


KNOWN_QUERY = Depends(check_known_query)
"""A route's dependency, after `permission_check`: unknown parameters are refused."""


async def ignore_authoritative_query(authoritative: bool = False) -> None:
    """Accept the parameter that Pulsar's clients send with every request, and ignore it."""


AUTHORITATIVE = Depends(ignore_authoritative_query)
"""A route's dependency: its documentation has the parameter, as a broker's has."""


def _query_parameter_names(dependant: Dependant) -> set[str]:
    """Return the names of the query parameters of a route and its dependencies."""
    return {param.alias for param in dependant.query_params}.union(*map(_query_parameter_names, dependant.dependencies))
