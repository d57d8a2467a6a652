"""verl: the custom reward function, asynchronous.

    reward.custom_reward_function.path=pkg://guerdon.integrations.verl
    +reward.custom_reward_function.reward_kwargs.url=http://127.0.0.1:8101

verl calls it for one response at a time, many at once; they share requests. It has no way to say "no reward": an
exception ends the run, so that a service's failure is waited out for `timeout_s` seconds first, 600 by default. With
`fallback`, a number that you choose stands in for a reward that is missing, and the metric `reward_valid` counts it.
"""

from collections.abc import Mapping
from typing import Any, cast

from guerdon.columns import labelled
from guerdon.errors import value_of
from guerdon.integrations.target import Target, target_in
from guerdon.texts import prompt_of, text_of
from guerdon.types import Result, Sample

#: A restart of the service should not end the run.
TIMEOUT_S = 600.0


async def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    fallback: float | None = None,
    **settings: Any,
) -> dict[str, float]:
    """verl's reward of one response; every response has the same keys, as verl wants.

    `settings` are `url`, `service`, `options`, `rewards` and `timeout_s`, and what verl itself passes.

    Raises:
        GuerdonError: there is no reward, and no `fallback` was stated.
    """
    [result] = await _target(settings).results([sample_of(solution_str, ground_truth, extra_info)])
    return scored(result, fallback)


def compute_score_blocking(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    *,
    fallback: float | None = None,
    **settings: Any,
) -> dict[str, float]:
    """As `compute_score`, for verl's `remote` reward manager, which awaits nothing."""
    [result] = _target(settings).results_now([sample_of(solution_str, ground_truth, extra_info)])
    return scored(result, fallback)


def _target(settings: Mapping[str, Any]) -> Target:
    return target_in(settings, default_s=TIMEOUT_S, beside=("fallback",))


def sample_of(solution: str, ground_truth: Any, extra_info: Mapping[str, Any] | None) -> Sample:
    """A row of verl as a sample: the ground truth is an answer, or tests where it has their shape."""
    info = extra_info or {}
    metadata = info.get("metadata")
    prompts = (prompt_of(info.get(name)) for name in ("prompt", "question", "problem"))
    return labelled(
        next(filter(None, prompts), None),
        text_of(solution),
        ground_truth,
        cast(Mapping[str, Any], metadata) if isinstance(metadata, Mapping) else None,
    )


def scored(result: Result, fallback: float | None) -> dict[str, float]:
    """verl's dict: `score` is the reward, the rest are metrics; raises as `compute_score`."""
    if result.value is None and fallback is not None:
        return {"score": fallback, "acc": fallback, "reward_valid": 0.0}
    value = value_of(result)
    return {"score": value, "acc": value, "reward_valid": 1.0}
