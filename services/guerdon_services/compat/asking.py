"""What all formats share: reading a body, asking the scorer with patience."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from guerdon import errors
from guerdon.types import Options, Result, Sample, ScoreRequest
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.problem import FieldError, InvalidFields, MalformedBody
from guerdon_services.runtime.validation import refusal

BodyT = TypeVar("BodyT", bound=BaseModel)

_OPTIONS = TypeAdapter[Options](Options)


async def body_of(request: Request, kind: type[BodyT]) -> BodyT:
    """The request's body as a `kind`.

    Raises:
        MalformedBody: it is not JSON.
        InvalidFields: it is no `kind`.
    """
    try:
        return kind.model_validate(from_json(await request.body(), allow_inf_nan=False))
    except ValidationError as error:
        raise refusal(kind, error) from None
    except ValueError as error:
        raise MalformedBody(f"not JSON: {error}") from None


def options_of(request: Request) -> Options:
    """The scorer's options, from the URL: `?options={"extraction": "last_box"}`.

    Raises:
        InvalidFields: they are no JSON object.
    """
    text = request.query_params.get("options")
    if text is None:
        return {}
    try:
        return _OPTIONS.validate_json(text)
    except ValidationError:
        raise InvalidFields([FieldError("options", "must be a JSON object in the URL's query")]) from None


async def scored(
    dispatch: Dispatcher, samples: Sequence[Sample], options: Options, patience_s: float | None
) -> list[Result]:
    """One result per sample. A crowd is waited out: peers give up on a refusal sooner than on an answer that is late.

    Raises:
        Overloaded: there was no room for `patience_s` seconds.
        GuerdonError: as `Dispatcher.score`.
    """
    request = ScoreRequest.model_construct(samples=list(samples), options=options, min_version=None)
    loop = asyncio.get_running_loop()
    ends = None if patience_s is None else loop.time() + patience_s
    while True:
        left_s = None if ends is None else max(0.0, ends - loop.time())
        try:
            return await dispatch.score(request, left_s)
        except errors.Overloaded as error:
            if left_s is not None and error.retry_after_s >= left_s:
                raise
            await asyncio.sleep(error.retry_after_s)
