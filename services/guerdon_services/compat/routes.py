"""How a format's routes are added, so that the service's OpenAPI document describes them."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

_OPTIONS = {
    "name": "options",
    "in": "query",
    "schema": {"type": "string"},
    "description": "The scorer's options, as a JSON object",
}
_PROBLEM = {"content": {"application/problem+json": {"schema": {"type": "object"}}}}


def add(
    router: APIRouter,
    path: str,
    endpoint: Callable[[Request], Awaitable[Response]],
    body: type[BaseModel],
    *,
    method: str = "POST",
    required: bool = True,
    query: tuple[str, ...] = (),
) -> None:
    """Add a route whose raw JSON body is a `body`; its refusals are problem documents."""
    named = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in query]
    schema = {"application/json": {"schema": body.model_json_schema()}}
    extra: dict[str, Any] = {"requestBody": {"required": required, "content": schema}}
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        response_model=None,
        responses={
            200: {"description": "The answer", "content": {"application/json": {}}},
            "4XX": {**_PROBLEM, "description": "Refused: no reward"},
            "5XX": {**_PROBLEM, "description": "Failed: no reward"},
        },
        openapi_extra={**extra, "parameters": [_OPTIONS, *named]},
    )
