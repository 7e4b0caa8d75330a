"""Starlette's client of an application in this process. Importing it warns that there is an httpx2."""

from __future__ import annotations

import base64
import warnings
from typing import Any, cast

from fastapi import FastAPI

from api.http.access import Access
from api.http.thread_pools import Pools
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


def with_pools(app: FastAPI) -> FastAPI:
    """An application of some routes, with threads for them."""
    app.state.pools = Pools.of(Settings(), ManualClock())
    return app


def access_of(secret: bytes | None, superuser: str, tenancy: object = None, clock: Clock | None = None) -> Access:
    """Access control by tokens of a secret key; without one it is off. `tenancy`: what is granted, if it is asked."""
    key = "" if secret is None else f"data:;base64,{base64.b64encode(secret).decode()}"
    settings = Settings(auth_token_secret_key=key, auth_superuser_roles=(superuser,) if secret is not None else ())
    return Access.of(settings, cast(Any, tenancy), clock or ManualClock())


__all__ = ["TestClient", "access_of", "with_pools"]
