"""`--dry-run`: everything that a run needs, tried once, in a temporary folder; the run's own folder stays as it is.

The policy is prepared (or taken from the run folder) and loaded, services are started or asked, a few prompts are
sampled, and every reward of the recipe scores the responses. What fails ends the list with its sentence.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import PreTrainedModel

from guerdon import weights
from guerdon.redis_server import redis_server
from guerdon.services_file import ServicesConfig, process_specs
from guerdon.stores import Store, StoreError
from guerdon.supervisor import Supervisor
from guerdon_trainer.config import PushConfig, RewardConfig, RunConfig, load_recipe
from guerdon_trainer.connections import check_queues, connect
from guerdon_trainer.data import load_questions
from guerdon_trainer.distributed import local_device
from guerdon_trainer.groups import Ask, Group, RolloutError
from guerdon_trainer.launch import READY_TIMEOUT_S, RUN_FAILURES, ensure_policy
from guerdon_trainer.memory import available_memory, estimate_memory
from guerdon_trainer.model import load_policy
from guerdon_trainer.questions import Question, sampling_seed
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.run_folder import RunFolder, refuse_changes
from guerdon_trainer.service_calls import ServiceClient
from guerdon_trainer.service_stats import ServiceStats
from guerdon_trainer.step import add_adapters
from guerdon_trainer.trackers import check_trackers
from guerdon_trainer.weights_push import open_push

#: Prompts of the one batch.
_PROMPTS = 4
#: Seconds that a service which runs already may take to answer, and requests to it are tried.
_PATIENCE_S = 30.0
#: A policy version that no published one is newer than.
_ANY_VERSION = 2**62


@dataclass(frozen=True)
class Check:
    """One thing that was tried."""

    name: str
    passed: bool
    detail: str


class Checks:
    """What was tried so far. After the first failure nothing else is."""

    def __init__(self, progress: Callable[[str], None]) -> None:
        self.made: list[Check] = []
        self.progress = progress

    @property
    def passed(self) -> bool:
        """Whether nothing failed."""
        return all(check.passed for check in self.made)

    @contextmanager
    def of(self, name: str) -> Generator[list[str]]:
        """Within it one thing is tried; what is appended to the list becomes its detail."""
        self.progress(f"checking {name}")
        details: list[str] = []
        try:
            yield details
        except (*RUN_FAILURES, OSError, ImportError, MemoryError) as error:
            self.made.append(Check(name, False, str(error) or type(error).__name__))
            raise Failed from error
        self.made.append(Check(name, True, "; ".join(details)))

    def table(self) -> Table:
        """One line each."""
        table = Table(title="dry run", title_justify="left", title_style="bold")
        table.add_column("check", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("what was found", overflow="fold")
        for check in self.made:
            table.add_row(check.name, "ok" if check.passed else "FAILED", check.detail)
        return table


class Failed(Exception):
    """A check failed; `Checks` says which."""


def dry_run(recipe: str, overrides: Sequence[str], redis: str | None, console: Console) -> bool:
    """Try everything and print a table; with `redis` its services run already. Returns whether all is well."""
    config = load_recipe(recipe, overrides)
    checks = Checks(lambda text: console.print(text, style="dim"))
    with tempfile.TemporaryDirectory(prefix="guerdon-dry-run-") as temporary:
        # `${run}` in the recipe then means the temporary folder, for services of our own as well.
        trial = load_recipe(recipe, [*overrides, f"folder={temporary}/run"])
        try:
            if redis is not None:
                with checks.of("queues") as found:
                    check_queues(config, redis)
                    found.append("Redis answers")
            _check_files(checks, config, trial)
            if redis is None:
                _check_own_services(checks, trial)
            else:
                _check_rewards(checks, _impatient(config), connect(_impatient(config), redis), updates=False)
        except Failed:
            pass
    console.print(checks.table())
    return checks.passed


def _check_files(checks: Checks, config: RunConfig, trial: RunConfig) -> None:
    """Recipe, folder, data and policy: all that needs no service."""
    with checks.of("recipe") as found:
        advantage = config.advantage.name if config.advantage else "none"
        found += [f"loss {config.loss.name}", f"advantage {advantage}"]
        found += [f"{reward.name} ({reward.role}, weight {reward.weight:g})" for reward in config.rewards]
        check_trackers(config.tracking)
    folder = RunFolder(config.run_folder)
    with checks.of("run folder") as found:
        refuse_changes(config, folder)
        found.append(
            f"{folder.path} {'holds this run: it would go on' if folder.config.exists() else 'is new'}"
        )
    with checks.of("data") as found:
        for name, data in (("training", config.data), ("held out", config.eval_data)):
            found.append(f"{len(load_questions(data))} questions, {name}")
    with checks.of("policy") as found:
        source = folder if folder.policy.exists() else RunFolder(trial.run_folder)
        if source is not folder:
            source.path.mkdir(parents=True)
            ensure_policy(trial, source, checks.progress)
            found.append("prepared for this check")
        device = local_device(config.training.device)
        model = load_policy(source.policy, torch.device("cpu"))
        weights.publish(RunFolder(trial.run_folder).weights, 0, lambda path: _copy(source.policy, path))
        if source is folder:
            RunFolder(trial.run_folder).policy.symlink_to(folder.policy)
    _check_mirror(checks, config.weights.mirror_url)
    _check_push(checks, config.rollout.push, device)
    _check_fit(checks, config, model, device)


def _check_mirror(checks: Checks, url: str | None) -> None:
    """Whether the store of weights answers; nothing is written there."""
    if url is None:
        return
    with checks.of("weights.mirror_url") as found:
        store = Store(url)
        try:
            found.append(f"{store.shown} has {store.latest() or 'no version yet'}")
        except Exception as error:  # every file system has errors of its own
            raise StoreError(f"{store.shown} cannot be read: {type(error).__name__}: {error}") from error


def _check_push(checks: Checks, push: PushConfig | None, device: torch.device) -> None:
    """Whether versions can be sent from here; the services are not asked."""
    if push is None:
        return
    with checks.of("rollout.push") as found:
        open_push(push, device)
        found.append(f"to {len(push.urls)} services over NCCL, from {device}")


def _check_fit(checks: Checks, config: RunConfig, model: PreTrainedModel, device: torch.device) -> None:
    """Whether a step fits into memory, and the adapters into the model."""
    with checks.of("memory") as found:
        need, free = estimate_memory(model, config), available_memory(device)
        found.append(
            f"{need.parameters / 1e6:,.1f}M parameters; about {_gigabytes(need.total)} at the peak of a step "
            f"(weights {_gigabytes(need.weights)}, gradients {_gigabytes(need.gradients)}, optimizer "
            f"{_gigabytes(need.optimizer)}, initial policy {_gigabytes(need.initial)}, activations "
            f"{_gigabytes(need.activations)}); {_gigabytes(free)} are free on {device}"
        )
        if need.total > free:
            raise MemoryError(f"{found.pop()}: try fewer optimizer.micro_batch_tokens")
    if config.optimizer.lora:
        with checks.of("adapters") as found:
            add_adapters(model, config.optimizer.lora)
            learning = sum(one.numel() for one in model.parameters() if one.requires_grad)
            found.append(f"{learning / 1e6:,.2f}M parameters learn")


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def _check_own_services(checks: Checks, trial: RunConfig) -> None:
    """Start every service of the recipe, as `guerdon run` would."""
    services = ServicesConfig(services=trial.services)
    with redis_server(services.redis) as redis_url:
        specs = process_specs(services, redis_url, trial.run_folder / "logs")
        with Supervisor(specs) as supervisor:
            with checks.of("start of services") as found:
                began = time.monotonic()
                supervisor.wait_ready(READY_TIMEOUT_S)
                found.append(f"{len(specs)} ready after {time.monotonic() - began:.0f} s")
            # What a PRM learns here goes with the folder.
            _check_rewards(checks, trial, connect(trial, redis_url, spare=True), updates=True)


def _check_rewards(
    checks: Checks, config: RunConfig, clients: Mapping[str, ServiceClient], *, updates: bool
) -> None:
    """Ask every service, sample a few groups, and have every reward score them."""
    stats = ServiceStats()
    with Rollouts(clients, config, stats, policy_version=_ANY_VERSION) as rollouts:
        with checks.of("services") as found:
            found += [f"{name} {info.scorer_version}" for name, info in rollouts.greet().items()]
        with checks.of("sampling and rewards") as found:
            began = time.monotonic()
            groups = rollouts.all_groups(_asks(config, load_questions(config.data)))
            found += _sampled(groups, time.monotonic() - began)
            if not any(group.responses for group in groups):
                raise RolloutError(f"no prompt was answered. {rollouts.explanation()}")
        for reward in config.outcome_rewards:
            with checks.of(reward.name) as found:
                found += _rewarded(groups, reward)
        if config.process is not None:
            with checks.of(config.process.name) as found:
                found += _process(rollouts, groups, updates=updates)


def _asks(config: RunConfig, questions: Sequence[Question]) -> list[Ask]:
    rollout = config.rollout
    asks: list[Ask] = []
    for place, question in enumerate(questions[: min(_PROMPTS, rollout.prompts_per_step)]):
        sampling = rollout.sampling(sampling_seed(config.seed, 0, question.id, place))
        asks.append(Ask(place, question, sampling, 0))
    return asks


def _sampled(groups: Sequence[Group], seconds: float) -> list[str]:
    responses = [response for group in groups for response in group.responses]
    lengths = [len(response.rollout.token_ids) for response in responses]
    cut = sum(response.rollout.finish_reason == "length" for response in responses)
    mean = sum(lengths) / max(1, len(lengths))
    return [
        f"{len(responses)} responses to {len(groups)} prompts in {seconds:.1f} s",
        f"{mean:.0f} tokens each on average, {cut} cut off",
        f"versions {sorted({group.policy_version for group in groups if group.responses})}",
    ]


def _rewarded(groups: Sequence[Group], reward: RewardConfig) -> list[str]:
    responses = [response for group in groups for response in group.responses]
    results = [one.results[reward.name] for one in responses if reward.name in one.results]
    if not results:
        return ["asked for no response: a gate before it was closed"]
    values = [result.value for result in results if result.value is not None]
    failed = [result for result in results if result.value is None]
    if not values:
        raise RolloutError(f"no response got a reward: {failed[0].status}: {failed[0].reason}")
    found = [
        f"{len(values)} rewards from {min(values):g} to {max(values):g}, mean {sum(values) / len(values):.3f}"
    ]
    if failed:
        found.append(f"{len(failed)} without one, such as {failed[0].status}: {failed[0].reason}")
    return found


def _process(rollouts: Rollouts, groups: Sequence[Group], *, updates: bool) -> list[str]:
    version = rollouts.process_version()
    answered = [group for group in groups if group.responses]
    if updates:
        rewards = rollouts.process_rewards(answered, request_id="dry-run", base_version=version)
    else:
        rewards = rollouts.process_scores(answered, version=version)
    tokens = sum(len(values) for values in rewards.tokens.values())
    learnt = f", learnt to version {rewards.version}" if rewards.version != version else ""
    return [f"{tokens} token rewards of {len(rewards.tokens)} responses, version {version}{learnt}"]


def _impatient(config: RunConfig) -> RunConfig:
    failures = config.failures.model_copy(update={"timeout_s": _PATIENCE_S, "attempts": 1})
    return config.model_copy(update={"failures": failures})


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB"
