"""Which groups are worth training on: the recipe's filters, with what they remember from step to step."""

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from guerdon_trainer.advantages import StdThreshold, keep_by_accuracy, keep_by_length
from guerdon_trainer.config import (
    AccuracyFilter,
    RunConfig,
    SpreadFilter,
    StdThresholdFilter,
    TruncationFilter,
)
from guerdon_trainer.groups import Group, Response


class GroupFilter:
    """Keeps the groups that pass every filter of the recipe.

    Never one without two rewarded responses, nor one that gives no gradient: of nothing but responses that are empty,
    or truncated where the loss masks those.
    """

    def __init__(self, config: RunConfig) -> None:
        self._filters = config.filter
        self._max_new_tokens = config.rollout.max_new_tokens
        self._mask_truncated = config.loss.mask_truncated
        self._thresholds = [
            StdThreshold(one.beta, one.ratio, one.start_step, one.filter_step)
            for one in self._filters
            if isinstance(one, StdThresholdFilter)
        ]

    def keep(self, group: Group) -> bool:
        """Whether a group has something to teach."""
        rewarded = [response for response in group.responses if response.reward is not None]
        if len(rewarded) < 2 or not any(self._is_learned(response) for response in rewarded):
            return False
        return all(self._passes(one, group, rewarded) for one in self._filters) and all(
            threshold.keep(_std(group)) for threshold in self._thresholds
        )

    def end_step(self, seen: Sequence[Group]) -> None:
        """Take note of all groups that a step generated, the dropped ones included."""
        for threshold in self._thresholds:
            threshold.end_step([_std(group) for group in seen])

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint has to keep, as JSON."""
        return {
            "thresholds": [
                {"steps": one.steps, "means": list(one.means), "average": one.average}
                for one in self._thresholds
            ]
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave; nothing of it leaves the filter as new.

        Raises:
            ValueError: it comes from other filters than the recipe has now.
        """
        kept: list[dict[str, Any]] = state.get("thresholds", [])
        if state and len(kept) != len(self._thresholds):
            raise ValueError(
                f"filter: the checkpoint has {len(kept)} moving thresholds, the recipe {len(self._thresholds)}"
            )
        for threshold, one in zip(self._thresholds, kept, strict=False):
            threshold.steps, threshold.average = one["steps"], one["average"]
            threshold.means = list(one["means"])

    def _is_learned(self, response: Response) -> bool:
        return bool(response.rollout.token_ids) and not (self._mask_truncated and response.truncated)

    def _passes(self, one: object, group: Group, rewarded: Sequence[Response]) -> bool:
        match one:
            case AccuracyFilter():
                return _accurate(one, rewarded)
            case SpreadFilter():
                return statistics.pstdev(response.reward or 0.0 for response in rewarded) > one.min_std
            case TruncationFilter():
                return not _truncated(one, group, self._max_new_tokens)
            case _:
                return True


def _accurate(filter: AccuracyFilter, rewarded: Sequence[Response]) -> bool:
    outcomes_B = torch.tensor([response.outcome for response in rewarded])
    one_group_B = torch.zeros(len(rewarded), dtype=torch.int64)
    valid_B = torch.ones(len(rewarded), dtype=torch.bool)
    return bool(keep_by_accuracy(outcomes_B, one_group_B, valid_B, lower=filter.lower, upper=filter.upper))


def _truncated(filter: TruncationFilter, group: Group, max_new_tokens: int) -> bool:
    if filter.by == "finish_reason":
        return any(response.truncated for response in group.responses)
    lengths_B = torch.tensor([len(response.rollout.token_ids) for response in group.responses])
    one_group_B = torch.zeros(len(lengths_B), dtype=torch.int64)
    return not keep_by_length(lengths_B, one_group_B, limit=max_new_tokens - filter.margin)


def _std(group: Group) -> float:
    """The unbiased standard deviation of a group's rewards; no number with fewer than two."""
    rewards = [response.reward for response in group.responses if response.reward is not None]
    return statistics.stdev(rewards) if len(rewards) > 1 else float("nan")
