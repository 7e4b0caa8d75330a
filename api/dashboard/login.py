"""Logging in with a token, which is kept in a cookie that no script reads and no other site sends."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from api.dashboard.rendering import HEADERS, form_of, rendered
from api.http.access import DASHBOARD_COOKIE, LOGIN
from api.http.router import Routes
from api.service import Parts

router = Routes(prefix="")


@router.get(LOGIN, include_in_schema=False)
def show_login(parts: Parts, request: Request, next: str = "/") -> Response:
    """Asks for a token."""
    return rendered(request, "login.html", next=next, reason="")


@router.post(LOGIN, include_in_schema=False)
async def log_in(parts: Parts, request: Request) -> Response:
    """Keeps a token that holds."""
    form = await form_of(request)
    token, place = form.get("token", "").strip(), form.get("next", "/")
    reason = parts.access.refusal_of(token)
    if reason:
        return rendered(request, "login.html", 401, next=place, reason=reason)
    answer = RedirectResponse(_ours(place), 303, HEADERS)
    answer.set_cookie(
        DASHBOARD_COOKIE, token, httponly=True, samesite="strict", secure=request.url.scheme == "https", path="/"
    )
    return answer


@router.post("/dashboard/logout", include_in_schema=False)
async def log_out(parts: Parts, request: Request) -> Response:
    """Forgets the token."""
    answer = RedirectResponse(LOGIN, 303, HEADERS)
    answer.delete_cookie(DASHBOARD_COOKIE, path="/")
    return answer


def _ours(place: str) -> str:
    """A path of this service, whatever a link says."""
    path = urlsplit(place).path
    return quote(path) if path.startswith("/") and not path.startswith("//") else "/"
