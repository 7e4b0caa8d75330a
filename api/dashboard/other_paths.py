"""Paths of the dashboard that are no page: its root leads to the list of topics, all others to a page that says so.

This router comes after all others of the dashboard, whose paths it would take.
"""

from __future__ import annotations

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from api.dashboard.rendering import HEADERS, PageRoutes
from api.http.problems import RestException

router = PageRoutes()
_SHOWN = 200


@router.get("/dashboard", is_page=False)
async def redirect_to_topics(request: Request) -> Response:
    """Redirect to the list of topics."""
    return RedirectResponse("/", 303, HEADERS)


@router.get("/dashboard/{path:path}")
async def redirect_root_or_refuse(request: Request, path: str) -> Response:
    """Redirect from the root to the list of topics. Raises RestException (404) for any other path."""
    if path:
        raise RestException(404, f"the dashboard has no page {request.url.path[:_SHOWN]}")
    return await redirect_to_topics(request)
