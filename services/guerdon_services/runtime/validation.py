"""From what arrived at a door to a checked request: one item's mistake stays that item's.

`ScoreRequest` and `GenerateRequest` are parsed in one call of pydantic when all is well. When only samples are
wrong, each wrong one becomes a `BadItem` and the others stand. Everything else refuses the whole request.
"""

import difflib
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Union, cast, get_args, get_origin

import pydantic_core
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_core import ErrorDetails

from guerdon.types import GenerateRequest, GenerateSample, Sample, ScoreRequest, UpdateRequest
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
        request = UpdateRequest.model_validate_json(body)
    except ValidationError as error:
        raise refusal(UpdateRequest, error) from None
    return check_update(request)


def check_update(request: UpdateRequest) -> UpdateRequest:
    """The same request, once its free-form fields are known to be finite.

    Raises:
        InvalidFields: they are not.
    """
    bad = [*_non_finite(request.options, "options")]
    for index, sample in enumerate(request.samples):
        bad += [f"samples.{index}.{path}" for path in non_finite_fields(sample)]
    if bad:
        raise InvalidFields([FieldError(path, _FINITE) for path in bad[:_SHOWN]])
    return request


def parse_mapping(
    request_type: type[BatchT], sample_type: type[SampleT], data: Mapping[str, Any]
) -> Parsed[BatchT, SampleT]:
    """A request from plain Python data (what a protobuf message decodes to); a sample may be a `BadItem`.

    Raises:
        InvalidFields: something outside the samples is wrong.
    """
    samples: list[Any] = data.get("samples", [])
    try:
        envelope = request_type.model_validate({**data, "samples": []})
    except ValidationError as error:
        raise refusal(request_type, error) from None
    return _checked(envelope, [_sample(sample_type, sample) for sample in samples])


def parse_options(options_type: type[OptionsT], options: Mapping[str, JsonValue]) -> OptionsT:
    """A request's options in the service's own type.

    Numbers without fraction count as integers: protobuf carries every number as a double.

    Raises:
        InvalidFields: an unknown key (with the one probably meant), a wrong type, NaN.
    """
    if not options:
        data = b"{}"
    elif bad := [FieldError(path, _FINITE) for path in _non_finite(options, "options")]:
        raise InvalidFields(bad[:_SHOWN])
    else:
        data = pydantic_core.to_json(_integral(dict(options)))
    try:
        return options_type.model_validate_json(data, strict=True)
    except ValidationError as error:
        raise InvalidFields(field_errors(options_type, error, prefix="options")) from None


def refusal(model: type[BaseModel], error: ValidationError) -> InvalidFields | MalformedBody:
    """What to raise for a body that pydantic refused."""
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        if detail["type"] == "json_invalid":
            return MalformedBody(detail["msg"])
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


def non_finite_fields(sample: Sample | GenerateSample) -> list[str]:
    """Paths of NaN and infinities in the free-form fields of `sample`, which pydantic lets through."""
    if isinstance(sample, GenerateSample) or (sample.metadata is None and sample.code is None):
        return []
    # In C first: only a suspicious sample is walked.
    tests = sample.code.tests if sample.code else []
    free = [sample.metadata, *((test.args, test.expected) for test in tests)]
    dumped = pydantic_core.to_json(free, inf_nan_mode="constants")
    if b"NaN" not in dumped and b"Infinity" not in dumped:
        return []
    bad = [*_non_finite(sample.metadata, "metadata")]
    for index, test in enumerate(tests):
        bad += _non_finite(test.args, f"code.tests.{index}.args")
        bad += _non_finite(test.expected, f"code.tests.{index}.expected")
    return bad


_FINITE = "Input should be a finite number"


def _parse_json(
    request_type: type[BatchT], sample_type: type[SampleT], body: bytes
) -> Parsed[BatchT, SampleT]:
    try:
        request = request_type.model_validate_json(body)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        if not all(_below_sample(detail["loc"]) for detail in details):
            raise refusal(request_type, error) from None
        return parse_mapping(request_type, sample_type, pydantic_core.from_json(body))
    return _checked(request, cast(Sequence[SampleT], request.samples))


def _checked(envelope: BatchT, samples: Sequence[SampleT | BadItem]) -> Parsed[BatchT, SampleT]:
    return Parsed(envelope, [_finite(sample) for sample in samples])


def _finite(sample: SampleT | BadItem) -> SampleT | BadItem:
    if isinstance(sample, BadItem) or not (bad := non_finite_fields(sample)):
        return sample
    return BadItem(sample.id, f"{', '.join(bad[:_SHOWN])}: {_FINITE}")


def _below_sample(loc: tuple[int | str, ...]) -> bool:
    return len(loc) >= 2 and loc[0] == "samples" and isinstance(loc[1], int)


def _sample(sample_type: type[SampleT], data: Any) -> SampleT | BadItem:
    if isinstance(data, BadItem):
        return data
    if not isinstance(data, dict):
        return BadItem(None, "sample: must be an object")
    try:
        return sample_type.model_validate(data)
    except ValidationError as error:
        reasons = [str(field_error) for field_error in field_errors(sample_type, error)]
        given = cast(dict[str, Any], data).get("id")
        return BadItem(given if isinstance(given, str) else None, "; ".join(reasons))


def _non_finite(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for key, child in cast(dict[str, Any], value).items():
            yield from _non_finite(child, f"{path}.{key}")
    elif isinstance(value, list):
        for index, child in enumerate(cast(list[Any], value)):
            yield from _non_finite(child, f"{path}.{index}")


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
    path, message, annotation = list[str](), detail["msg"], cast(Any, model)
    for part in detail["loc"]:
        models = list(_models(annotation))
        owner = next((one for one in models if part in one.model_fields), None)
        if isinstance(part, str) and owner is not None:
            annotation = owner.model_fields[part].annotation
        elif detail["type"] == "extra_forbidden" and part == detail["loc"][-1]:
            known = [name for one in models for name in one.model_fields]
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


def _has_branches(annotation: Any) -> bool:
    arguments = [argument for argument in get_args(annotation) if argument is not type(None)]
    is_union = get_origin(annotation) in (Union, types.UnionType)
    return (is_union and len(arguments) > 1) or any(_has_branches(argument) for argument in arguments)
