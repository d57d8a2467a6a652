"""From a batcher's outcome to the result a caller sees: id, scorer, versions and times."""

import math
from collections.abc import Sequence
from typing import Any

from guerdon.types import GenerateResult, Result, Sample, Status, UpdateResponse, failed
from guerdon_services.runtime.scorer import AnyService
from guerdon_services.runtime.submission import Failure, Outcome


def result(service: AnyService, id: str | None, outcome: Outcome[Result]) -> Result:
    """The result of one scored sample; a model version that the scorer set itself stands."""
    value = outcome.value
    if isinstance(value, Failure):
        return failed(value.status, value.reason).model_copy(update=_stamp(service, outcome, id=id))
    value, stamp = _checked(value), _stamp(service, outcome, id=id)
    if value.status is Status.OK and value.model_version is None:
        stamp["model_version"] = outcome.model_version
    return value.model_copy(update=stamp)


def generation(service: AnyService, id: str | None, outcome: Outcome[GenerateResult]) -> GenerateResult:
    """The result of one prompt; its rollouts carry their versions already."""
    value = outcome.value
    if isinstance(value, Failure):
        value = GenerateResult(status=value.status, reason=value.reason)
    return value.model_copy(update=_stamp(service, outcome, id=id))


def update(
    service: AnyService, request_id: str, samples: Sequence[Sample], outcome: Outcome[UpdateResponse]
) -> UpdateResponse:
    """The response to one update; the results in it get the ids of the samples they belong to."""
    value = outcome.value
    if isinstance(value, Failure):
        value = UpdateResponse(request_id=request_id, status=value.status, reason=value.reason)
    results = value.results
    if len(results) == len(samples):
        name = {"scorer": service.name, "scorer_version": service.version}
        results = [
            _checked(one).model_copy(update={**name, "id": sample.id})
            for one, sample in zip(results, samples, strict=True)
        ]
    stamp = _stamp(service, outcome, request_id=request_id, results=results)
    return value.model_copy(update=stamp)


def _checked(result: Result) -> Result:
    """The result, unless its value and status contradict each other: pydantic does not check a `model_copy`."""
    value = result.value
    has_value = value is not None and math.isfinite(value)
    if has_value if result.status is Status.OK else value is None:
        return result
    return failed(Status.INTERNAL_ERROR, f"the service gave the value {value} with status {result.status}")


def _stamp(service: AnyService, outcome: Outcome[Any], **others: Any) -> dict[str, Any]:
    return {
        **others,
        "queue_ms": round(outcome.queue_ms, 3),
        "exec_ms": round(outcome.exec_ms, 3),
        "scorer": service.name,
        "scorer_version": service.version,
    }
