"""Access control: the actions that routes require, and the one place that allows or refuses them.

A route declares the actions of which its caller needs one, `dependencies=[permission_check(AuthAction.COMPACT)]`; the
scope is the path's tenant, namespace and topic. The first rule that fits decides:

- access control is off (only on loopback): everything is allowed;
- no token, or an invalid one: 401;
- a superuser may do everything; SUPERUSER, and a path without a tenant, require one; ANYONE requires a token only;
- a role in a tenant's adminRoles, or with `admin` granted in the tenant, may do everything in it;
- a role may do what its tenant and namespace grant it, and with a topic also what the topic, or its partitioned topic,
  grants it; `admin` of a namespace or topic allows everything in it;
- everything else: 403. A name that does not exist grants nothing, so a caller without permission does not learn which
  names exist.

Pulsar's actions `functions`, `sources`, `sinks` and `packages` can be granted and allow nothing here. Grants are read
with each request, so a change takes effect at once. Lists are not filtered: a role that may list sees all names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, cast

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp, Receive, Scope, Send

from api.broker import tenants
from api.broker.threads import WaitsFor
from api.http.dependencies import broker_of
from api.http.paths import decode_path_part
from api.http.problems import RestException, wording_of
from storage.advice import AdviceWording
from storage.errors import InvalidInput, NotFound
from storage.model import TopicName

if TYPE_CHECKING:
    from api.http.token_key_reloader import TokenKeyReloader
    from api.http.tokens import TokenVerifier
    from api.settings.settings import Settings
    from storage.clock import Clock
    from storage.metadata.stores import TenancyStore


class AuthAction(StrEnum):
    """An action that a role may do in a tenant, in a namespace or with a topic.

    SUPERUSER: an action on the service, for superusers only. ANYONE: an action for every role with a valid token.
    """

    PRODUCE = "produce"
    CONSUME = "consume"
    COMPACT = "compact"
    ADMIN = "admin"
    SUPERUSER = "superuser"
    ANYONE = "anyone"


PermissionScope = tuple[str | None, str | None, str | None]
"""Tenant, namespace and topic of a request; None for each that its path does not name."""
ANY_USE = (AuthAction.PRODUCE, AuthAction.CONSUME, AuthAction.COMPACT)
"""The actions of a role that uses a topic: any of them lets it check the topic."""
GRANTABLE = ("produce", "consume", "compact", "admin", "functions", "sources", "sinks", "packages")
"""The actions that tools may grant; the last four are Pulsar's and allow nothing here."""
ORIGINAL_PRINCIPAL = b"x-original-principal"
"""The header in which a proxy names the role of its client, as Pulsar's does."""
_SCHEME = HTTPBearer(scheme_name="token", bearerFormat="JWT", auto_error=False)
"""Declares in the OpenAPI document that a route requires a token; it decides nothing."""
DASHBOARD_COOKIE = "compactor_token"
"""The cookie with the token of a browser; it is accepted for the dashboard's own paths only."""
SECURE_COOKIE = "__Host-" + DASHBOARD_COOKIE
"""The cookie of a browser that uses TLS. Because of the prefix, browsers accept it only from this host, over TLS."""
DASHBOARD = "/dashboard/"
LOGIN = DASHBOARD + "login"
LOGOUT = DASHBOARD + "logout"
PROBES = ("/livez", "/readyz")
"""Paths that are answered for any caller, even if the service is busy."""
_CHALLENGE: Mapping[str, str] = {"WWW-Authenticate": 'Bearer realm="compactor"'}


@dataclass(frozen=True)
class Caller:
    """The sender of a request. `role`: proved by its token; None: there is no valid token, and `refusal_reason` says
    why.

    `proxy`: the role of the proxy that sent the request for `role`, which the proxy has authenticated.
    """

    address: str
    role: str | None = None
    refusal_reason: str = ""
    proxy: str | None = None

    @property
    def authenticated_role(self) -> str | None:
        """The role of the token: the proxy's if a proxy sent the request; None: there is no valid token."""
        return self.proxy or self.role

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that must each have a permission: the proxy's, if any, and the sender's; empty without a valid
        token."""
        return tuple(role for role in (self.proxy, self.role) if role is not None)

    @property
    def name(self) -> str:
        """The caller's name in the audit log: its role, or `anonymous@` and its address without a role."""
        return self.role or f"anonymous@{self.address}"


@dataclass(frozen=True)
class AuthorizationService:
    """The authentication of callers by their tokens, and the decision whether a role may do an action, by grants in
    SQL.

    `keys`: the keys that verify tokens; None: access control is off. `proxy_roles`: roles of proxies, which name the
    role for which they send a request.
    """

    tenancy: TenancyStore
    superusers: frozenset[str]
    keys: TokenKeyReloader | None
    proxy_roles: frozenset[str] = frozenset()

    @classmethod
    def from_settings(cls, settings: Settings, tenancy: TenancyStore, clock: Clock) -> AuthorizationService:
        """Return the authorization service that the settings describe. Raise Misconfigured for unusable keys."""
        from api.http.token_key_reloader import TokenKeyReloader

        keys = TokenKeyReloader(settings, clock) if settings.has_access_control else None
        superusers, proxies = frozenset(settings.auth_superuser_roles), frozenset(settings.auth_proxy_roles)
        return cls(tenancy, superusers, keys, proxies)

    @property
    def verifier(self) -> TokenVerifier | None:
        """The verifier of the current keys; None: access control is off."""
        return None if self.keys is None else self.keys.verifier

    def authenticate(self, scope: Scope) -> Caller:
        """Return the sender of a request by its Authorization header, or by its cookie for pages.

        A missing or invalid token raises nothing: it is the `refusal_reason` of the result.
        """
        from api.http.tokens import BadToken

        address = (scope.get("client") or ("unknown", 0))[0]
        if self.verifier is None:
            return Caller(address)
        headers = _authorization_headers(scope)
        scheme, _, token = headers[0].decode("latin-1").strip().partition(" ") if len(headers) == 1 else ("", "", "")
        if not headers and (scope["path"] == "/" or scope["path"].startswith(DASHBOARD)):
            scheme, token = "bearer", _token_from_cookie(scope)
        if scheme.lower() != "bearer" or not token.strip():
            message = "a token is needed, in the header" if not headers else "the header is not"
            return Caller(
                address, refusal_reason=f"{message} Authorization: Bearer <token>"
            )  # redaction would hide TOKEN
        originals = [value for name, value in scope["headers"] if name == ORIGINAL_PRINCIPAL]
        try:
            role = self.verifier.verified_role(token.strip())
            return self.apply_original_principal(Caller(address, role), b"".join(originals).decode("utf-8", "replace"))
        except BadToken as error:
            return Caller(address, refusal_reason=str(error))

    def apply_original_principal(self, caller: Caller, original_principal: str) -> Caller:
        """Return the caller for whom a proxy sent a request, as Pulsar's brokers determine it; `caller` itself if it is
        no proxy.

        `original_principal`: the role that the request names as such; empty: none. Raise BadToken if a proxy names no
        role of a client, or if another caller names a role that is not its own.
        """
        from api.http.tokens import BadToken

        if caller.role not in self.proxy_roles:
            if original_principal and original_principal != caller.role:
                raise BadToken(f"the role {caller.role!r} is none of auth.proxy-roles and names an original principal")
            return caller
        if not original_principal or not original_principal.isprintable() or original_principal in self.proxy_roles:
            raise BadToken(f"the proxy {caller.role!r} names no original principal, which is to be a role of a client")
        return Caller(caller.address, original_principal, proxy=caller.role)

    def token_refusal_reason(self, token: str) -> str:
        """Return the reason why a token is refused, also one that is not needed because access control is off; empty:
        it is valid."""
        from api.http.tokens import BadToken

        if self.verifier is None:
            return "" if not token else "access control is off: no token is needed"
        try:
            self.verifier.verified_role(token)
        except BadToken as error:
            return str(error)
        return ""

    def require_any(
        self,
        caller: Caller,
        actions: tuple[AuthAction, ...],
        tenant: str | None,
        namespace: str | None,
        topic: str | None = None,
    ) -> None:
        """Raise RestException (401, 403) unless the caller may do any of `actions` in a tenant, namespace or topic.

        `tenant` None: the whole service, for superusers only.
        """
        if self.verifier is None:
            return
        if caller.role is None:
            raise unauthenticated_error(caller)
        for role in caller.roles:
            self._require_any_of_role(role, actions, tenant, namespace, topic)

    def _require_any_of_role(
        self, role: str, actions: tuple[AuthAction, ...], tenant: str | None, namespace: str | None, topic: str | None
    ) -> None:
        """Raise RestException (403) unless the role may do any of `actions` in a tenant, namespace or topic."""
        if role in self.superusers or AuthAction.ANYONE in actions:
            return
        if tenant is None or AuthAction.SUPERUSER in actions:
            raise RestException(403, f"role {role!r} is no superuser, and only superusers may do this")
        if not _include_any_action(self._granted_actions(role, tenant, namespace, topic), actions):
            where = "/".join(item for item in (tenant, namespace, topic) if item is not None)
            raise RestException(403, f"{_missing_permission_reason(role, actions)} in {where}: ask its administrator")

    def topic_filter(self, caller: Caller, actions: tuple[AuthAction, ...]) -> Callable[[TopicName], bool]:
        """Return a function that returns whether the caller may do any of `actions` with a topic, for many topics.

        The function decides as `require_any` does, and reads each tenant and namespace once. It reads SQL. Raise
        RestException (401) for a caller without a valid token.
        """
        if self.is_superuser(caller):
            return lambda _: True
        if caller.role is None:
            raise unauthenticated_error(caller)
        roles = [role for role in caller.roles if role not in self.superusers]
        single = {
            role: {
                topic
                for topic, granted in self.tenancy.topic_permissions_of(role).items()
                if _include_any_action(frozenset(granted), actions)
            }
            for role in roles
        }

        @functools.cache
        def may_in(role: str, tenant: str, namespace: str) -> bool:
            return _include_any_action(self._granted_actions(role, tenant, namespace, None), actions)

        def may(topic: TopicName) -> bool:
            return all(
                may_in(role, topic.tenant, topic.namespace)
                or (bool(single[role]) and not single[role].isdisjoint((str(topic), str(topic.partitioned_topic))))
                for role in roles
            )

        return may

    def is_superuser(self, caller: Caller) -> bool:
        """Return whether the caller is a superuser; anyone is if access control is off."""
        return self.verifier is None or (caller.role is not None and self.superusers.issuperset(caller.roles))

    def may_create_topics_in_some_namespace(self, caller: Caller) -> bool:
        """Return whether the caller may create topics in some namespace. Reads SQL unless the caller is a superuser."""
        return self.is_superuser(caller) or bool(self.administered_namespaces(caller))

    def administered_namespaces(self, caller: Caller) -> list[str]:
        """Return the full names of the namespaces in which the caller may create topics, sorted; for a superuser all.
        Reads SQL."""
        if self.verifier is not None and caller.role is None:
            return []
        names = set(self.tenancy.administered_namespaces(None))
        for role in caller.roles if self.verifier is not None else ():
            if role not in self.superusers:
                names.intersection_update(self.tenancy.administered_namespaces(role))
        return sorted(names)

    def needs_sql(self, caller: Caller, actions: tuple[AuthAction, ...]) -> bool:
        """Return whether `require_any` may read grants from SQL, so that it needs a thread."""
        decided = self.verifier is None or self.superusers.issuperset(caller.roles)
        return not decided and not {AuthAction.ANYONE, AuthAction.SUPERUSER} & set(actions)

    def _granted_actions(self, role: str, tenant: str, namespace: str | None, topic: str | None) -> frozenset[str]:
        """Return the actions that are granted to a role in a tenant, namespace or topic; `admin` stands for all."""
        granted_actions: set[str] = set()
        try:
            record = self.tenancy.tenant(tenant)
            if role in record.admin_roles:
                return frozenset({"admin"})
            granted_actions.update(record.permissions.get(role, ()))
            if namespace is not None:
                granted_actions.update(self.tenancy.namespace(f"{tenant}/{namespace}").permissions.get(role, ()))
                if topic is not None:
                    for granted in tenants.topic_grants(self.tenancy, TopicName(tenant, namespace, topic)):
                        granted_actions.update(granted.get(role, ()))
        except (NotFound, InvalidInput):
            pass
        return frozenset(granted_actions)


def authorization_header_from_cookie(scope: Scope) -> dict[str, str]:
    """Return an Authorization header with the token of a browser's cookie, for REST calls of the dashboard for the
    browser. Empty: the request has no such cookie, or it has an Authorization header itself.
    """
    token = "" if _authorization_headers(scope) else _token_from_cookie(scope)
    return {"authorization": f"Bearer {token}"} if token else {}


def _authorization_headers(scope: Scope) -> list[bytes]:
    """Return the values of a request's Authorization headers."""
    return [value for name, value in scope["headers"] if name == b"authorization"]


def _token_from_cookie(scope: Scope) -> str:
    """Return the token of a browser's cookie; empty: the request has none."""
    cookies: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name == b"cookie":
            for pair in value.decode("latin-1").split(";"):
                key, _, content = pair.strip().partition("=")
                cookies.setdefault(key, content.strip('"'))
    plain = "" if scope.get("scheme") == "https" else cookies.get(DASHBOARD_COOKIE, "")
    return cookies.get(SECURE_COOKIE) or plain


def _include_any_action(granted: frozenset[str], actions: Sequence[AuthAction]) -> bool:
    """Return whether granted actions allow any of `actions`."""
    return "admin" in granted or not granted.isdisjoint(action.value for action in actions)


def _missing_permission_reason(role: str | None, actions: Sequence[AuthAction]) -> str:
    """Return the text of an error: that a role has none of the permissions for `actions`."""
    *first, last = (action.value for action in actions)
    if not first:
        return f"role {role!r} does not have the permission {last}"
    return f"role {role!r} has none of the permissions {', '.join(first)} and {last}"


def unauthenticated_error(caller: Caller) -> RestException:
    """Return the error (401) for a caller without a valid token."""
    return RestException(401, f"not authenticated: {caller.refusal_reason}", _CHALLENGE)


class AuthenticationMiddleware:
    """Middleware that authenticates the sender of each request, and stores it as `request.state.caller`. It refuses no
    request."""

    def __init__(self, app: ASGIApp, access: AuthorizationService) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._access.keys is not None and scope["path"] not in PROBES:
                await self._access.keys.reload_if_due()
            scope.setdefault("state", {})["caller"] = self._access.authenticate(scope)
        await self._app(scope, receive, send)


def caller_of(request: Request) -> Caller:
    """Return the sender of a request."""
    return cast(Caller, request.state.caller)


async def caller_name(request: Request) -> str:
    """Return the caller's name for the audit log."""
    return caller_of(request).name


CallerName = Annotated[str, Depends(caller_name)]
"""A route's parameter: the caller's name, which is stored with the requests that it makes."""


def superuser_wording(request: Request) -> AdviceWording | None:
    """Return the wording of advice in errors if the caller is a superuser, who may read the locations of database and
    store; None for another caller."""
    access = cast(AuthorizationService, request.app.state.access)
    return wording_of(request) if access.is_superuser(caller_of(request)) else None


async def _caller_wording(request: Request) -> AdviceWording | None:
    return superuser_wording(request)


CallerWording = Annotated[AdviceWording | None, Depends(_caller_wording)]
"""A route's parameter: the wording in which the caller reads errors in full; None: it reads their public part."""


def permission_check(*actions: AuthAction) -> Any:
    """Return a route's dependency that requires any of `actions` in the scope that the path names, or answers 401 or
    403."""
    return Depends(PermissionCheck(actions, _path_scope))


def topic_permission_check(find_topic: Callable[[Request], TopicName | None], *actions: AuthAction) -> Any:
    """Return a route's dependency that requires any of `actions` for a topic that the path does not name, such as that
    of a run, or answers 401 or 403.

    `find_topic` returns the topic of the request; a thread calls it. None: there is no such topic, and only a superuser
    passes. A 403 has the same words in both cases, so that a caller does not learn what exists.
    """

    def scope_of(request: Request) -> PermissionScope:
        topic = find_topic(request)
        return (None, None, None) if topic is None else (topic.tenant, topic.namespace, topic.topic)

    return Depends(PermissionCheck(actions, scope_of, names_scope=False))


def require_permission(request: Request, *actions: AuthAction) -> None:
    """Raise RestException (401, 403) unless the caller may do any of `actions` in the scope that the path names.

    For a permission that depends on the request's parameters. Reads SQL, so a thread calls it.
    """
    access = cast(AuthorizationService, request.app.state.access)
    access.require_any(caller_of(request), actions, *_path_scope(request))


def _path_scope(request: Request) -> PermissionScope:
    """Return the tenant, namespace and topic that the request's path names."""
    tenant, namespace, topic = (
        decode_path_part(request.path_params[name]) if name in request.path_params else None
        for name in ("tenant", "namespace", "topic")
    )
    return tenant, namespace, topic


class PermissionCheck:
    """A route's dependency that requires any of some actions, and declares in the OpenAPI document that a token is
    required. `api/http/router.py` runs the check before the body is read, and does not resolve the dependency
    again.

    `names_scope`: a 403 names the scope in which permission is missing.
    """

    def __init__(
        self,
        actions: tuple[AuthAction, ...],
        scope_of: Callable[[Request], PermissionScope],
        *,
        names_scope: bool = True,
    ) -> None:
        assert actions, "a route declares its actions"
        self._actions = actions
        self._scope_of = scope_of
        self._names_scope = names_scope

    async def __call__(self, request: Request, _: Annotated[object, Depends(_SCHEME)]) -> None:
        await self.check(request)

    async def check(self, request: Request) -> None:
        """Raise RestException (401, 403) unless the caller has the permission."""
        access = cast(AuthorizationService, request.app.state.access)
        caller = caller_of(request)
        if access.needs_sql(caller, self._actions):
            await broker_of(request).pools[WaitsFor.DATABASE].run(self._require_in_scope, access, caller, request)
        else:
            access.require_any(caller, self._actions, None, None)  # the same decision in every scope

    def _require_in_scope(self, access: AuthorizationService, caller: Caller, request: Request) -> None:
        """Raise RestException (401, 403) unless the caller may do any of the actions in the request's scope."""
        try:
            access.require_any(caller, self._actions, *self._scope_of(request))
        except RestException as error:
            if self._names_scope or error.status_code != 403:
                raise
            reason = _missing_permission_reason(caller.role, self._actions)
            raise RestException(403, f"{reason} for what this names, or nothing is named so") from error
