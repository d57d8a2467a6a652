"""A whole evaluation: its folder, the services, the questions that are left, the figures."""

import asyncio
import json
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from guerdon.redis_server import redis_server
from guerdon.services_file import ServiceConfig, ServicesConfig, process_specs
from guerdon.supervisor import Supervisor
from guerdon_trainer.evaluation.answers import AnswerLog, EvaluationError
from guerdon_trainer.evaluation.asking import Addresses, Asking, Item, connected, greet
from guerdon_trainer.evaluation.benchmark import BenchmarkConfig
from guerdon_trainer.evaluation.summary import Summary, summarise
from guerdon_trainer.questions import Question
from guerdon_trainer.run_folder import RunFolder, exclusive

#: How long the services may take to load their models, in seconds.
_READY_TIMEOUT_S = 600.0
#: What may differ between two runs in one folder: it changes no answer that is there.
_FREE = {"description", "folder", "pass_at", "confidence", "in_flight", "failures", "services"}


@contextmanager
def local_services(config: BenchmarkConfig, model: Path) -> Generator[Addresses]:
    """Services of our own, stopped at the end: Redis, a rollout service with `model`, and the verifier."""
    wanted = {
        name: config.services.get(name, ServiceConfig()) for name in (config.rollout, config.verifier.service)
    }
    settings = {"model": str(model.absolute()), **wanted[config.rollout].settings}
    wanted[config.rollout] = wanted[config.rollout].model_copy(
        update={"service": "rollout", "settings": settings}
    )
    services = ServicesConfig(services=wanted)
    with redis_server(services.redis) as redis_url:
        specs = process_specs(services, redis_url, config.eval_folder / "logs")
        with Supervisor(specs) as supervisor:
            supervisor.wait_ready(_READY_TIMEOUT_S)
            queues = {name: redis_url for name in wanted}
            yield Addresses(queues)


def run_evaluation(
    config: BenchmarkConfig,
    questions: Sequence[Question],
    addresses: Addresses,
    progress: Callable[[int], None],
) -> Summary:
    """Ask for every response that has no verdict yet, and write `summary.json`, also when ended early.

    `progress` is told how many more responses are there.

    Raises:
        EvaluationError: the folder holds another evaluation, or the policy changed.
        FailureBudgetExceeded: too many responses got no verdict.
        GuerdonError: a service does not answer at all, or refuses the request.
    """
    folder = config.eval_folder
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(RunFolder(folder)), AnswerLog(folder / "responses.jsonl") as log:
        _check(folder, "benchmark", _fixed(config))
        items = [
            _item(log, question, number) for question in questions for number in range(config.sampling.n)
        ]
        left = [item for item in items if item.earlier is None or item.earlier.value is None]
        progress(len(items) - len(left))
        try:
            if left:
                asyncio.run(_ask(config, addresses, log, left, progress))
        finally:
            answers = log.of(item.key for item in items)
            summary = summarise(config, [question.id for question in questions], answers)
            (folder / "summary.json").write_text(json.dumps(asdict(summary), indent=2) + "\n")
    return summary


def start_over(config: BenchmarkConfig) -> None:
    """Remove what earlier runs left in the evaluation's folder.

    Raises:
        EvaluationError: the folder holds something else.
        FolderRefused: an evaluation goes on there.
    """
    folder = config.eval_folder
    if not folder.exists():
        return
    if any(folder.iterdir()) and not (folder / "evaluation.json").exists():
        raise EvaluationError(f"{folder} holds no evaluation, so --fresh does not remove it")
    with exclusive(RunFolder(folder)):
        shutil.rmtree(folder)


async def _ask(
    config: BenchmarkConfig,
    addresses: Addresses,
    log: AnswerLog,
    items: Sequence[Item],
    progress: Callable[[int], None],
) -> None:
    async with connected(addresses, config.failures) as clients:
        policy = (await greet(clients))[config.rollout]
        known = {"model": policy.details.get("model"), "version": policy.model_version}
        _check(config.eval_folder, "policy", known)
        await Asking(config, clients, log, policy.model_version, progress).all(items)


def _item(log: AnswerLog, question: Question, number: int) -> Item:
    earlier = log.answers.get((question.id, number))
    # The file behind the questions may have changed: an answer to another question is none to this one.
    if earlier and (earlier.prompt, earlier.references) != (question.prompt, question.references):
        earlier = None
    return Item(question, number, earlier)


def _check(folder: Path, part: str, now: dict[str, Any]) -> None:
    """Note what is evaluated in the folder, or compare it with what its answers belong to."""
    file = folder / "evaluation.json"
    noted: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if part not in noted:
        file.write_text(json.dumps({**noted, part: now}, indent=2) + "\n")
        return
    changes = _differences(noted[part], now, f"{part}: ")
    if changes:
        raise EvaluationError(
            f"{folder} holds another evaluation: {'; '.join(changes)}. "
            "Name another folder (folder=...), or start over with --fresh"
        )


def _fixed(config: BenchmarkConfig) -> dict[str, Any]:
    """All of a configuration that its answers depend on."""
    fixed = config.model_dump(mode="json", exclude=_FREE)
    # More responses to a question, and more questions, only add to what is there.
    fixed["sampling"].pop("n")
    fixed["data"].pop("size")
    return fixed


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str) -> list[str]:
    found: list[str] = []
    for key in sorted({*before, *now}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            found += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append(f"{prefix}{key} was {old!r} and is now {new!r}")
    return found
