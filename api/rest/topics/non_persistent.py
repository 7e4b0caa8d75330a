"""Topics that are not persistent: there are none. Lists of them are empty, all else is refused with the reason.

A broker answers some of these calls with a 500; its clients ask for such lists in passing, to show all topics.
"""

from __future__ import annotations

from starlette.responses import Response

from api.broker import names
from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.paths import Namespace
from api.http.problems import RestException
from api.http.router import Routes

router = Routes("topics")

ONLY_PERSISTENT = "Only persistent topics can be stored and compacted: use persistent://"


@router.get(
    "/non-persistent/{tenant}/{namespace}/partitioned", *ANY_USE, operation_id="listPartitionedNonPersistentTopics"
)
@router.get("/non-persistent/{tenant}/{namespace}", *ANY_USE)
def list_non_persistent_topics(broker: Broker, namespace: Namespace) -> list[str]:
    """Return the non-persistent topics of a namespace: none."""
    names.namespace(broker.environment, namespace)
    return []


def refuse_non_persistent(rest: str) -> Response:
    """Refuse a call for a non-persistent topic (412)."""
    raise RestException(412, ONLY_PERSISTENT)


for _verb in ("GET", "PUT", "POST", "DELETE"):
    _operation = f"nonPersistent{_verb.title()}"
    router.route(_verb, "/non-persistent/{rest:path}", AuthAction.ANYONE, refuses=(412,), operation_id=_operation)(
        refuse_non_persistent
    )
