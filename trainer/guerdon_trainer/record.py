"""Writes what happened: JSON lines, the recipe's trackers, and the live view."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch

from guerdon_trainer.batch import Batch
from guerdon_trainer.checkpoint import RunState
from guerdon_trainer.collect import Collected
from guerdon_trainer.evaluate import Evaluation
from guerdon_trainer.groups import Group, ProcessRewards
from guerdon_trainer.live import LiveView
from guerdon_trainer.run_folder import RunFolder, cut_after
from guerdon_trainer.trackers import Trackers

#: Responses per recorded group, and groups per step.
_RESPONSES_KEPT = 4
_GROUPS_KEPT = 1


class Recorder:
    """First drops what an earlier attempt wrote of steps after `last_step`, that of the checkpoint; all with -1."""

    def __init__(self, folder: RunFolder, last_step: int, view: LiveView, trackers: Trackers) -> None:
        self._folder = folder
        self._view = view
        self._trackers = trackers
        for path in (folder.metrics, folder.evaluations, folder.rollouts):
            cut_after(path, last_step)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._trackers.close()

    def step(self, row: dict[str, Any]) -> None:
        """One row of metrics; nested values go to the JSON line only."""
        _append(self._folder.metrics, row)
        numbers = {
            _tag(name): value
            for name, value in row.items()
            if isinstance(value, (int, float)) and name != "step"
        }
        self._trackers.numbers(row["step"], numbers)
        self._view.step(row)

    def evaluation(self, evaluation: Evaluation, groups: Sequence[Group]) -> None:
        """A held-out evaluation with some of its responses."""
        _append(self._folder.evaluations, asdict(evaluation))
        numbers = {"evaluation/accuracy": evaluation.accuracy, "evaluation/reward": evaluation.reward}
        numbers |= {f"evaluation/pass_at_{k}": chance.value for k, chance in evaluation.pass_at.items()}
        known = {tag: value for tag, value in numbers.items() if value is not None}
        self._trackers.numbers(evaluation.step, known)
        self.rollouts(evaluation.step, groups[:_RESPONSES_KEPT], None, kind="evaluation")
        self._view.evaluation(evaluation)

    def rollouts(
        self, step: int, groups: Sequence[Group], process: ProcessRewards | None, *, kind: str = "training"
    ) -> None:
        """Some responses of a step, for reading."""
        kept = groups if kind == "evaluation" else groups[:_GROUPS_KEPT]
        rows = [_readable(group, process) for group in kept]
        for row in rows:
            _append(self._folder.rollouts, {"step": step, "kind": kind, **row})
        self._trackers.text(step, f"rollouts/{kind}", "\n\n".join(_text(row) for row in rows))


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
        "batch_accuracy": _mean(batch.outcomes_B[batch.valid_B & ~batch.outcomes_B.isnan()].tolist()),
        **learned,
        "response_length": _mean(lengths),
        "truncated": _mean([response.rollout.finish_reason == "length" for response in seen]),
        "process_reward": None if process is None else _process_mean(batch),
        "groups_seen": len(collected.seen),
        "groups_filtered": len(collected.seen) - len(collected.kept),
        "unrewarded": sum(response.reward is None for response in seen) + _without_process_reward(batch),
        "dropped_stale": collected.dropped_stale,
        "policy_age_mean": _mean(collected.ages),
        "policy_age_max": max(collected.ages),
        "policy_version": state.policy_version,
        "prm_version": state.prm_version,
        "tokens_per_s": sum(lengths) / times["seconds"],
        **times,
        **_wait_fractions(times),
        **({} if process is None else {f"prm/{name}": value for name, value in process.metrics.items()}),
        "failures": {service: counts for service, counts in failures.items() if counts},
    }


def _wait_fractions(times: dict[str, float]) -> dict[str, float]:
    """Which share of the step went by waiting: what sampling and scoring ahead did not hide."""
    rewards_s = times["wait_rewards_s"] + times.get("wait_process_s", 0.0)
    return {
        "wait_rollouts_fraction": times["wait_rollouts_s"] / times["seconds"],
        "wait_rewards_fraction": rewards_s / times["seconds"],
    }


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _readable(group: Group, process: ProcessRewards | None) -> dict[str, Any]:
    prompt = group.question.prompt
    messages = (
        [{"role": "user", "content": prompt}]
        if isinstance(prompt, str)
        else [message.model_dump() for message in prompt]
    )
    return {
        "question": group.question.id,
        "prompt": messages,
        "references": group.question.references,
        "responses": [
            {
                "text": response.rollout.response,
                "finish_reason": response.rollout.finish_reason,
                "tokens": len(response.rollout.token_ids),
                "reward": response.reward,
                "outcome": response.outcome,
                "results": {
                    name: {"status": result.status, "value": result.value, "reason": result.reason}
                    for name, result in response.results.items()
                },
                "process": None if process is None else process.tokens.get(response.id),
            }
            for response in group.responses[:_RESPONSES_KEPT]
        ],
    }


def _text(row: dict[str, Any]) -> str:
    """A recorded group as a person reads it."""
    lines = [f"question {row['question']}, reference {' or '.join(row['references']) or 'none'}"]
    lines += [f"{message['role']}: {message['content']}" for message in row["prompt"]]
    for number, response in enumerate(row["responses"], start=1):
        reward = "no reward" if response["reward"] is None else f"reward {response['reward']:.3f}"
        process = response["process"]
        dense = "" if process is None else f", process reward {sum(process):+.4f}"
        lines += [
            "",
            f"response {number}: {reward}{dense}, {response['tokens']} tokens, {response['finish_reason']}",
        ]
        for name, result in response["results"].items():
            value = result["status"] if result["value"] is None else f"{result['value']:.3f}"
            lines.append(f"  {name}: {value}{' (' + result['reason'] + ')' if result['reason'] else ''}")
        lines.append(response["text"])
    return "\n".join(lines)


def _tag(name: str) -> str:
    if name.startswith(("wait_", "seconds", "tokens_per", "learn_s", "publish_")):
        return f"time/{name}"
    return name if "/" in name else f"train/{name}"


def _without_process_reward(batch: Batch) -> int:
    """Responses that have an outcome reward and yet take no part, as the PRM gave them none."""
    return int((~batch.valid_B & ~batch.rewards_B.isnan()).sum())


def _process_mean(batch: Batch) -> float | None:
    learned_BT = batch.learned_BT
    return _mean(torch.where(learned_BT, batch.token_rewards_BT, 0).sum(-1)[batch.valid_B].tolist())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
