"""What every rule has: typed options, a weight, and a function from sample to number and reason."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from guerdon.types import Sample
from guerdon_services.runtime.scorer import Unscorable
from guerdon_services.workers import CallFailed, Message, NoWorker, WorkerCrashed, WorkerPool, WorkerTimeout


class RuleOptions(BaseModel):
    """Base of the options of one rule; `rule` names it, `weight` multiplies its value in the sum."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    weight: Annotated[float, Field(ge=-1000, le=1000)] = 1.0


OptionsT = TypeVar("OptionsT", bound=RuleOptions, contravariant=True)


@dataclass(frozen=True)
class Outcome:
    """What a rule gives for one sample, before its weight, and a clause that says why."""

    value: float
    reason: str


Rule = Callable[[OptionsT, Sample], Outcome]


class RuleTimeout(Exception):
    """A rule took longer than its time limit; becomes status `timeout`."""


class RuleFailed(Exception):
    """A rule failed in a way that says nothing about the response; becomes status `internal_error`."""


class RuleUnavailable(Exception):
    """A rule cannot run at the moment; becomes status `unavailable`."""


def ask(pool: WorkerPool, request: Message, what: str) -> Outcome:
    """What a worker of the pool replies; `what` names the call in the reason of its failure.

    Raises:
        Unscorable: the worker finds the caller at fault.
        RuleTimeout: the call took longer than the service's limit.
        RuleFailed: it raised, or its worker died.
        RuleUnavailable: no worker became free.
    """
    try:
        reply = pool.run(request)
    except WorkerTimeout as problem:
        raise RuleTimeout(str(problem)) from problem
    except (WorkerCrashed, CallFailed) as problem:
        raise RuleFailed(f"{what} failed: {problem}") from problem
    except NoWorker as problem:
        raise RuleUnavailable(str(problem)) from problem
    if "invalid" in reply:
        raise Unscorable(str(reply["invalid"]))
    return Outcome(float(reply["value"]), str(reply["reason"]))


def response_of(sample: Sample) -> str:
    """The response text.

    Raises:
        Unscorable: there is none.
    """
    if sample.response is None:
        raise Unscorable("response is missing")
    return sample.response


def references_of(sample: Sample) -> list[str]:
    """The references, at least one and none of them blank.

    Raises:
        Unscorable: there is none, or one is blank: a blank answer would equal it.
    """
    if not sample.references:
        raise Unscorable("references is missing: give at least one")
    for index, reference in enumerate(sample.references):
        if not reference.strip():
            raise Unscorable(f"references[{index}] is empty")
    return sample.references
