"""verl: a reward manager whose rewards are per token, from a process reward service.

    reward.reward_manager.source=importlib
    reward.reward_manager.module.path=pkg://guerdon.integrations.verl_process
    reward.reward_manager.name=ProcessRewardManager

The service scores the token ids that verl sampled. verl places the rewards on their tokens where it assembles them
after the rollout (`RewardLoopManager.compute_rm_score`); where its agent loop takes each reward as it comes, verl
0.9.1 keeps one number per response, which is then their sum.

Written against verl 0.9.1. Imports verl and torch.
"""

# The peer is not among the development tools: its types are unknown.
# pyright: basic, reportMissingImports=false

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from verl.experimental.reward_loop.reward_manager.base import (
    RewardManagerBase,
)

from guerdon.errors import InternalError, value_of
from guerdon.integrations.target import target_in
from guerdon.integrations.verl import TIMEOUT_S
from guerdon.types import Result, Sample

if TYPE_CHECKING:
    from verl import DataProto


class TokenScore(float):
    """The sum of a response's token rewards, and the rewards themselves in `tokens`."""

    tokens: list[float]

    def __new__(cls, tokens: Sequence[float]) -> "TokenScore":
        """The score of these tokens."""
        score = super().__new__(cls, sum(tokens))
        score.tokens = list(tokens)
        return score

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenScore, (self.tokens,)


class ProcessRewardManager(RewardManagerBase):
    """Token rewards of responses; a response without any ends the run, as every failure does in verl."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        kwargs: Mapping[str, Any] = config.reward.get("reward_kwargs") or {}
        self._target = target_in(kwargs, default_s=TIMEOUT_S)

    async def run_single(self, data: "DataProto") -> dict[str, Any]:
        """The reward of the last sequence of `data`, as verl asks for it.

        Raises:
            GuerdonError: the service gave no token rewards.
        """
        item = data[-1:][0]
        prompt, response = _sampled(item)
        outcome = _outcome(item.non_tensor_batch)
        sample = Sample(prompt_token_ids=prompt, response_token_ids=response, outcome=outcome)
        [result] = await self._target.results([sample])
        tokens = _tokens(result, response)
        return {
            "reward_score": TokenScore(tokens),
            "reward_extra_info": {"process_reward": sum(tokens), "reward_valid": 1.0},
        }

    @classmethod
    def assemble_rm_scores(cls, data: "DataProto", scores: Sequence[float]) -> torch.Tensor:
        """Rewards on their tokens, zero on padding: (batch, response tokens), float32."""
        rewards_BT = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        for row, score in zip(rewards_BT, scores, strict=True):
            tokens = score.tokens if isinstance(score, TokenScore) else [float(score)]
            row[: len(tokens)] = torch.tensor(tokens)
        return rewards_BT


def _sampled(item: Any) -> tuple[list[int], list[int]]:
    """Token ids of the prompt, padded on the left, and of the response, padded on the right."""
    prompt, response = item.batch["prompts"], item.batch["responses"]
    mask = item.batch["attention_mask"]
    kept = int(mask[: len(prompt)].sum())
    length = int(mask[len(prompt) :].sum())
    return prompt[len(prompt) - kept :].tolist(), response[:length].tolist()


def _outcome(columns: Mapping[str, Any]) -> float | None:
    outcome = (columns.get("reward_scores") or {}).get("outcome")
    return None if outcome is None else float(outcome)


def _tokens(result: Result, response: list[int]) -> list[float]:
    value_of(result)  # raises where there is none
    if result.token_ids != response or len(result.token_rewards) != len(response):
        raise InternalError("the token rewards belong to other tokens than were sampled")
    return result.token_rewards
