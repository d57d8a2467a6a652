"""verl: the custom reward function, asynchronous.

    reward.custom_reward_function.path=pkg://guerdon.integrations.verl
    +reward.custom_reward_function.reward_kwargs.url=http://127.0.0.1:8101

verl calls it for one response at a time, many at once; they share requests. It has no way to say "no reward": an
exception ends the run, so that a service's failure is waited out for `timeout_s` seconds first, 600 by default. With
`fallback`, a number that you choose stands in for a reward that is missing, and the metric `reward_valid` counts it.
"""

from collections.abc import Mapping
from typing import Any

from guerdon.columns import plain, references_of, task_in
from guerdon.integrations.target import Target, raise_failure, target
from guerdon.texts import prompt_of
from guerdon.types import Result, Sample

#: A restart of the service should not end the run.
_TIMEOUT_S = 600.0


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    service: str | None = None,
    options: Mapping[str, Any] | None = None,
    rewards: str | None = None,
    timeout_s: float | None = None,
    fallback: float | None = None,
    **_: Any,
) -> dict[str, float]:
    """verl's reward of one response; every response has the same keys, as verl wants.

    Raises:
        GuerdonError: there is no reward, and no `fallback` was stated.
    """
    asked = verl_target(url, service, options, rewards, timeout_s)
    [result] = await asked.results([sample_of(solution_str, ground_truth, extra_info)])
    return scored(result, fallback)


def compute_score_blocking(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    url: str | None = None,
    service: str | None = None,
    options: Mapping[str, Any] | None = None,
    rewards: str | None = None,
    timeout_s: float | None = None,
    fallback: float | None = None,
    **_: Any,
) -> dict[str, float]:
    """As `compute_score`, for verl's `remote` reward manager, which awaits nothing."""
    asked = verl_target(url, service, options, rewards, timeout_s)
    [result] = asked.results_now([sample_of(solution_str, ground_truth, extra_info)])
    return scored(result, fallback)


def verl_target(
    url: str | None,
    service: str | None,
    options: Mapping[str, Any] | None,
    rewards: str | None,
    timeout_s: float | None,
) -> Target:
    """The target that verl's `reward_kwargs` name."""
    # OmegaConf's containers look like mappings, but json does not know them.
    given = None if options is None else plain(options)
    return target(
        url, service=service, options=given, rewards=rewards, timeout_s=timeout_s, default_s=_TIMEOUT_S
    )


def sample_of(solution: str, ground_truth: Any, extra_info: Mapping[str, Any] | None) -> Sample:
    """A row of verl as a sample: the ground truth is an answer, or tests where it has their shape."""
    info = extra_info or {}
    tests = task_in(ground_truth)
    metadata = info.get("metadata")
    return Sample(
        prompt=prompt_of(info.get("prompt") or info.get("question") or info.get("problem")),
        response=solution,
        references=[] if tests else references_of(ground_truth),
        code=tests,
        metadata=plain(metadata) if isinstance(metadata, Mapping) else None,
    )


def scored(result: Result, fallback: float | None) -> dict[str, float]:
    """verl's dict: `score` is the reward, the rest are metrics; raises as `compute_score`."""
    if result.value is not None:
        return {"score": result.value, "acc": result.value, "reward_valid": 1.0}
    if fallback is None:
        raise_failure(result)
    return {"score": fallback, "acc": fallback, "reward_valid": 0.0}
