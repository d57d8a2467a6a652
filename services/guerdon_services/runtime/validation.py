"""From what arrived at a door to a checked request: one item's mistake stays that item's.

`ScoreRequest` and `GenerateRequest` are parsed in one call of pydantic when all is well. When only samples are
wrong, each wrong one becomes a `BadItem` and the others stand. Everything else refuses the whole request.
"""

import difflib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, Union, cast, get_args, get_origin

import pydantic_core
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from guerdon.types import (
    GenerateRequest,
    GenerateSample,
    Sample,
    ScoreRequest,
    UpdateRequest,
    VersionsRequest,
)
from guerdon_services.runtime import surrogates
from guerdon_services.runtime.problem import FieldError, InvalidFields, MalformedBody
from guerdon_services.runtime.scorer import ScorerOptions

SampleT = TypeVar("SampleT", Sample, GenerateSample)
BatchT = TypeVar("BatchT", ScoreRequest, GenerateRequest)
OptionsT = TypeVar("OptionsT", bound=ScorerOptions)

#: Errors named in one message; a batch may hold thousands.
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class BadItem:
    """A sample that is wrong; `reason` names its field."""

    id: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed(Generic[BatchT, SampleT]):
    """A request whose envelope is right: `envelope.samples` is not to be read, `samples` is."""

    envelope: BatchT
    samples: Sequence[SampleT | BadItem]


def parse_score(body: bytes) -> Parsed[ScoreRequest, Sample]:
    """A score request from JSON text.

    Raises:
        MalformedBody: it is not JSON.
        InvalidFields: something outside the samples is wrong.
    """
    return _parse_json(ScoreRequest, Sample, body)


def parse_generate(body: bytes) -> Parsed[GenerateRequest, GenerateSample]:
    """A generate request from JSON text; raises as `parse_score` does."""
    return _parse_json(GenerateRequest, GenerateSample, body)


def parse_update(body: bytes) -> UpdateRequest:
    """An update request from JSON text. A wrong sample refuses it all: learning from half a batch helps nobody.

    Raises:
        MalformedBody: it is not JSON.
        InvalidFields: something is wrong.
    """
    try:
        return UpdateRequest.model_validate_json(body)
    except ValidationError as error:
        if _is_no_json(error) and (data := surrogates.read(body)) is not None:
            raise InvalidFields([FieldError(surrogates.first(data) or "", surrogates.NO_TEXT)]) from None
        raise refusal(UpdateRequest, error) from None


def parse_versions(query: Mapping[str, str]) -> VersionsRequest:
    """A question for versions from the query of a URL.

    Raises:
        InvalidFields: something is wrong.
    """
    try:
        return VersionsRequest.model_validate_strings(dict(query))
    except ValidationError as error:
        raise refusal(VersionsRequest, error) from None


def parse_mapping(
    request_type: type[BatchT], sample_type: type[SampleT], data: Mapping[str, Any]
) -> Parsed[BatchT, SampleT]:
    """A request from plain Python data (what a protobuf message decodes to); a sample may be a `BadItem`.

    Raises:
        InvalidFields: something outside the samples is wrong.
    """
    try:
        request = request_type.model_validate(data)
    except ValidationError:
        return _each(request_type, sample_type, data)
    return Parsed(request, cast(Sequence[SampleT], request.samples))


def _each(
    request_type: type[BatchT], sample_type: type[SampleT], data: Mapping[str, Any]
) -> Parsed[BatchT, SampleT]:
    """As `parse_mapping`, sample by sample."""
    samples: list[Any] = data.get("samples", [])
    try:
        envelope = request_type.model_validate({**data, "samples": []})
    except ValidationError as error:
        raise refusal(request_type, error) from None
    return Parsed(envelope, [_sample(sample_type, sample_type.model_validate, sample) for sample in samples])


def parse_options(options_type: type[OptionsT], options: Mapping[str, JsonValue]) -> OptionsT:
    """A request's options in the service's own type.

    Numbers without fraction count as integers: protobuf carries every number as a double.

    Raises:
        InvalidFields: an unknown key (with the one probably meant), a wrong type, NaN.
    """
    try:
        return options_type.model_validate_json(_json(_integral(dict(options))), strict=True)
    except ValidationError as error:
        raise InvalidFields(field_errors(options_type, error, prefix="options")) from None


def refusal(model: type[BaseModel], error: ValidationError) -> InvalidFields | MalformedBody:
    """What to raise for a body that pydantic refused."""
    if _is_no_json(error):
        return MalformedBody(error.errors(include_url=False)[0]["msg"])
    return InvalidFields(field_errors(model, error))


def field_errors(model: type[BaseModel], error: ValidationError, *, prefix: str = "") -> list[FieldError]:
    """pydantic's errors as field paths and sentences; branches of a union are joined by "or"."""
    messages: dict[str, list[str]] = {}
    details = error.errors(include_url=False, include_context=False, include_input=False)
    # Thousands of wrong samples must not hide the wrong option.
    for detail in sorted(details, key=lambda detail: _below_sample(detail["loc"])):
        path, message = _locate(model, detail)
        field = f"{prefix}.{path}" if prefix and path else prefix or path
        known = messages.setdefault(field, [])
        if message not in known:
            known.append(message)
    errors = [FieldError(field, ", or ".join(parts)) for field, parts in messages.items()]
    return errors[:_SHOWN]


def did_you_mean(wrong: str, known: Sequence[str]) -> str:
    """A half sentence with the known name closest to `wrong`, or with all of them."""
    close = difflib.get_close_matches(wrong, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(known)}" if known else "none is known here"


def _parse_json(
    request_type: type[BatchT], sample_type: type[SampleT], body: bytes
) -> Parsed[BatchT, SampleT]:
    try:
        request = request_type.model_validate_json(body)
    except ValidationError as error:
        if _is_no_json(error) and (halves := surrogates.read(body)) is not None:
            return _apart(request_type, sample_type, halves)
        details = error.errors(include_url=False, include_context=False, include_input=False)
        if not all(_below_sample(detail["loc"]) for detail in details):
            raise refusal(request_type, error) from None
        data: dict[str, Any] = pydantic_core.from_json(body)
        return _one_by_one(request_type, sample_type, data, data["samples"])
    return Parsed(request, cast(Sequence[SampleT], request.samples))


def _one_by_one(
    request_type: type[BatchT], sample_type: type[SampleT], data: dict[str, Any], samples: Sequence[Any]
) -> Parsed[BatchT, SampleT]:
    try:
        envelope = request_type.model_validate_json(_json({**data, "samples": []}))
    except ValidationError as error:
        raise refusal(request_type, error) from None

    # As JSON again: pydantic's verdicts on JSON and on Python data differ in their words.
    def validate(sample: Any) -> SampleT:
        return sample_type.model_validate_json(_json(sample))

    return Parsed(envelope, [_sample(sample_type, validate, sample) for sample in samples])


def _apart(
    request_type: type[BatchT], sample_type: type[SampleT], data: dict[str, Any]
) -> Parsed[BatchT, SampleT]:
    """A request with strings that are no text: those of a sample cost that sample, others the request."""
    samples: Any = data.pop("samples", [])
    around = surrogates.first(data)
    if around is not None or not isinstance(samples, list):
        raise InvalidFields([FieldError(around or "samples", surrogates.NO_TEXT)])
    checked: list[Any] = []
    for sample in cast(list[Any], samples):
        path = surrogates.first(sample)
        given = cast(dict[str, Any], sample).get("id") if isinstance(sample, dict) else None
        id = given if isinstance(given, str) and surrogates.first(given) is None else None
        checked.append(sample if path is None else BadItem(id, f"{path or 'sample'}: {surrogates.NO_TEXT}"))
    return _one_by_one(request_type, sample_type, data, checked)


def _is_no_json(error: ValidationError) -> bool:
    return (
        error.errors(include_url=False, include_context=False, include_input=False)[0]["type"]
        == "json_invalid"
    )


def _json(value: Any) -> bytes:
    return pydantic_core.to_json(value, inf_nan_mode="constants")


def _below_sample(loc: tuple[int | str, ...]) -> bool:
    return len(loc) >= 2 and loc[0] == "samples" and isinstance(loc[1], int)


def _sample(sample_type: type[SampleT], validate: Callable[[Any], SampleT], data: Any) -> SampleT | BadItem:
    if isinstance(data, BadItem):
        return data
    if not isinstance(data, dict):
        return BadItem(None, "sample: must be an object")
    try:
        return validate(data)
    except ValidationError as error:
        reasons = [str(field_error) for field_error in field_errors(sample_type, error)]
        given = cast(dict[str, Any], data).get("id")
        return BadItem(given if isinstance(given, str) else None, "; ".join(reasons))


def _integral(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(child) for key, child in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_integral(child) for child in cast(list[Any], value)]
    return value


def _locate(model: type[BaseModel], detail: ErrorDetails) -> tuple[str, str]:
    """The path of an error without the names pydantic gives to the branches of a union, and its sentence."""
    path, annotation = list[str](), cast(Any, model)
    message = detail["msg"].removeprefix("Value error, ")
    for part in detail["loc"]:
        models = list(_models(annotation))
        chosen = next((one for one in models if _is_tag(one, part)), None) if len(models) > 1 else None
        if chosen is not None:
            annotation = chosen
            continue
        owner = next((one for one in models if part in one.model_fields), None)
        if isinstance(part, str) and owner is not None:
            annotation = owner.model_fields[part].annotation
        elif detail["type"] == "extra_forbidden" and part == detail["loc"][-1]:
            known = [field.alias or name for one in models for name, field in one.model_fields.items()]
            message = f"unknown field; {did_you_mean(str(part), known)}"
        elif isinstance(part, str) and _has_branches(annotation):
            continue
        path.append(str(part))
    return ".".join(path), message


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _is_tag(model: type[BaseModel], part: int | str) -> bool:
    """Whether pydantic names this model of a union by `part`, the value of its discriminator."""
    annotations = [field.annotation for field in model.model_fields.values()]
    return any(get_origin(one) is Literal and get_args(one) == (part,) for one in annotations)


def _has_branches(annotation: Any) -> bool:
    arguments = [argument for argument in get_args(annotation) if argument is not type(None)]
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return (is_union and len(arguments) > 1) or any(_has_branches(argument) for argument in arguments)
