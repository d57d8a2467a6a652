"""One training step as ours and as TRL's GRPOTrainer do it: GSPO's loss, one optimiser step per batch, fp32.

Both learn from the same token ids and rewards and report at least loss, gradient norm, entropy and clipping.
"""

import importlib
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from peers.trainer_cases import Case, Data

if TYPE_CHECKING:
    from guerdon_trainer.model import Policy

OURS, TRL, TRL_KEEPS = "guerdon", "TRL", "TRL, nothing computed again"
_LR, _CLIP, _EPS = 1e-6, (3e-4, 4e-4), 1e-4


@dataclass(frozen=True)
class Step:
    """The second step of a fresh process; `extra_mb` is the peak of both beyond what was held with the model loaded."""

    cpu_s: float
    wall_s: float
    extra_mb: float
    grad_norm: float
    entropy: float


def measure(side: str, folder: Path, case: Case, core: int) -> Step:
    """Run two steps in this process, on one core, and measure the second."""
    os.sched_setaffinity(0, {core % (os.cpu_count() or 1)})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    run = _ours if side == OURS else partial(_trl, checkpointing=side == TRL)
    return run(folder, tokenizer, case)


class _Clock:
    """CPU and wall time between `start` and `stop`, and the peak of memory since it was made."""

    def __init__(self) -> None:
        self._held_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._cpu = self._wall = self._cpu_s = self._wall_s = 0.0

    def start(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self) -> None:
        self._cpu_s, self._wall_s = time.process_time() - self._cpu, time.perf_counter() - self._wall

    def step(self, grad_norm: float, entropy: float) -> Step:
        extra_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._held_kb
        return Step(self._cpu_s, self._wall_s, extra_kb / 1024, grad_norm, entropy)


def _ours(folder: Path, tokenizer: PreTrainedTokenizerBase, case: Case) -> Step:
    from guerdon_trainer.config import RunConfig
    from guerdon_trainer.model import load_policy
    from guerdon_trainer.objective import advantages_of
    from guerdon_trainer.step import make_learner, optimise

    config = RunConfig.model_validate(
        {
            "name": "benchmark",
            "policy": {"kind": "folder", "path": str(folder)},
            "data": {"source": "arithmetic"},
            "eval_data": {"source": "arithmetic"},
            "rewards": [{"service": "math"}],
            "advantage": {"name": "grpo", "eps": _EPS},
            "loss": {"name": "gspo", "clip_low": _CLIP[0], "clip_high": _CLIP[1]},
            "optimizer": {"lr": _LR},
        }
    )
    model = load_policy(folder, torch.device("cpu"))
    initial = load_policy(folder, torch.device("cpu")) if case.initial_kl else None
    data = case.data(tokenizer)
    sample, hand_over = _engine(folder, case, data, tokenizer) if case.generate else (lambda: data, None)
    clock = _Clock()
    learner = make_learner(model, initial, config.optimizer)
    metrics: dict[str, float] = {}
    for step in range(2):
        clock.start()
        batch = _batch(sample())
        metrics = optimise(learner, batch, advantages_of(config, batch), config, step)
        if hand_over is not None:
            hand_over(learner.policy, step)
        clock.stop()
    return clock.step(metrics["grad_norm"], metrics["entropy"])


def _batch(data: Data) -> Any:
    from guerdon.types import Rollout
    from guerdon_trainer.batch import make_batch
    from guerdon_trainer.groups import Group, Response
    from guerdon_trainer.questions import Question

    def response(number: int, ids: list[int], reward: float) -> Response:
        rollout = Rollout(
            response="", token_ids=ids, logprobs=[0.0] * len(ids), finish_reason="length", model_version=0
        )
        return Response(id=str(number), rollout=rollout, results={}, outcome=reward, reward=reward)

    groups = [
        Group(
            number,
            Question(id=f"q{number}", prompt="", references=[], metadata=None, code=None),
            prompt,
            [response(i, ids, reward) for i, (ids, reward) in enumerate(zip(group, rewards, strict=True))],
        )
        for number, ((prompt, group), rewards) in enumerate(zip(data.groups, data.rewards, strict=True))
    ]
    return make_batch(groups, None)


def _engine(
    folder: Path, case: Case, data: Data, tokenizer: PreTrainedTokenizerBase
) -> tuple[Callable[[], Data], Callable[["Policy", int], None]]:
    """The rollout service's engine: what samples, and what hands it new weights as a run does."""
    from guerdon_services.rollout.engine import Row
    from guerdon_services.rollout.engines.transformers import TransformersEngine
    from guerdon_services.rollout.settings import RolloutSettings
    from guerdon_trainer.weights import publish_policy

    versions = folder / "versions"
    engine = TransformersEngine(RolloutSettings(model=folder, weights_dir=versions))
    rows = [
        Row(tuple(prompt), case.longest, 1.0, 1.0, 0, (), number * case.group_size + i)
        for number, (prompt, group) in enumerate(data.groups)
        for i in range(len(group))
    ]

    def sample() -> Data:
        sampled = [one.token_ids for one in engine.generate(rows)]
        assert {len(ids) for ids in sampled} == {case.longest}, "an end token: the sides did not do the same"
        size = case.group_size
        return Data(
            [(prompt, sampled[i * size : (i + 1) * size]) for i, (prompt, _) in enumerate(data.groups)],
            data.rewards,
        )

    def hand_over(policy: "Policy", version: int) -> None:
        publish_policy(policy, tokenizer, versions, version)
        engine.refresh()

    return sample, hand_over


def _trl(folder: Path, tokenizer: PreTrainedTokenizerBase, case: Case, *, checkpointing: bool) -> Step:
    from datasets import Dataset
    from transformers import TrainerCallback

    trl: Any = importlib.import_module("trl")
    data = case.data(tokenizer)
    completions = [ids for _, group in data.groups for ids in group]
    rewards = [reward for group in data.rewards for reward in group]
    clocks: list[_Clock] = []

    class Watch(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clocks[0].start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clocks[0].stop()

    def given(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        prompt_ids = [prompt for prompt, group in data.groups for _ in group]
        return {
            "prompt_ids": prompt_ids,
            "completion_ids": completions,
            "logprobs": [[0.0] * len(ids) for ids in completions],
        }

    trainer = trl.GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=lambda completions, **_: rewards,
        args=trl.GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=len(completions),
            num_generations=case.group_size,
            max_completion_length=case.longest,
            max_steps=2,
            learning_rate=_LR,
            lr_scheduler_type="constant",
            loss_type="grpo",
            importance_sampling_level="sequence",
            epsilon=_CLIP[0],
            epsilon_high=_CLIP[1],
            beta=1e-9 if case.initial_kl else 0.0,
            gradient_checkpointing=checkpointing,
            use_cpu=True,
            bf16=False,
            shuffle_dataset=False,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            generation_kwargs={"min_new_tokens": case.longest},
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": tokenizer.decode(prompt)} for prompt, _ in data.groups] * 2
        ),
        processing_class=tokenizer,
        rollout_func=None if case.generate else given,
        callbacks=[Watch()],
    )
    clocks.append(_Clock())
    trainer.train()
    rows = [row for row in trainer.state.log_history if "grad_norm" in row]
    tokens = sum(len(group) * len(prompt) + sum(map(len, group)) for prompt, group in data.groups)
    assert rows[0]["num_tokens"] == tokens, (
        "TRL tokenised the prompts otherwise: the sides did not do the same"
    )
    return clocks[0].step(rows[-1]["grad_norm"], rows[-1]["entropy"])
