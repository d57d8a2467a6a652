"""What the client checks before it asks and after it was answered."""

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from guerdon.codec import describe
from guerdon.errors import InternalError, InvalidRequest
from guerdon.types import GenerateResult, GenerateSample, Message, Result, Sample

M = TypeVar("M", bound=Message)


def built(kind: type[M], **fields: Any) -> M:
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from error


def check_answers(
    samples: Sequence[Sample | GenerateSample], results: Sequence[Result | GenerateResult]
) -> None:
    """Refuse an answer that cannot be led back to its samples.

    Raises:
        InternalError: another number of results than of samples, or a result with another sample's id.
    """
    if len(results) != len(samples):
        raise InternalError(f"{len(samples)} samples were answered by {len(results)} results")
    for index, (sample, result) in enumerate(zip(samples, results, strict=True)):
        check_id(index, sample, result)


def check_id(index: int, sample: Sample | GenerateSample, result: Result | GenerateResult) -> None:
    if result.id is not None and result.id != sample.id:
        raise InternalError(f"sample {index} has id {sample.id!r}, its result {result.id!r}")
