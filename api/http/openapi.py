"""The OpenAPI document: the answers that every route may give besides those that it declares, and authentication.

Any route may answer 400 (instead of FastAPI's 422) and, except for pages that need no token, 401 and 403. The limits
answer 413, 429, 431 and 503. 500 is never intended. Operation ids are unique.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.http.paths import NAMES
from api.http.problems import ErrorData

_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorData"}}}
ICEBERG = "iceberg"
"""The tag of the catalog, whose errors have Iceberg's body."""
_ICEBERG_CONTENT = {"application/json": {"schema": {"$ref": "#/components/schemas/IcebergErrorResponse"}}}
_ICEBERG_ERROR = {
    "title": "IcebergErrorResponse",
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": "integer"},
            },
        }
    },
}
_ANY = {
    "400": "The request cannot be taken.",
    "413": "The body is too large.",
    "429": "Too many requests.",
    "431": "Request line and headers are too large.",
    "503": "The service, its database or its store cannot answer now.",
}
_SECURED = {"401": "No token, or none that holds.", "403": "The role may not do this."}
_METHODS = frozenset({"get", "put", "post", "delete", "patch", "head", "options"})
_DESCRIPTION = (
    "Pulsar's admin REST, and what goes beyond it. An answer other than success has the body "
    '`{"reason": …}`, or Iceberg\'s in its catalog. Tokens: `Authorization: Bearer TOKEN` (docs/security.md).'
)


def install_openapi(app: FastAPI) -> None:
    """Make `app` serve the document of `openapi_document` as its OpenAPI document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi_document(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of an application, with the answers that every route may give."""
    document = get_openapi(title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).setdefault("ErrorData", ErrorData.model_json_schema())
    components["schemas"].setdefault("IcebergErrorResponse", _ICEBERG_ERROR)
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    for path, operations in document["paths"].items():
        for method in _METHODS & set(operations):
            _complete_operation(path, operations[method])
    return document


def _complete_operation(path: str, operation: dict[str, Any]) -> None:
    """Add the parameters of the path, and the answers that every route may give, to an operation of the document."""
    names = [_path_parameter(name, text) for name, text in NAMES.items() if f"{{{name}}}" in path]
    if names:
        operation["parameters"] = [*names, *operation.get("parameters", ())]
    responses: dict[str, Any] = operation["responses"]
    responses.pop("422", None)
    is_iceberg = ICEBERG in operation.get("tags", ())
    if "requestBody" in operation:
        responses.setdefault("415", {"description": "The body is not declared as JSON.", "content": _CONTENT})
    for status, text in {**_ANY, **(_SECURED if "security" in operation else {})}.items():
        responses.setdefault(status, {"description": text, "content": _CONTENT})
    if is_iceberg:
        for status, response in responses.items():
            if int(status) >= 400:
                response["content"] = _ICEBERG_CONTENT


def _path_parameter(name: str, text: str) -> dict[str, Any]:
    schema = {"type": "string", "description": text, "title": name.title()}
    return {"name": name, "in": "path", "required": True, "schema": schema, "description": text}
