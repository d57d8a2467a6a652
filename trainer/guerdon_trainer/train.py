"""The training loop: rollouts and rewards from services, one step of learning, weights back to services."""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from guerdon_trainer import checkpoint
from guerdon_trainer.batch import Batch, make_batch
from guerdon_trainer.checkpoint import RunState
from guerdon_trainer.collect import Collected, Collector
from guerdon_trainer.config import RunConfig
from guerdon_trainer.data import load_questions
from guerdon_trainer.distributed import local_device, orders, rank, tell
from guerdon_trainer.evaluate import evaluate
from guerdon_trainer.filters import GroupFilter
from guerdon_trainer.groups import ProcessRewards
from guerdon_trainer.live import LiveView
from guerdon_trainer.model import load_policy, load_tokenizer
from guerdon_trainer.objective import advantages_of
from guerdon_trainer.questions import PromptStream
from guerdon_trainer.record import Recorder, step_row
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.run_folder import RunFolder, read_lines
from guerdon_trainer.service_calls import ServiceClient
from guerdon_trainer.service_stats import ServiceStats
from guerdon_trainer.step import kl_in_reward, make_learner, optimise
from guerdon_trainer.trackers import Tracked, Trackers, check_trackers
from guerdon_trainer.weights import publish_adapters, publish_policy, save_policy
from guerdon_trainer.weights_mirror import PolicyMirror
from guerdon_trainer.weights_push import open_push


def train(run: "Run", clients: Mapping[str, ServiceClient], view: LiveView) -> RunState:
    """Train until the recipe's last step."""
    with run.mirrored(), run.rollouts(clients) as rollouts, run.recorder(view) as record:
        run.greet(rollouts)
        if run.is_new:
            run.begin(rollouts, record)
        collector = run.collector(rollouts)
        while run.state.step < run.config.training.steps:
            collected = run.collect(collector)
            if not collected.kept:
                run.end_early(collected, rollouts, record)
                break
            process = run.process_rewards(rollouts, collected)
            batch = run.batch(collected, process)
            learned = run.learn(batch)
            run.advance(collected, process)
            run.publish(rollouts)
            record.step(run.row(collected, batch, process, learned))
            record.rollouts(run.state.step, collected.kept, process)
            run.evaluate_if_due(rollouts, record)
            run.save_if_due()
        run.finish()
    return run.state


def follow(run: "Run") -> None:
    """What every rank but the first does: its part of learning, publishing and saving, when rank 0 does."""
    for order, *arguments in orders():
        {"learn": run.optimise, "publish": run.hand_over, "save": run.save, "finish": run.leave}[order](
            *arguments
        )


class Run:
    """The moving parts of a run: what learns, where it stands, and how long each part of a step took.

    Opening one restores the last checkpoint, if there is one, and publishes its policy, which is what services need
    to start. The run folder must hold the initial policy; `guerdon_trainer.launch` puts it there.
    """

    def __init__(self, config: RunConfig, view: LiveView) -> None:
        self.config = config
        self.folder = RunFolder(config.run_folder)
        self.device = local_device(config.training.device)
        self._view = view
        check_trackers(config.tracking)
        torch.set_num_threads(config.training.threads)
        torch.manual_seed(config.seed)
        self._prompts = PromptStream(load_questions(config.data), config.seed)
        self._held_out = load_questions(config.eval_data)
        model = load_policy(self.folder.policy, self.device)
        initial = self._initial(model) if config.training.kl_to_initial else None
        self._tokenizer = load_tokenizer(self.folder.policy)
        self.learner = make_learner(model, initial, config.optimizer)
        self.state, self.stats = self._resume()
        self.is_new = self.state.attempt == 0
        self._filter = GroupFilter(config)
        self._filter.restore(self.state.filter)
        self._timer = Timer()
        # Names this attempt: a step that is repeated is a new update to the PRM, also when no checkpoint came between.
        self._attempt_id = uuid.uuid4().hex[:8]
        self._send: Callable[[int, Mapping[str, Tensor]], bool] | None = None
        self._mirror: PolicyMirror | None = None
        push = open_push(config.rollout.push, self.device) if rank() == 0 else None
        self.hand_over(self.state.policy_version)
        self._mirror = self._open_mirror()
        # Later versions may be sent: this one is what services start with.
        if push is not None:
            self._send = partial(push.send, say=view.message)

    def _initial(self, model: PreTrainedModel) -> PreTrainedModel:
        """The policy before the first step; with adapters the model itself, without them."""
        return model if self.config.optimizer.lora else load_policy(self.folder.policy, self.device)

    def _resume(self) -> tuple[RunState, ServiceStats]:
        found = checkpoint.latest(self.folder.checkpoints)
        if found is None:
            return RunState(run_id=uuid.uuid4().hex[:12]), ServiceStats()
        found.restore(self.learner)
        self._view.message(f"resuming from {found.path}")
        return replace(found.state, attempt=found.state.attempt + 1, exhausted=False), ServiceStats(
            found.services
        )

    def _open_mirror(self) -> PolicyMirror | None:
        url = self.config.weights.mirror_url
        return PolicyMirror(self.folder.weights, url, self._view.message) if url and rank() == 0 else None

    def mirrored(self) -> AbstractContextManager[object]:
        """Leaving it, the URL has the newest version, if the recipe names one and it can be reached."""
        return self._mirror or nullcontext()

    def rollouts(self, clients: Mapping[str, ServiceClient]) -> Rollouts:
        """The services as this run asks them."""
        # On policy a version's weights are the same in every attempt. Asking ahead, its number alone says less.
        on_policy = self.config.rollout.ahead == 0
        key = self.state.run_id if on_policy else f"{self.state.run_id}.{self._attempt_id}"
        return Rollouts(clients, self.config, self.stats, policy_version=self.state.policy_version, key=key)

    def recorder(self, view: LiveView) -> Recorder:
        """What writes down how the run goes, from where it stands."""
        last = -1 if self.is_new else self.state.step
        plain = self.config.model_dump(mode="json")
        tracked = Tracked(self.state.run_id, self.folder.path.name, self.folder.path, last, plain)
        return Recorder(self.folder, last, view, Trackers(self.config.tracking, tracked))

    def greet(self, rollouts: Rollouts) -> None:
        """Make sure that every service answers before the first prompt is asked."""
        answers = rollouts.greet(count=self.is_new)
        names = ", ".join(f"{name} {info.scorer_version}" for name, info in answers.items())
        self._view.message(f"{len(answers)} services answer: {names}")

    def begin(self, rollouts: Rollouts, record: Recorder) -> None:
        """Measure the initial policy and write the checkpoint that every resume can fall back on."""
        self.state = replace(self.state, prm_version=rollouts.process_version())
        self._evaluate(rollouts, record)
        self._save()

    def collector(self, rollouts: Rollouts) -> Collector:
        """What fills batches, from where the run stands in the prompt stream."""
        return Collector(
            rollouts,
            self._prompts,
            self.config,
            self._filter.keep,
            self._view,
            position=self.state.position,
            pending=self.state.pending,
        )

    def collect(self, collector: Collector) -> Collected:
        """The groups of the next step."""
        self._timer = Timer()
        self.stats.take_waits()  # those of an evaluation in between belong to no step
        return collector.collect(step=self.state.step + 1, policy_version=self.state.policy_version)

    def process_rewards(self, rollouts: Rollouts, collected: Collected) -> ProcessRewards | None:
        """Token rewards from the PRM, which also learns; None when the recipe has no process reward."""
        if self.config.process is None:
            return None
        self._view.progress(f"step {self.state.step + 1}: process rewards")
        with self._timer.of("wait_process_s"):
            return rollouts.process_rewards(
                collected.kept,
                request_id=f"{self.state.run_id}.{self._attempt_id}.{self.state.step + 1}",
                base_version=self.state.prm_version,
            )

    def batch(self, collected: Collected, process: ProcessRewards | None) -> Batch:
        """What the step learns from; on the CPU, from where every rank moves it to its device."""
        config = self.config
        return make_batch(
            collected.kept, process, injected=config.injected, mask_truncated=config.loss.mask_truncated
        )

    def learn(self, batch: Batch) -> dict[str, float]:
        """One step of learning; returns what to log of it."""
        self._view.progress(f"step {self.state.step + 1}: learning")
        with self._timer.of("learn_s"):
            step = self.state.step + 1
            tell(("learn", batch, step))
            return self.optimise(batch, step)

    def optimise(self, batch: Batch, step: int) -> dict[str, float]:
        """This rank's part of learning from a batch."""
        on_device = batch.to(self.device)
        # On the CPU, whose sums are the same on every rank.
        kl_BT = kl_in_reward(self.learner, on_device, self.config)
        advantages = advantages_of(self.config, batch, None if kl_BT is None else kl_BT.cpu())
        return optimise(self.learner, on_device, advantages.to(self.device), self.config, step)

    def advance(self, collected: Collected, process: ProcessRewards | None) -> None:
        """Move on to the next step."""
        self._filter.end_step(collected.seen)
        self.state = replace(
            self.state,
            step=self.state.step + 1,
            policy_version=self.state.policy_version + 1,
            prm_version=self.state.prm_version if process is None else process.version,
            position=collected.next_position,
            pending=collected.pending,
            filter=self._filter.state,
        )

    def publish(self, rollouts: Rollouts) -> None:
        """Hand the current weights to the services."""
        # Told before: a service may sample with them before the call below returns.
        rollouts.policy_version = self.state.policy_version
        with self._timer.of("publish_s"):
            tell(("publish", self.state.policy_version))
            self.hand_over(self.state.policy_version)

    def hand_over(self, version: int) -> None:
        """This rank's part of publishing the current weights as a version."""
        lora, policy = self.config.optimizer.lora, self.learner.policy
        if lora is not None and lora.publish == "adapter":
            publish_adapters(policy, self.folder.policy, self.folder.weights, version)
        else:
            publish_policy(policy, self._tokenizer, self.folder.weights, version, self._send)
        if self._mirror is not None:
            self._mirror.published(version)

    def row(
        self, collected: Collected, batch: Batch, process: ProcessRewards | None, learned: dict[str, float]
    ) -> dict[str, Any]:
        """Everything that is logged of the step."""
        times = self._timer.seconds | self.stats.take_waits()
        if self._mirror is not None:
            learned = learned | {"mirror_behind": self._mirror.behind}
        return step_row(self.state, collected, batch, process, learned, times, self.stats.failures())

    def evaluate_if_due(self, rollouts: Rollouts, record: Recorder) -> None:
        """Held-out accuracy every `eval_every` steps and after the last one."""
        step, training = self.state.step, self.config.training
        if step == training.steps or (training.eval_every and step % training.eval_every == 0):
            self._evaluate(rollouts, record)

    def end_early(self, collected: Collected, rollouts: Rollouts, record: Recorder) -> None:
        """No group has anything left to teach: measure and keep what there is."""
        seen = len(collected.seen)
        self._view.message(f"step {self.state.step + 1}: none of {seen} groups has anything left to teach")
        self.state = replace(self.state, exhausted=True)
        measured = read_lines(self.folder.evaluations)
        if not measured or measured[-1]["step"] != self.state.step:
            self._evaluate(rollouts, record)
        self._save()

    def save_if_due(self) -> None:
        """A checkpoint every `checkpoint_every` steps and after the last one."""
        step, training = self.state.step, self.config.training
        if step == training.steps or step % training.checkpoint_every == 0:
            self._save()

    def _evaluate(self, rollouts: Rollouts, record: Recorder) -> None:
        self._view.progress(f"evaluating {len(self._held_out)} held-out questions")
        evaluation, groups = evaluate(
            rollouts,
            self._held_out,
            self.config,
            step=self.state.step,
            policy_version=self.state.policy_version,
        )
        record.evaluation(evaluation, groups)

    def _save(self) -> None:
        services = self.stats.to_dict(latencies=True)
        tell(("save", self.state, services))
        self.save(self.state, services)

    def save(self, state: RunState, services: dict[str, Any]) -> None:
        """This rank's part of a checkpoint."""
        checkpoint.save(
            self.folder.checkpoints, self.learner, state, services, keep_last=self.config.training.keep_last
        )

    def finish(self) -> None:
        """Leave the trained policy in the run folder, as any Hugging Face folder; the other ranks may go."""
        tell(("finish",))
        self.leave()
        tell(None)

    def leave(self) -> None:
        """This rank's part of writing the trained policy."""
        save_policy(self.learner.policy, self._tokenizer, self.folder.model)


class Timer:
    """Seconds since it was made, and seconds spent in named parts."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._parts: dict[str, float] = {}

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        """Time what happens within."""
        started = time.monotonic()
        yield
        self._parts[part] = self._parts.get(part, 0.0) + time.monotonic() - started

    @property
    def seconds(self) -> dict[str, float]:
        """The parts, and `seconds` for the whole."""
        return {"seconds": time.monotonic() - self._started, **self._parts}
