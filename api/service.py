"""One process of the service: a broker that runs, and HTTP's state over it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import HTTPException

from api.broker.opening import open_broker
from api.http.access import AuthorizationService
from api.http.context import HttpContext
from api.settings.settings import Settings


@contextmanager
def running_service(settings: Settings) -> Iterator[HttpContext]:
    """Run a broker until the end of the context, and yield the state that HTTP requests need over it. Raises
    Misconfigured, Unavailable."""
    with open_broker(settings, expected_errors=(HTTPException,)) as broker:
        environment = broker.environment
        # Before the broker runs, because a key may be bad.
        access = AuthorizationService.from_settings(settings, environment.metadata.tenancy, environment.clock)
        with broker.running():
            yield HttpContext(broker, access)
