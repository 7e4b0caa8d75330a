"""Routes of the policies of docs/policies.md (S1–S3, C1 and others) by their own names, in each scope.

GET answers the effective values and their origins; with `applied=false` only the values that the scope itself sets.
Values are JSON values, or texts in the form of the command line. Several policies are set in one transaction, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import Body, Path, Query
from pydantic import BaseModel, BeforeValidator

from api.broker import policies
from api.broker.policies import PolicyScope
from api.http import json_bounds
from api.http.access import ANY_USE, AuthAction
from api.http.dependencies import Broker
from api.http.paths import decode_path_part
from api.http.problems import RestException
from api.http.router import Routes
from api.reports import policies_document, policy_settings_document
from api.rest.policies.scopes import BROKER, NAMESPACE, TOPIC, ScopeKind
from storage.options.policies import policy
from storage.options.resolution import PolicyOrigin

router = Routes("policies", known_query=True)

_NAME = "a policy's own name, or one of its aliases; docs/policies.md has them all"


class UnreadableValue(BaseModel):
    """A stored value that this version cannot read, its origin, and the reason."""

    value: Any
    origin: PolicyOrigin
    reason: str


class PolicyValue(BaseModel):
    """An effective value, or null, and its origin: topic, namespace, broker, file or default. `unreadable`: a value
    that would take precedence if it could be read."""

    value: Any
    origin: PolicyOrigin
    unreadable: UnreadableValue | None = None


Applied = Annotated[bool, Query(description="The effective values; false: only the values that this scope sets.")]
Name = Annotated[str, Path(description=_NAME)]
Values = Annotated[dict[str, Any], Body(description="Values by name.")]


def _parse_json_bytes(body: object) -> object:
    """Return the JSON value of a body that came as bytes, without a JSON content type; a parsed body unchanged. Raise
    ValueError for bytes that are not JSON."""
    if not isinstance(body, bytes):
        return body
    try:
        return json_bounds.parse_bounded_json(body)
    except (ValueError, RecursionError):
        raise ValueError("the body is no JSON value") from None


Value = Annotated[Any, BeforeValidator(_parse_json_bytes), Body(description="A JSON value.")]


def _register_routes(kind: ScopeKind, reads: Sequence[AuthAction], changes: AuthAction) -> None:
    """Register the routes of the policies of one scope. `reads`: a caller needs any of these actions to get a policy;
    `changes`: the action to set or remove it."""
    label, all_of, one_of = kind.label, kind.path + "/policies", kind.path + "/policies/{name}"

    @router.get(
        all_of,
        *reads,
        operation_id=f"get{label}Policies",
        response_model=dict[str, PolicyValue],
        response_model_exclude_unset=True,
    )
    def get_policies(broker: Broker, scope: PolicyScope = kind.dependency, applied: Applied = True) -> Any:
        """Return the policies of the scope."""
        return _policies_by_name(broker, scope, applied)

    @router.get(
        one_of,
        *reads,
        refuses=(404,),
        operation_id=f"get{label}Policy",
        response_model=PolicyValue,
        response_model_exclude_unset=True,
    )
    def get_policy(broker: Broker, name: Name, scope: PolicyScope = kind.dependency, applied: Applied = True) -> Any:
        """Return one policy of the scope. 404 if `applied` is false and the scope does not set it."""
        document, known = _policies_by_name(broker, scope, applied), policy(decode_path_part(name)).name
        if known not in document:
            raise RestException(404, f"{known} is not set in this scope")
        return document[known]

    @router.put(all_of, changes, operation_id=f"set{label}Policies")
    def set_policies(broker: Broker, values: Values, scope: PolicyScope = kind.dependency) -> None:
        """Set several policies of the scope, all or none of them; the others stay."""
        policies.change(broker.environment, scope, values)

    @router.put(one_of, changes, operation_id=f"set{label}Policy")
    def set_policy(broker: Broker, name: Name, value: Value, scope: PolicyScope = kind.dependency) -> None:
        """Set one policy of the scope."""
        policies.change(broker.environment, scope, {decode_path_part(name): value})

    @router.delete(one_of, changes, operation_id=f"remove{label}Policy")
    def remove_policy(broker: Broker, name: Name, scope: PolicyScope = kind.dependency) -> None:
        """Remove one policy of the scope: the next wider scope counts again."""
        policies.change(broker.environment, scope, {}, [decode_path_part(name)])


@router.delete(TOPIC.path + "/policies", AuthAction.ADMIN)
def remove_topic_policies(broker: Broker, scope: PolicyScope = TOPIC.dependency) -> None:
    """Remove all policies that are set for the topic, so that those of wider scopes apply."""
    policies.change(broker.environment, scope, {}, None)


_register_routes(TOPIC, (*ANY_USE, AuthAction.ADMIN), AuthAction.ADMIN)
_register_routes(NAMESPACE, (*ANY_USE, AuthAction.ADMIN), AuthAction.ADMIN)
_register_routes(BROKER, (AuthAction.ANYONE,), AuthAction.SUPERUSER)


def _policies_by_name(broker: Broker, scope: PolicyScope, applied: bool) -> dict[str, dict[str, Any]]:
    """Return the policies of a scope by name, with values and origins: the effective ones, or, unless `applied`, those
    that the scope itself sets."""
    if applied:
        return policies_document(policies.resolved(broker.environment, scope))
    return policy_settings_document(policies.own_policies(broker.environment, scope), scope.origin)
