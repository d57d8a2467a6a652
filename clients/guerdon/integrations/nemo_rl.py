"""NeMo RL: an environment of one turn, a Ray actor, whose rewards come from a service.

    ACTOR_ENVIRONMENT_REGISTRY["guerdon.integrations.nemo_rl.Environment"] = PY_EXECUTABLES.SYSTEM
    register_env("guerdon", "guerdon.integrations.nemo_rl.Environment")

Settings come from the environment's configuration (`url`, `service`, `options`, `rewards`, `timeout_s`), else from
GUERDON_URL and its like. The right answer is the metadata's `ground_truth`. NeMo RL has no way to say "no reward": a
failure is waited out for `timeout_s` seconds and then raised, which ends the run.

Written against NeMo RL of August 2026, and imports it, Ray and torch.
"""

# The peer is not among the development tools: its types are unknown.
# pyright: basic, reportMissingImports=false

from collections.abc import Mapping, Sequence
from typing import Any

import ray
import torch
from nemo_rl.environments.interfaces import EnvironmentInterface, EnvironmentReturn

from guerdon.columns import labelled
from guerdon.errors import value_of
from guerdon.integrations.target import target_in
from guerdon.texts import ended_text_of, prompt_of
from guerdon.types import Sample

#: A restart of the service should not end the run.
_TIMEOUT_S = 600.0


# A failure that was waited out is not to be waited out again: Ray repeats no step.
@ray.remote(max_restarts=-1, max_task_retries=0)
class Environment(EnvironmentInterface):
    """Scores the assistant's text of every conversation, then ends it."""

    def __init__(self, cfg: Mapping[str, Any]) -> None:
        self._target = target_in(cfg, default_s=_TIMEOUT_S)

    def step(
        self, message_log_batch: Sequence[Sequence[Mapping[str, Any]]], metadata: Sequence[Mapping[str, Any]]
    ) -> EnvironmentReturn:
        """The rewards of a batch, float32 in the order of the conversations.

        Raises:
            GuerdonError: a conversation has no reward.
        """
        samples = [
            sample_of(log, row.get("ground_truth"))
            for log, row in zip(message_log_batch, metadata, strict=True)
        ]
        results = self._target.results_now(samples)
        rewards_B = torch.tensor([value_of(result) for result in results], dtype=torch.float32)
        return EnvironmentReturn(
            observations=[{"role": "environment", "content": result.reason} for result in results],
            metadata=list(metadata),
            next_stop_strings=[None] * len(samples),
            rewards=rewards_B,
            terminateds=torch.ones_like(rewards_B),
            answers=[None] * len(samples),
        )

    def global_post_process_and_metrics(self, batch: Any) -> tuple[Any, dict[str, float]]:
        """The batch as it is, and its mean reward."""
        return batch, {"reward": float(batch["rewards"].float().mean())}


def sample_of(log: Sequence[Mapping[str, Any]], ground_truth: Any) -> Sample:
    """A conversation as a sample: the prompt is what comes before the assistant's first turn."""
    roles = [turn["role"] for turn in log]
    first = roles.index("assistant") if "assistant" in roles else len(log)
    return labelled(prompt_of(log[:first]), ended_text_of(log), ground_truth)
