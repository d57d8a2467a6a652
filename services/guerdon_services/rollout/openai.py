"""OpenAI's `/v1/completions`, `/v1/chat/completions` and `/v1/models`, so that existing clients can sample the policy.

A streamed answer comes as server-sent events, one piece of text per choice when that prompt's group is complete.
The policy's version is in `system_fingerprint` ("v12") and, per choice, in `model_version`.
"""

import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic_core import from_json

from guerdon import errors
from guerdon.types import GenerateResult, Rollout, Status
from guerdon_services.rollout.openai_requests import (
    BadParameter,
    ChatRequest,
    CompletionRequest,
    parse,
)
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.http import CLIENT_CLOSED_REQUEST, unless_gone
from guerdon_services.runtime.validation import Parsed

if TYPE_CHECKING:
    from guerdon_services.rollout.service import RolloutGenerator

AnyRequest = CompletionRequest | ChatRequest
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
            submission = await dispatch.begin_generate(Parsed(native, native.samples))
            return _Stream(_events(_Answer(service, asked), submission.chunks()))
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
    return JSONResponse(_Answer(service, asked).whole(results))


def _json(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError as error:
        raise BadParameter("body", f"the body is not JSON: {error}", code="invalid_json") from error


class _Stream(StreamingResponse):
    media_type = "text/event-stream"


async def _events(
    answer: "_Answer", chunks: AsyncIterator[list[tuple[int, GenerateResult]]]
) -> AsyncIterator[str]:
    """The server-sent events of a streamed answer; a failure is an event, too, and the last one."""
    finished: list[GenerateResult] = []
    async for chunk in chunks:
        for index, result in chunk:
            if result.status is not Status.OK:
                body = _error_body(result.status, result.reason, param=_parameter(result.reason))
                yield f"data: {json.dumps(body)}\n\n"
                return
            finished.append(result)
            for piece in answer.pieces(index, result):
                yield f"data: {json.dumps(piece)}\n\n"
    if answer.request.stream_options.include_usage:
        usage = {**answer.head(finished[-1]), "choices": [], "usage": _usage(finished)}
        yield f"data: {json.dumps(usage)}\n\n"
    yield "data: [DONE]\n\n"


class _Answer:
    """Renders results the way OpenAI does, for one request."""

    def __init__(self, service: "RolloutGenerator", request: AnyRequest) -> None:
        self.request = request
        self._service = service
        self._chat = isinstance(request, ChatRequest)
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())

    def head(self, result: GenerateResult) -> dict[str, Any]:
        """What every object of the answer begins with."""
        kind = "chat.completion" if self._chat else "text_completion"
        if self._chat and self.request.stream:
            kind = "chat.completion.chunk"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._service.served_name,
            "system_fingerprint": f"v{result.rollouts[0].model_version}",
        }

    def whole(self, results: list[GenerateResult]) -> dict[str, Any]:
        """The answer in one piece; the choices of prompt i are number i * n and following."""
        choices = [
            choice
            for index, result in enumerate(results)
            for choice in self._choices(index, result, "message")
        ]
        return {**self.head(results[0]), "choices": choices, "usage": _usage(results)}

    def pieces(self, index: int, result: GenerateResult) -> Iterator[dict[str, Any]]:
        """The answer to prompt number `index`, one piece per choice."""
        for choice in self._choices(index, result, "delta"):
            yield {**self.head(result), "choices": [choice]}

    def _choices(
        self, index: int, result: GenerateResult, field: Literal["message", "delta"]
    ) -> Iterator[dict[str, Any]]:
        for number, rollout in enumerate(result.rollouts):
            choice: dict[str, Any] = {"index": index * self.request.n + number}
            if self._chat:
                choice[field] = {"role": "assistant", "content": rollout.response}
            else:
                choice["text"] = rollout.response
            choice["logprobs"] = self._logprobs(rollout) if self.request.wants_logprobs else None
            choice["finish_reason"] = rollout.finish_reason
            choice["model_version"] = rollout.model_version
            if rollout.last_version is not None:
                choice["last_version"] = rollout.last_version
            if self.request.return_token_ids:
                choice["token_ids"] = rollout.token_ids
                choice["prompt_token_ids"] = result.prompt_token_ids
            yield choice

    def _logprobs(self, rollout: Rollout) -> dict[str, Any]:
        tokenizer = self._service.engine.tokenizer
        texts = [str(tokenizer.decode([token])) for token in rollout.token_ids]
        if self._chat:
            content = [
                {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logprob in zip(texts, rollout.logprobs, strict=True)
            ]
            return {"content": content, "refusal": None}
        offsets = [0]
        for text in texts[:-1]:
            offsets.append(offsets[-1] + len(text))
        return {
            "tokens": texts,
            "token_logprobs": rollout.logprobs,
            "top_logprobs": None,
            "text_offset": offsets,
        }


def _usage(results: list[GenerateResult]) -> dict[str, int]:
    prompt = sum(len(result.prompt_token_ids) for result in results)
    completion = sum(len(rollout.token_ids) for result in results for rollout in result.rollouts)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _failure(status: Status, reason: str, *, retry_after_s: float = 1.0) -> JSONResponse:
    response = JSONResponse(
        _error_body(status, reason, param=_parameter(reason)), status_code=_HTTP_STATUS[status]
    )
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


def _error_body(status: Status, reason: str, *, param: str | None) -> dict[str, Any]:
    kind = "invalid_request_error" if status is Status.INVALID_INPUT else "server_error"
    return {"error": {"message": reason, "type": kind, "param": param, "code": status.value}}
