"""The row of numbers that describes one step."""

from collections.abc import Sequence
from typing import Any

import torch

from guerdon_trainer.batch import Batch
from guerdon_trainer.checkpoint import RunState
from guerdon_trainer.collect import Collected
from guerdon_trainer.rollouts import ProcessRewards


def step_row(
    state: RunState,
    collected: Collected,
    batch: Batch,
    process: ProcessRewards | None,
    learned: dict[str, float],
    times: dict[str, float],
    failures: dict[str, dict[str, int]],
) -> dict[str, Any]:
    """Reward and accuracy are over all responses seen, the filtered ones included; the rest over the batch.

    `failures` are final ones by service and status since the run began.
    """
    seen = [response for group in collected.seen for response in group.responses]
    lengths = [len(response.rollout.token_ids) for response in seen]
    return {
        "step": state.step,
        "reward": _mean([response.reward for response in seen if response.reward is not None]),
        "accuracy": _mean([response.outcome for response in seen if response.outcome is not None]),
        "batch_accuracy": _mean(batch.outcomes_B[batch.valid_B].tolist()),
        **learned,
        "response_length": _mean(lengths),
        "truncated": _mean([response.rollout.finish_reason == "length" for response in seen]),
        "process_reward": None if process is None else _process_mean(batch),
        "groups_seen": len(collected.seen),
        "groups_filtered": len(collected.seen) - len(collected.kept),
        "unrewarded": sum(response.reward is None for response in seen),
        "policy_age": max(group.policy_age for group in collected.seen),
        "policy_version": state.policy_version,
        "prm_version": state.prm_version,
        "tokens_per_s": sum(lengths) / times["seconds"],
        **times,
        **({} if process is None else {f"prm/{name}": value for name, value in process.metrics.items()}),
        "failures": {service: counts for service, counts in failures.items() if counts},
    }


def _process_mean(batch: Batch) -> float | None:
    learned_BT = batch.learned_BT
    return _mean(torch.where(learned_BT, batch.token_rewards_BT, 0).sum(-1)[batch.valid_B].tolist())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
