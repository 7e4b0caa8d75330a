"""Starlette's client of an application in this process. Importing it warns that there is an httpx2."""

from __future__ import annotations

import base64
import warnings
from types import SimpleNamespace
from typing import Any, cast

from fastapi import FastAPI

from api.broker.threads import make_pools
from api.http import problems
from api.http.access import AuthenticationMiddleware, AuthorizationService
from api.http.audit import AuditMiddleware
from api.http.limits import RequestLimitMiddleware
from api.http.router import Routes
from api.settings.settings import Settings
from storage.clock import Clock
from tests.clocks import ManualClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient as _TestClient


class TestClient(_TestClient):
    """It asks for loopback: without access control no other name is answered."""

    __test__ = False

    def __init__(self, app: Any, **options: Any) -> None:
        super().__init__(app, **{"base_url": "http://127.0.0.1:8080", **options})


def application(
    router: Routes | None = None,
    access: AuthorizationService | None = None,
    limits: Settings | None = None,
    clock: Clock | None = None,
) -> FastAPI:
    """An application of some routes, with threads and errors as `api/app.py` has them; authentication if there is
    access control, limits and audit if there are settings for them."""
    app, clock = FastAPI(), clock or ManualClock()
    app.state.broker = SimpleNamespace(pools=make_pools(Settings(), ManualClock()))
    problems.install_error_handlers(app)
    if router is not None:
        app.router.routes.extend(router.routes)
    if limits is not None:
        app.add_middleware(RequestLimitMiddleware, settings=limits, clock=clock)
        app.add_middleware(AuditMiddleware, clock=clock)
    if access is not None:
        app.state.access = access
        app.add_middleware(AuthenticationMiddleware, access=access)
    return app


def access_of(
    secret: bytes | None, superuser: str, tenancy: object = None, clock: Clock | None = None
) -> AuthorizationService:
    """Access control by tokens of a secret key; without one it is off. `tenancy`: what is granted, if it is asked."""
    key = "" if secret is None else f"data:;base64,{base64.b64encode(secret).decode()}"
    settings = Settings(auth_token_secret_key=key, auth_superuser_roles=(superuser,) if secret is not None else ())
    return AuthorizationService.from_settings(settings, cast(Any, tenancy), clock or ManualClock())


__all__ = ["TestClient", "access_of", "application"]
