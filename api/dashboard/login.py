"""Login with a token, which is stored in a cookie that no script can read and no other site can send.

Requests come from unknown callers, so they use no thread, and their bodies have limits of their own
(`api/http/login_limits.py`).
"""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from api.dashboard.rendering import (
    HEADERS,
    PageRoutes,
    read_same_origin_form,
    render_page,
    require_same_origin,
    uses_tls,
)
from api.http.access import DASHBOARD_COOKIE, LOGIN, LOGOUT, SECURE_COOKIE
from api.http.context import Context

router = PageRoutes()
_COOKIES = {False: DASHBOARD_COOKIE, True: SECURE_COOKIE}
"""Name of the cookie without TLS and with TLS."""


@router.get(LOGIN, is_page=False)
async def show_login(request: Request, next: str = "/") -> Response:
    """Return the login page, with a form for a token."""
    return render_page(request, "login.html", next=next, reason="")


@router.post(LOGIN)
async def log_in(context: Context, request: Request) -> Response:
    """Check the token of the login form, store it in a cookie, and redirect to the page of `next`. A bad token: the
    form again."""
    form = await read_same_origin_form(request)
    token, place = form.get("token", "").strip(), form.get("next", "/")
    reason = context.access.token_refusal_reason(token)
    if reason:
        return render_page(request, "login.html", 401, next=place, reason=reason)
    answer = RedirectResponse(_local_path(place), 303, HEADERS)
    secure = uses_tls(request)
    answer.set_cookie(_COOKIES[secure], token, httponly=True, samesite="strict", secure=secure, path="/")
    return answer


@router.post(LOGOUT)
async def log_out(request: Request) -> Response:
    """Delete the login cookie, and redirect to the login page."""
    require_same_origin(request)
    answer = RedirectResponse(LOGIN, 303, HEADERS)
    for secure, cookie in _COOKIES.items():
        answer.delete_cookie(cookie, path="/", secure=secure, httponly=True, samesite="strict")
    return answer


def _local_path(encoded_url: str) -> str:
    """Return the path of an encoded URL if it is one of this service, else `/`."""
    try:
        path = urlsplit(encoded_url).path
    except ValueError:
        return "/"
    return quote(path, safe="/%") if path.startswith("/") and not path.startswith("//") else "/"
