"""OpenAPI description of the JSON API, generated from the types that its endpoints return.

The schemas come from the structs of dashboard.views and the docstrings under their fields, so that
description and code cannot differ. Not handled here: parameters (FastAPI reads them from the endpoints).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from fastapi import FastAPI

from dashboard import views
from swarm.settings.loading import field_docs

REF = "#/components/schemas/{name}"
ERRORS = {
    404: "There is no such thing here; the answer says what there is.",
    422: "A parameter is missing or out of its range; the answer names it.",
    503: "Too many dashboards are open; the answer says what to do.",
}

Answers = dict[int | str, dict[str, Any]]


def answers(kind: Any, text: str, *errors: int) -> Answers:
    """The documented answers of an endpoint: a view or a list of views (`tuple[views.Row, ...]`), and the
    error for a wrong parameter, which every endpoint has."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return {200: _json(text, schema)} | refusals(*errors)


def refusals(*errors: int) -> Answers:
    (schema,), _ = msgspec.json.schema_components([views.RefusedView], ref_template=REF)
    return {code: _json(ERRORS[code], schema) for code in (422, *errors)}


def frames() -> Answers:
    """The documented answer of the stream: a view in each event."""
    view = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": REF.format(name="StateView")},
    }
    fields = {"event": {"const": "view"}, "data": view, "retry": {"type": "integer"}}
    event = {"type": "object", "properties": fields, "required": ["data"]}
    return {
        200: {"description": "Views without an end.", "content": {"text/event-stream": {"itemSchema": event}}}
    }


def _json(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def describe(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """The application's `openapi` function, with the views among its components; it computes the description
    at the first request."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            plain().setdefault("components", {})["schemas"] = components()
        return plain()

    return openapi


def components() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(list(_kinds(views.View)), ref_template=REF)
    for kind in _kinds(views.View):
        for parent in kind.__mro__[: kind.__mro__.index(views.View)]:
            for field, text in field_docs(parent).items():
                schemas[kind.__name__]["properties"][field]["description"] = text
        if kind.__doc__ == views.View.__doc__:
            schemas[kind.__name__].pop("description", None)
    return schemas


def _kinds(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)
