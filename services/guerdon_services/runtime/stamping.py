"""From what a batch gave to the results a caller sees: id, scorer, versions and times."""

import math
from collections.abc import Sequence
from typing import Any

from guerdon.types import GenerateResult, Result, Sample, Status, UpdateResponse, failed
from guerdon_services.runtime.scorer import AnyService
from guerdon_services.runtime.submission import Failure, Ran

#: What a stamp may say of a result.
_STAMPED = frozenset({"id", "queue_ms", "exec_ms", "scorer", "scorer_version", "model_version"})
_set = object.__setattr__  # messages are frozen


def results(
    service: AnyService, ids: Sequence[str | None], values: Sequence[Result | Failure], ran: Ran
) -> list[Result]:
    """The results of scored samples; a model version that the scorer set itself stands."""
    stamp = _stamp(service, ran)
    return [_result(value, id, stamp, ran.model_version) for id, value in zip(ids, values, strict=True)]


def generations(
    service: AnyService, ids: Sequence[str | None], values: Sequence[GenerateResult | Failure], ran: Ran
) -> list[GenerateResult]:
    """The results of prompts; their rollouts carry their versions already."""
    stamp = _stamp(service, ran)
    return [
        (
            GenerateResult(status=value.status, reason=value.reason) if isinstance(value, Failure) else value
        ).model_copy(update={**stamp, "id": id})
        for id, value in zip(ids, values, strict=True)
    ]


def update(
    service: AnyService, request_id: str, samples: Sequence[Sample], value: UpdateResponse | Failure, ran: Ran
) -> UpdateResponse:
    """The response to one update; the results in it get the ids of the samples they belong to."""
    if isinstance(value, Failure):
        value = UpdateResponse(request_id=request_id, status=value.status, reason=value.reason)
    results = value.results
    if len(results) == len(samples):
        name = {"scorer": service.name, "scorer_version": service.version}
        results = [
            _checked(one).model_copy(update={**name, "id": sample.id})
            for one, sample in zip(results, samples, strict=True)
        ]
    return value.model_copy(update={**_stamp(service, ran), "request_id": request_id, "results": results})


def _result(
    value: Result | Failure, id: str | None, stamp: dict[str, Any], model_version: int | None
) -> Result:
    """As `model_copy(update=stamp)`, for less: results come by the thousand."""
    value = failed(value.status, value.reason) if isinstance(value, Failure) else _checked(value)
    fields = value.__dict__ | stamp
    fields["id"] = id
    if fields["status"] is Status.OK and fields["model_version"] is None:
        fields["model_version"] = model_version
    copy = object.__new__(type(value))
    _set(copy, "__dict__", fields)
    _set(copy, "__pydantic_fields_set__", value.__pydantic_fields_set__ | _STAMPED)
    _set(copy, "__pydantic_extra__", None)
    _set(copy, "__pydantic_private__", None)
    return copy


def _checked(result: Result) -> Result:
    """The result, unless its value and status contradict each other: pydantic does not check a `model_copy`."""
    fields = result.__dict__  # at a fraction of what an attribute of a model costs
    value, status = fields["value"], fields["status"]
    has_value = value is not None and math.isfinite(value)
    if has_value if status is Status.OK else value is None:
        return result
    return failed(Status.INTERNAL_ERROR, f"the service gave the value {value} with status {status}")


def _stamp(service: AnyService, ran: Ran) -> dict[str, Any]:
    return {
        "queue_ms": round(ran.queue_ms, 3),
        "exec_ms": round(ran.exec_ms, 3),
        "scorer": service.name,
        "scorer_version": service.version,
    }
