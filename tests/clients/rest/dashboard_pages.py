"""Pages of the dashboard as tests read them."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

from api.http.tokens import create_token
from tests.asgi import TestClient
from tests.clients.rest.conftest import SECRET, RestTopic
from tests.serving import Served

ORIGIN = {"Origin": "http://127.0.0.1:8080"}


def page_of(topic: RestTopic) -> str:
    return f"/dashboard/topics/public/default/{topic.local}"


def page(client: Any, path: str, status: int = 200) -> str:
    """A page: with our script alone, and with headers that forbid inline ones and other hosts."""
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert re.findall("<script.*", answer.text) == ['<script src="/dashboard/dashboard.js" defer></script>']
    assert not re.search(r"<[^>]* (on\w+|style)=", answer.text)
    assert not re.search(r"(src|href|action)=\"(https?:)?//", answer.text)
    return str(answer.text)


def picture(text: str) -> ElementTree.Element:
    """Return the drawing along the offsets, which has another one inside."""
    (drawing,) = re.findall('<svg class="picture".*?</svg>.*?</svg>', text, re.DOTALL)
    return ElementTree.fromstring(drawing)


def states_of(text: str) -> list[str]:
    """The states at the top of a page."""
    return re.findall(r'<span class="state [^"]*">([^<]*)', text.partition('<nav class="tabs"')[0])


def logged_in(served: Served, role: str) -> TestClient:
    client = TestClient(served.client.app)
    answer = client.post("/dashboard/login", content=f"token={create_token(SECRET, role, {})}&next=/", headers=ORIGIN)
    assert answer.status_code == 200
    return client
