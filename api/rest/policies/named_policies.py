"""Policies (S1–S3, C1 and all others of docs/policies.md) by their own names, in each scope: get, set, remove.

The answer is what holds, and where it comes from; with `applied=false` only what the scope itself sets. Values are JSON
values, or texts as the command line takes them. Several policies are set in one transaction, or none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Body, Path, Query
from pydantic import BaseModel, BeforeValidator

from api.http import json_bounds
from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.paths import decoded
from api.http.problems import RestException
from api.http.router import Routes
from api.reports import policies_document, settings_document
from api.rest.policies.scopes import BROKER_KIND, NAMESPACE, TOPIC, PolicyScope, ScopeKind
from storage.options import policies
from storage.options.resolution import PolicyOrigin

router = Routes("policies", known_query=True)

_NAME = "a policy's own name, or one of its aliases; docs/policies.md has them all"


class UnreadableValue(BaseModel):
    """A stored value that this version cannot read, where it is set, and why."""

    value: Any
    origin: PolicyOrigin
    reason: str


class PolicyValue(BaseModel):
    """A value, and where it comes from: topic, namespace, broker, file or default. `unreadable`: that value would count
    if it could be read, and this one does instead."""

    value: Any
    origin: PolicyOrigin
    unreadable: UnreadableValue | None = None


Policies = dict[str, PolicyValue]
Applied = Annotated[bool, Query(description="What holds in the end; false: only what is set in this scope.")]
Name = Annotated[str, Path(description=_NAME)]
Values = Annotated[dict[str, Any], Body(description="Values by name.")]


def _of_json(body: object) -> object:
    """Return the value of a body that came without a JSON content type, as `curl -d` sends it."""
    if not isinstance(body, bytes):
        return body
    try:
        return json_bounds.load(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON value") from None


Value = Annotated[Any, BeforeValidator(_of_json), Body(description="A JSON value.")]


def _offer(kind: ScopeKind, reads: Sequence[AuthAction], changes: AuthAction) -> None:
    """Register the routes of one scope. `reads`, `changes`: a caller needs one of these actions to get or to set."""
    label, all_of, one_of = kind.label, kind.path + "/policies", kind.path + "/policies/{name}"

    @router.get(all_of, *reads, operation_id=f"get{label}Policies", response_model_exclude_unset=True)
    def get_policies(broker: Broker, scope: PolicyScope = kind.of, applied: Applied = True) -> Policies:
        """The policies of the scope."""
        return _policies(broker, scope, applied)

    @router.get(one_of, *reads, refuses=(404,), operation_id=f"get{label}Policy", response_model_exclude_unset=True)
    def get_policy(broker: Broker, name: Name, scope: PolicyScope = kind.of, applied: Applied = True) -> PolicyValue:
        """One policy of the scope. 404 if `applied` is false and the scope does not set it."""
        values, known = _policies(broker, scope, applied), policies.policy(decoded(name)).name
        if known not in values:
            raise RestException(404, f"{known} is not set in this scope")
        return values[known]

    @router.put(all_of, changes, operation_id=f"set{label}Policies")
    def set_policies(broker: Broker, values: Values, scope: PolicyScope = kind.of) -> None:
        """Set several policies of the scope, all or none of them; the others stay."""
        scope.change(broker, values)

    @router.put(one_of, changes, operation_id=f"set{label}Policy")
    def set_policy(broker: Broker, name: Name, value: Value, scope: PolicyScope = kind.of) -> None:
        """Set one policy of the scope."""
        scope.change(broker, {decoded(name): value})

    @router.delete(one_of, changes, operation_id=f"remove{label}Policy")
    def remove_policy(broker: Broker, name: Name, scope: PolicyScope = kind.of) -> None:
        """Remove one policy of the scope: the next wider scope counts again."""
        scope.change(broker, {}, [decoded(name)])


@router.delete(TOPIC.path + "/policies", AuthAction.ADMIN)
def remove_topic_policies(broker: Broker, scope: PolicyScope = TOPIC.of) -> None:
    """Remove all policies of the topic: those of wider scopes count again."""
    scope.change(broker, {}, None)


_offer(TOPIC, (*ANY_USE, AuthAction.ADMIN), AuthAction.ADMIN)
_offer(NAMESPACE, (*ANY_USE, AuthAction.ADMIN), AuthAction.ADMIN)
_offer(BROKER_KIND, (AuthAction.ANYONE,), AuthAction.SUPERUSER)


def _policies(broker: Broker, scope: PolicyScope, applied: bool) -> Policies:
    if applied:
        document = policies_document(scope.resolved(broker))
    else:
        document = settings_document(scope.settings(broker), scope.origin)
    return {name: PolicyValue.model_validate(value) for name, value in document.items()}
