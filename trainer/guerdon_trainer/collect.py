"""Fills a batch: which prompts are asked in a step, and which groups are worth training on."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from guerdon.types import Sampling
from guerdon_trainer.advantages import keep_by_accuracy
from guerdon_trainer.config import AccuracyFilter, RunConfig, SpreadFilter
from guerdon_trainer.live import LiveView
from guerdon_trainer.questions import PromptStream, sampling_seed
from guerdon_trainer.rollouts import Ask, Group, Rollouts


@dataclass(frozen=True)
class Collected:
    """The groups of one step in the order of their prompts: those kept for the batch, and all that were seen."""

    kept: list[Group]
    seen: list[Group]

    @property
    def next_position(self) -> int:
        """Where the next step goes on in the prompt stream."""
        return self.seen[-1].position + 1


def collect(
    rollouts: Rollouts,
    prompts: PromptStream,
    config: RunConfig,
    *,
    step: int,
    position: int,
    policy_version: int,
    view: LiveView,
) -> Collected:
    """Stream groups from the services until `prompts_per_step` of them pass the filter."""
    seen: list[Group] = []
    kept: list[Group] = []

    def keep(group: Group) -> bool:
        seen.append(group)
        return is_kept(group, config.filter)

    asks = _asks(prompts, config, step, position, policy_version)
    wanted = config.rollout.prompts_per_step
    for group in rollouts.groups(asks, wanted, keep):
        kept.append(group)
        view.progress(f"step {step}: {len(kept)} of {wanted} groups, {len(seen) - len(kept)} filtered out")
    return Collected(_in_order(kept), _in_order(seen))


def is_kept(group: Group, filter: AccuracyFilter | SpreadFilter | None) -> bool:
    """Whether a group has something to teach; one without two rewarded responses never has."""
    rewarded = [response for response in group.responses if response.reward is not None]
    if len(rewarded) < 2:
        return False
    if isinstance(filter, SpreadFilter):
        return statistics.pstdev(response.reward or 0.0 for response in rewarded) > filter.min_std
    if isinstance(filter, AccuracyFilter):
        outcomes_B = torch.tensor([response.outcome for response in rewarded])
        one_group_B = torch.zeros(len(rewarded), dtype=torch.int64)
        valid_B = torch.ones(len(rewarded), dtype=torch.bool)
        return bool(
            keep_by_accuracy(outcomes_B, one_group_B, valid_B, lower=filter.lower, upper=filter.upper)
        )
    return True


def _asks(
    prompts: PromptStream, config: RunConfig, step: int, position: int, policy_version: int
) -> Iterator[Ask]:
    rollout = config.rollout
    for place, question in prompts.start_at(position):
        sampling = Sampling(
            n=rollout.group_size,
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
            stop=rollout.stop,
            seed=sampling_seed(config.seed, step, question.id, place),
        )
        yield Ask(place, question, sampling, policy_version)


def _in_order(groups: list[Group]) -> list[Group]:
    return sorted(groups, key=lambda group: group.position)
