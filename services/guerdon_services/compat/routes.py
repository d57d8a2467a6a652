"""How a format's routes are added, so that the service's OpenAPI document describes them."""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from guerdon_services.runtime.problem import FieldError, InvalidFields
from guerdon_services.runtime.validation import did_you_mean

Endpoint = Callable[[Request], Awaitable[Response]]

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
    endpoint: Endpoint,
    body: type[BaseModel],
    *,
    method: str = "POST",
    required: bool = True,
    query: tuple[str, ...] = (),
) -> None:
    """Add a route whose raw JSON body is a `body`; its refusals are problem documents.

    `query` and `options` are all that the URL may ask for.
    """
    named = [{"name": name, "in": "query", "schema": {"type": "string"}} for name in query]
    schema = {"application/json": {"schema": body.model_json_schema()}}
    extra: dict[str, Any] = {"requestBody": {"required": required, "content": schema}}
    router.add_api_route(
        path,
        _checked(endpoint, ("options", *query)),
        methods=[method],
        response_model=None,
        responses={
            200: {"description": "The answer", "content": {"application/json": {}}},
            "4XX": {**_PROBLEM, "description": "Refused: no reward"},
            "5XX": {**_PROBLEM, "description": "Failed: no reward"},
        },
        openapi_extra={**extra, "parameters": [_OPTIONS, *named]},
    )


def _checked(endpoint: Endpoint, known: tuple[str, ...]) -> Endpoint:
    """The endpoint, which refuses an unknown word in the URL: misspelt options would change rewards unseen."""

    @wraps(endpoint)
    async def checked(request: Request) -> Response:
        for name in request.query_params:
            if name not in known:
                message = f"unknown in the URL's query; {did_you_mean(name, known)}"
                raise InvalidFields([FieldError(name, message)])
        return await endpoint(request)

    return checked
