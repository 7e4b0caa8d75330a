"""Paths and queries as they arrive: percent-encoded UTF-8, with encoded slashes inside names."""

from __future__ import annotations

import pytest
from fastapi import Request

from api.http.paths import EncodedSlashMiddleware, decode_path_part
from tests.asgi import TestClient, application


@pytest.fixture(scope="module")
def client() -> TestClient:
    """An application that answers with the name in the path and the one in the query."""
    app = application()

    @app.get("/names/{name}")
    def names(request: Request) -> list[str]:
        return [decode_path_part(request.path_params["name"]), request.query_params.get("name", "")]

    app.add_middleware(EncodedSlashMiddleware)
    return TestClient(app)


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ("/names/a%2Fb?name=c%2Fd", ["a/b", "c/d"]),
        ("/names/%C3%A9%2F?name=%C3%A9", ["é/", "é"]),
        ("/names/%EF%BF%BD?name=%EF%BF%BD", ["\ufffd", "\ufffd"]),
        ("/names/%F0%9F%98%80", ["\U0001f600", ""]),
        ("/names/100%25", ["100%", ""]),
    ],
)
def test_names_are_utf8(client: TestClient, url: str, names: list[str]) -> None:
    assert client.get(url).json() == names


@pytest.mark.parametrize("name", ["%ff", "%FE", "a%c3", "%ed%a0%80", "%c0%af", "%e9%2F"])
def test_other_bytes_are_refused(client: TestClient, name: str) -> None:
    for part, url in (("path", f"/names/{name}"), ("query", f"/names/a?name={name}&other=b")):
        refused = client.get(url)
        assert (refused.status_code, refused.json()["reason"].partition(" is ")[0]) == (400, f"the {part} of the URL")
