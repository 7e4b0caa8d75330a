"""docs/openapi.json, the description of the REST API for machines, against the application.

`python -m tests.docs.test_openapi` writes the file: run it after a change of a route, a model or their texts, and read
the difference, since callers' programs are generated from it.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI

from api import DISTRIBUTION
from api.app import ROUTERS
from api.http import openapi
from tests.serving import serving

FILE = Path(__file__).resolve().parents[2] / "docs" / "openapi.json"


def document() -> str:
    """Return the description in the form of the file: sorted, so that a difference shows the change."""
    app = FastAPI(title="Compactor", version=version(DISTRIBUTION))
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    return json.dumps(openapi.openapi_document(app), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def test_the_file_describes_this_version() -> None:
    assert FILE.read_text(encoding="utf-8") == document(), "run python -m tests.docs.test_openapi"


def test_the_service_answers_with_the_same(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        answer = served.client.get("/openapi.json").json()
    assert answer == json.loads(document())


if __name__ == "__main__":
    FILE.write_text(document(), encoding="utf-8")
