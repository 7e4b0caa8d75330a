"""The identity of a client: its token, its role, and what the role may do.

A connection serves one client. A proxy connects with a token of its own, and names the client that it connects for
(the original principal); the commands that follow name no other one.
"""

from __future__ import annotations

from api.broker.threads import WaitsFor
from api.http.access import AuthAction, AuthorizationService, Caller
from api.http.audit import write_audit_line
from api.pulsar.admission import Admission, RoleThreads
from api.pulsar.codec.requests import Connect
from api.pulsar.errors import Refused, ServerError
from storage.model import DOMAIN, TopicName


class Identity:
    """The identity of the client of one connection: its role and permissions. Before authentication its role is its
    address."""

    def __init__(self, access: AuthorizationService, admission: Admission, host: str) -> None:
        self._access = access
        self._admission = admission
        self.caller = Caller(host)
        """The client as requests over HTTP have it."""
        self._token: str | None = None
        self._threads: RoleThreads | None = None

    @property
    def role(self) -> str:
        """Return the client's role, or its address if it has none."""
        return self.caller.name

    @property
    def threads(self) -> RoleThreads:
        """Return the worker threads that the client's role may use."""
        if self._threads is None:
            self._threads = self._admission.threads(self.role)
        return self._threads

    def authenticate(self, connect: Connect) -> None:
        """Authenticate the client by the token of its CONNECT, and take its role. Do nothing while access control is
        off.

        Raise Refused: AuthenticationError for the token, AuthorizationError for an original principal.
        """
        access = self._access
        if access.verifier is None:
            return
        from api.http.tokens import BadToken

        if connect.auth_method_name != "token" or not connect.auth_data:
            raise Refused(ServerError.AuthenticationError, "a token is required: use the authentication method `token`")
        try:
            self._token = connect.auth_data.decode("latin-1").strip()
            role = access.verifier.verified_role(self._token)
        except BadToken as error:
            raise Refused(ServerError.AuthenticationError, f"not authenticated: {error}") from error
        try:
            self.caller = access.apply_original_principal(Caller(self.caller.address, role), connect.original_principal)
        except BadToken as error:
            raise Refused(ServerError.AuthorizationError, f"Invalid roles: {error}") from error

    def is_valid(self) -> bool:
        """Return whether the client's token is valid and still has the same role; True if no token is needed."""
        from api.http.tokens import BadToken

        verifier = self._access.verifier
        if verifier is None or self._token is None:
            return True
        try:
            return verifier.verified_role(self._token) == self.caller.authenticated_role
        except BadToken:
            return False

    def check_original_principal(self, principal: str) -> None:
        """Raise Refused (AuthorizationError) if a command names another original principal than CONNECT."""
        if principal and self._access.verifier is not None and principal != self.caller.role:
            raise Refused(
                ServerError.AuthorizationError,
                "the command names another original principal than CONNECT: a connection serves one client",
            )

    async def permitted_topic(self, text: str, *actions: AuthAction) -> TopicName:
        """Parse the topic name of a command, and check that the client may do any of the actions. Return the name.

        Raise RestException (401, 403), Refused for a topic that is not persistent, InvalidTopicName.
        """
        domain, separator, _ = text.partition("://")
        if separator and domain != DOMAIN:
            raise Refused(
                ServerError.NotAllowedError,
                f"{text} is not a persistent topic: only persistent:// topics are served, and only they can be read "
                "compacted",
            )
        name = TopicName.parse(text)
        await self.require_topic_permission(name, *actions)
        return name

    async def require_topic_permission(self, name: TopicName, *actions: AuthAction) -> None:
        """Raise RestException (401, 403) unless the client may do any of the actions on a topic."""
        await self._require_permission(actions, name.tenant, name.namespace, name.topic)

    async def require_namespace_permission(self, namespace: str, *actions: AuthAction) -> None:
        """Raise RestException (401, 403) unless the client may do any of the actions on a namespace,
        `tenant/namespace`."""
        tenant, _, name = namespace.partition("/")
        await self._require_permission(actions, tenant, name)

    async def _require_permission(self, actions: tuple[AuthAction, ...], *scope: str) -> None:
        if self._access.needs_sql(self.caller, actions):
            await self.threads[WaitsFor.DATABASE].run(self._access.require_any, self.caller, actions, *scope)
        else:
            self._access.require_any(self.caller, actions, *scope)

    def audit(self, action: str, topic: TopicName, subscription: str = "") -> None:
        """Log a change that the client has made in the audit log (api/http/audit.py), with the method PULSAR."""
        target = f"{topic}/subscription/{subscription}" if subscription else str(topic)
        write_audit_line(self.caller, "PULSAR", target, action)
