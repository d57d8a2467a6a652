"""slime: the custom reward function, for single samples and for groups.

    --custom-rm-path guerdon.integrations.slime.reward --group-rm

Settings come from GUERDON_URL and its like. With `--group-rm`, a sample whose reward is missing is marked removed
(`remove_sample`: no loss), and its number is the mean of its group's others, so that their baseline stays what it is
without it. A single sample has no such number: there the failure is raised, after it was waited out.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, cast

from guerdon.columns import labelled
from guerdon.errors import value_of
from guerdon.integrations.target import target
from guerdon.texts import ended_text_of, prompt_of
from guerdon.types import Result, Sample

#: A restart of the service should not end the run.
_TIMEOUT_S = 600.0


async def reward(args: Any, sample: Any, **_: Any) -> Any:
    """The reward of one of slime's samples, or the list of rewards of a group of them.

    With `--reward-key`, each is a dict that holds its number under that key.

    Raises:
        GuerdonError: a single sample, or every sample of a group, has no reward.
    """
    group = isinstance(sample, Sequence)
    samples = list(cast(Sequence[Any], sample)) if group else [sample]
    asked = target(default_s=_TIMEOUT_S)
    results = await asked.results([sample_of(one) for one in samples])
    key = getattr(args, "reward_key", None)
    if not group:
        return _shaped(value_of(results[0]), results[0], key)
    values = [result.value for result in results if result.value is not None]
    if not results:
        return []
    mean = fmean(values) if values else value_of(results[0])  # which raises: nothing has a value
    return [_group_reward(one, result, mean, key) for one, result in zip(samples, results, strict=True)]


def sample_of(sample: Any) -> Sample:
    """One of slime's samples: the label is an answer, or tests where it has their shape."""
    return labelled(prompt_of(sample.prompt), ended_text_of(sample.response), sample.label, sample.metadata)


def _group_reward(sample: Any, result: Result, mean: float, key: str | None) -> Any:
    if result.value is not None:
        return _shaped(result.value, result, key)
    sample.remove_sample = True
    sample.metadata = {**(sample.metadata or {}), "guerdon": f"{result.status}: {result.reason}"}
    return _shaped(mean, result, key)


def _shaped(value: float, result: Result, key: str | None) -> float | dict[str, Any]:
    return {key: value, "status": str(result.status)} if key else value
