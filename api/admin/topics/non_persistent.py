"""Topics that are not persistent: there are none. Lists of them are empty, all else is refused and says so.

A broker answers some of these calls with a 500; its clients ask for such lists in passing, to show all topics.
"""

from __future__ import annotations

from starlette.responses import Response

from api.admin import resolve
from api.http.access import Action, allowed
from api.http.paths import Namespace
from api.http.problems import Problem, refusals
from api.http.routes import Routes
from api.service import Parts

router = Routes(prefix="/admin/v2", tags=["topics"])

ONLY_PERSISTENT = "Only persistent topics can be stored and compacted: use persistent://"


@router.get(
    "/non-persistent/{tenant}/{namespace}",
    dependencies=[allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)],
    operation_id="listNonPersistentTopics",
    responses=refusals(404, 412),
)
def list_non_persistent(parts: Parts, namespace: Namespace) -> list[str]:
    """None."""
    resolve.namespace(parts, namespace)
    return []


@router.get(
    "/non-persistent/{tenant}/{namespace}/partitioned",
    dependencies=[allowed(Action.PRODUCE, Action.CONSUME, Action.COMPACT)],
    operation_id="listPartitionedNonPersistentTopics",
    responses=refusals(404, 412),
)
def list_partitioned_non_persistent(parts: Parts, namespace: Namespace) -> list[str]:
    """None."""
    resolve.namespace(parts, namespace)
    return []


def refuse(rest: str) -> Response:
    """Refused: 412, whatever is asked."""
    raise Problem(412, ONLY_PERSISTENT)


for _verb in ("GET", "PUT", "POST", "DELETE"):
    router.add_api_route(
        "/non-persistent/{rest:path}",
        refuse,
        methods=[_verb],
        dependencies=[allowed(Action.ANYONE)],
        operation_id=f"nonPersistent{_verb.title()}",
        responses=refusals(412),
    )
