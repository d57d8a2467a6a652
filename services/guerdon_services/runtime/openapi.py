"""The OpenAPI document: bodies are read raw, yet /docs shows the models they must be."""

from collections.abc import Sequence
from typing import Any, cast

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from guerdon_services.runtime import problem

_REFERENCE = "#/components/schemas/{model}"


def body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose raw JSON body is a `model`."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def answers(model: type[BaseModel], line: type[BaseModel] | None = None) -> dict[int | str, dict[str, Any]]:
    """`responses` of a native route: the answer, its streamed lines, and the problems it may have."""
    problems = {
        400: "Malformed JSON",
        401: "No bearer token, or a wrong one",
        408: "The body came too slowly",
        413: "Too many samples, or too large a body",
        422: "A wrong field outside the samples",
        429: "Too many items wait; see Retry-After",
        503: "The service is starting or stopping",
    }
    responses: dict[int | str, dict[str, Any]] = {200: {"model": model}}
    if line is not None:
        schema = {"$ref": _REFERENCE.format(model=line.__name__)}
        responses[200]["content"] = {"application/x-ndjson": {"schema": schema}}
    for status, description in problems.items():
        schema = {"$ref": _REFERENCE.format(model="Problem")}
        responses[status] = {
            "description": description,
            "content": {problem.CONTENT_TYPE: {"schema": schema}},
        }
    return responses


def page(content_type: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers with text."""
    return {200: {"description": "The text", "content": {content_type: {"schema": {"type": "string"}}}}}


def probe() -> dict[int | str, dict[str, Any]]:
    """`responses` of a probe: 503 with the same fields says no."""
    says = {"application/json": {"schema": {"type": "object", "required": ["status"]}}}
    return {200: {"description": "Yes", "content": says}, 503: {"description": "No", "content": says}}


def query(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route whose query is a `model`."""
    properties = cast(dict[str, Any], model.model_json_schema()["properties"])
    return {"parameters": [{"name": name, "in": "query", "schema": one} for name, one in properties.items()]}


def waited(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that may wait: as `answers`, and that it waited in vain."""
    responses = answers(model)
    responses[504] = {**responses[503], "description": "What was waited for did not come in time"}
    return {status: responses[status] for status in (200, 401, 422, 503, 504)}


def install(app: FastAPI, models: Sequence[type[BaseModel]], options: type[BaseModel] | None) -> None:
    """Make `app` publish `models` among its schemas, with `options` as the type of a score request's options."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
            known = cast(dict[str, Any], schema.setdefault("components", {}).setdefault("schemas", {}))
            for name, definition in _definitions([*models, problem.Problem], options).items():
                known.setdefault(name, definition)
            for path in cast(dict[str, dict[str, Any]], schema.get("paths", {})).values():
                for operation in path.values():
                    _lift_definitions(operation, known)
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document


def _lift_definitions(operation: dict[str, Any], known: dict[str, Any]) -> None:
    """Move what the schemas of a service's own bodies define to where references of the document point."""
    for content in cast(dict[str, Any], operation.get("requestBody", {}).get("content", {})).values():
        definitions: dict[str, Any] = content["schema"].pop("$defs", {})
        for name, definition in definitions.items():
            known.setdefault(name, _pointing(definition))
        content["schema"] = _pointing(content["schema"])


def _pointing(value: Any) -> Any:
    """The same schema with references to the document's own definitions."""
    if isinstance(value, dict):
        return {key: _pointing(child) for key, child in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_pointing(child) for child in cast(list[Any], value)]
    here, there = "#/$defs/", _REFERENCE.format(model="")
    return value.replace(here, there) if isinstance(value, str) and value.startswith(here) else value


def _definitions(models: Sequence[type[BaseModel]], options: type[BaseModel] | None) -> dict[str, Any]:
    kinds = [*models, options] if options is not None else models
    _, schema = models_json_schema([(model, "validation") for model in kinds], ref_template=_REFERENCE)
    definitions: dict[str, Any] = schema.get("$defs", {})
    if options is not None and "ScoreRequest" in definitions:
        definitions["ScoreRequest"]["properties"]["options"] = {
            "$ref": _REFERENCE.format(model=options.__name__)
        }
    return definitions
