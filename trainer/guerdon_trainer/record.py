"""Writes what happened: JSON lines, TensorBoard, and the live view."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from torch.utils.tensorboard import SummaryWriter

from guerdon_trainer.checkpoint import RunFolder, cut_after
from guerdon_trainer.evaluate import Evaluation
from guerdon_trainer.live import LiveView
from guerdon_trainer.rollouts import Group, ProcessRewards

#: Responses per recorded group, and groups per step.
_RESPONSES_KEPT = 4
_GROUPS_KEPT = 1


class Recorder:
    """Opened at a step, it first drops what later steps of an earlier attempt had written."""

    def __init__(self, folder: RunFolder, step: int, view: LiveView) -> None:
        self._folder = folder
        self._view = view
        for path in (folder.metrics, folder.evaluations, folder.rollouts):
            cut_after(path, step)
        self._writer = SummaryWriter(str(folder.tensorboard), purge_step=step + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._writer.close()

    def step(self, row: dict[str, Any]) -> None:
        """One row of metrics; nested values go to the JSON line only."""
        _append(self._folder.metrics, row)
        for name, value in row.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(_tag(name), value, row["step"])
        self._writer.flush()
        self._view.step(row)

    def evaluation(self, evaluation: Evaluation, groups: Sequence[Group]) -> None:
        """A held-out evaluation with some of its responses."""
        _append(self._folder.evaluations, asdict(evaluation))
        if evaluation.accuracy is not None:
            self._writer.add_scalar("evaluation/accuracy", evaluation.accuracy, evaluation.step)
        self.rollouts(evaluation.step, groups[:_RESPONSES_KEPT], None, kind="evaluation")
        self._view.evaluation(evaluation)

    def rollouts(
        self, step: int, groups: Sequence[Group], process: ProcessRewards | None, *, kind: str = "training"
    ) -> None:
        """Some responses of a step, for reading."""
        kept = groups if kind == "evaluation" else groups[:_GROUPS_KEPT]
        for group in kept:
            _append(self._folder.rollouts, {"step": step, "kind": kind, **_readable(group, process)})


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Every row of a JSONL file; none when it is not there."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


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
                "results": {
                    name: {"status": result.status, "value": result.value, "reason": result.reason}
                    for name, result in response.results.items()
                },
                "process": None if process is None else process.tokens.get(response.id),
            }
            for response in group.responses[:_RESPONSES_KEPT]
        ],
    }


def _tag(name: str) -> str:
    if name.startswith(("wait_", "seconds", "tokens_per", "optimise_", "publish_")):
        return f"time/{name}"
    return name if "/" in name else f"train/{name}"
