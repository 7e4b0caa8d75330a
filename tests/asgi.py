"""Starlette's client of an application in this process. Importing it warns that there is an httpx2."""

from __future__ import annotations

import warnings
from typing import Any

from fastapi import FastAPI

from api.settings import Settings
from api.waiting import Pools
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


__all__ = ["TestClient", "with_pools"]
