"""OpenAI's `/v1/completions`, `/v1/chat/completions` and `/v1/models`, so that existing clients can sample the policy.

A streamed answer comes as server-sent events, a piece of text per choice and step of the engine. The policy's version
is in `system_fingerprint` ("v12") and, per choice, in `model_version`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import from_json
from starlette.types import Receive, Scope, Send

from guerdon import errors
from guerdon.types import GenerateResult, Status
from guerdon_services.rollout.openai_answers import Answer, StreamedAnswer
from guerdon_services.rollout.openai_requests import (
    BadParameter,
    ChatRequest,
    CompletionRequest,
    parse,
)
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.http import CLIENT_CLOSED_REQUEST, cancel_when_gone, unless_gone
from guerdon_services.runtime.submission import Submission
from guerdon_services.runtime.validation import Parsed

if TYPE_CHECKING:
    from guerdon_services.rollout.service import RolloutGenerator

_HTTP_STATUS = {
    Status.INVALID_INPUT: 400,
    Status.OVERLOADED: 429,
    Status.UNAVAILABLE: 503,
    Status.TIMEOUT: 504,
    Status.INTERNAL_ERROR: 500,
}
_ERROR = {"type": "object", "required": ["error"], "properties": {"error": {"type": "object"}}}
#: What the service calls a parameter, and what OpenAI does.
_PARAMETERS = {
    "sampling.max_new_tokens": "max_tokens",
    "sampling.min_new_tokens": "min_tokens",
    "sampling.stop_token_ids": "stop_token_ids",
    "sampling.stop": "stop",
    "prompt_token_ids": "prompt",
    "prompt": "prompt",
}


def build_router(service: "RolloutGenerator", dispatch: Dispatcher) -> APIRouter:
    """The routes; sampling goes through `dispatch` like that of every other door."""
    router = APIRouter(tags=["OpenAI"])

    async def completions(request: Request) -> Response:
        return await _serve(service, dispatch, request, CompletionRequest)

    async def chat_completions(request: Request) -> Response:
        return await _serve(service, dispatch, request, ChatRequest)

    def models() -> JSONResponse:
        card = {"id": service.served_name, "object": "model", "created": 0, "owned_by": "guerdon"}
        return JSONResponse({"object": "list", "data": [card]})

    for path, endpoint, kind in (
        ("/v1/completions", completions, CompletionRequest),
        ("/v1/chat/completions", chat_completions, ChatRequest),
    ):
        schema = {"application/json": {"schema": kind.model_json_schema()}}
        answer = {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}}
        error = {"content": {"application/json": {"schema": _ERROR}, "application/problem+json": {}}}
        router.add_api_route(
            path,
            endpoint,
            methods=["POST"],
            response_model=None,
            responses={
                200: {"description": "Choices, whole or as they come", "content": answer},
                "4XX": {**error, "description": "Refused"},
                "5XX": {**error, "description": "Failed"},
            },
            openapi_extra={"requestBody": {"required": True, "content": schema}},
        )
    router.add_api_route("/v1/models", models, methods=["GET"], response_model=None)
    return router


async def _serve(
    service: "RolloutGenerator",
    dispatch: Dispatcher,
    request: Request,
    kind: type[CompletionRequest] | type[ChatRequest],
) -> Response:
    # What is wrong with how it comes (too large, too slow) is refused in the same words on every route.
    body = await request.body()
    try:
        asked = parse(kind, _json(body))
        if asked.model not in (None, service.served_name):
            known = f"the model here is {service.served_name!r}, not {asked.model!r}"
            return _error(404, known, param="model", code="model_not_found")
        native = asked.native()
        if asked.stream:
            submission = await dispatch.begin_generate(Parsed(native, native.samples), listening="tokens")
            return _Events(submission, Answer(service, asked))
        results = await unless_gone(request, dispatch.generate(native))
        if results is None:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
    except BadParameter as error:
        return _error(400, str(error), param=error.param, code=error.code)
    except errors.TooLarge as error:
        return _error(413, str(error), code="too_large")
    except errors.GuerdonError as error:
        retry_after = error.retry_after_s if isinstance(error, errors.Overloaded) else 1.0
        return _failure(error.status, str(error), retry_after_s=retry_after)
    for result in results:
        if result.status is not Status.OK:
            return _failure(result.status, result.reason)
    return JSONResponse(Answer(service, asked).whole(results))


def _json(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError as error:
        raise BadParameter("body", f"the body is not JSON: {error}", code="invalid_json") from error


class _Failed(Exception):
    """A group of a streamed answer failed."""

    def __init__(self, result: GenerateResult) -> None:
        super().__init__(result.reason)
        self.status = result.status


class _Events(Response):
    """The server-sent events of a streamed answer.

    A failure ahead of them is answered as without a stream, so that clients repeat what may be repeated; a later one
    is an event, too, and the last one.
    """

    media_type = "text/event-stream"

    def __init__(self, submission: Submission[GenerateResult], answer: Answer) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._submission = submission
        self._answer = StreamedAnswer(answer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them; what is being sampled is given up when the client leaves."""
        watcher = asyncio.create_task(cancel_when_gone(receive, self._submission))
        begun = False
        try:
            async with aclosing(self._texts()) as texts:
                async for text in texts:
                    if not begun:
                        await send(
                            {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                        )
                        begun = True
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except _Failed as failed:
            if not begun:
                await _failure(failed.status, str(failed))(scope, receive, send)
                return
            last = _event(_error_body(failed.status, str(failed)))
            await send({"type": "http.response.body", "body": last.encode(), "more_body": True})
        finally:
            watcher.cancel()
            self._submission.cancel()
        await send({"type": "http.response.body", "body": b""})

    async def _texts(self) -> AsyncGenerator[str]:
        results: list[GenerateResult] = []
        async with aclosing(self._submission.chunks()) as chunks:
            async for chunk in chunks:
                text = ""
                for index, news in chunk:
                    if isinstance(news, GenerateResult):
                        if news.status is not Status.OK:
                            if text:
                                yield text
                            raise _Failed(news)
                        results.append(news)
                    text += "".join(map(_event, self._answer.chunks(index, news)))
                if text:
                    yield text
        last = None if self._submission.cancelled else self._answer.last(results)
        yield f"{'' if last is None else _event(last)}data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def _failure(status: Status, reason: str, *, retry_after_s: float = 1.0) -> JSONResponse:
    response = JSONResponse(_error_body(status, reason), status_code=_HTTP_STATUS[status])
    if status in (Status.OVERLOADED, Status.UNAVAILABLE):
        response.headers["Retry-After"] = str(max(1, round(retry_after_s)))
    return response


def _parameter(reason: str) -> str | None:
    """The OpenAI parameter that a reason begins by naming, if it names one."""
    field = reason.partition(":")[0].partition("[")[0]
    return _PARAMETERS.get(field)


def _error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> JSONResponse:
    body = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return JSONResponse({"error": body}, status_code=status)


def _error_body(status: Status, reason: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status is Status.INVALID_INPUT else "server_error"
    error = {"message": reason, "type": kind, "param": _parameter(reason), "code": status.value}
    return {"error": error}
