"""The part of an evaluation that talks to services: responses from the policy, verdicts from the verifier.

Each response is a request of its own with a seed of its own, so that one failure costs one response, and a run that
was killed goes on where it stopped. A response whose verdict failed is kept: the next run only judges it.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from guerdon.client import AsyncClient
from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Result,
    Sample,
    Sampling,
    ServiceInfo,
    Status,
    failed,
)
from guerdon_trainer.config import FailureConfig
from guerdon_trainer.evaluation.answers import Answer, AnswerLog, EvaluationError, Key
from guerdon_trainer.evaluation.benchmark import BenchmarkConfig
from guerdon_trainer.evaluation.rows import CATEGORY
from guerdon_trainer.questions import Question, sampling_seed
from guerdon_trainer.service_calls import ServiceCalls, reach_queues
from guerdon_trainer.service_stats import FailureBudget, ServiceStats

T = TypeVar("T")


@dataclass(frozen=True)
class Addresses:
    """Where the services are: an HTTP, gRPC or Redis URL for each, and the token that they ask for."""

    urls: dict[str, str]
    token: str | None = None


@dataclass(frozen=True)
class Item:
    """One response to ask for; `earlier` is what a previous run got, if anything."""

    question: Question
    number: int
    earlier: Answer | None = None

    @property
    def key(self) -> Key:
        """What tells it apart from all others of the evaluation."""
        return self.question.id, self.number


@asynccontextmanager
async def connected(addresses: Addresses, failures: FailureConfig) -> AsyncGenerator[dict[str, AsyncClient]]:
    """A client for each service. They do not retry: failures are repeated, and counted, here.

    Raises:
        Unavailable: a Redis cannot be reached.
    """
    await reach_queues((url, name) for name, url in addresses.urls.items())
    clients = {
        name: AsyncClient(
            url,
            service=name if url.startswith(("redis://", "rediss://")) else None,
            token=addresses.token,
            timeout_s=failures.timeout_s,
            retries=0,
        )
        for name, url in addresses.urls.items()
    }
    try:
        yield clients
    finally:
        for client in clients.values():
            await client.aclose()


async def greet(clients: dict[str, AsyncClient]) -> dict[str, ServiceInfo]:
    """What every service says of itself: a wrong address is known before any work is done.

    Raises:
        GuerdonError: one of them does not answer.
    """
    return {name: await client.info() for name, client in clients.items()}


async def side_by_side(jobs: Iterable[T], work: Callable[[T], Awaitable[None]], width: int) -> None:
    """Do all jobs, `width` at a time; the first exception ends the others and is raised itself."""
    left = iter(jobs)

    async def worker() -> None:
        for job in left:
            await work(job)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(width):
                tasks.create_task(worker())
    except* Exception as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


class Asking:
    """Gets responses and verdicts, and writes them down as they come."""

    def __init__(
        self,
        config: BenchmarkConfig,
        clients: dict[str, AsyncClient],
        log: AnswerLog,
        policy_version: int | None,
        progress: Callable[[int], None],
    ) -> None:
        self._config = config
        self._clients = clients
        self._log = log
        self._version = policy_version
        self._progress = progress
        self.stats = ServiceStats()
        self._calls = ServiceCalls(config.failures, self.stats)
        self._budget = FailureBudget(config.failures, self.stats)

    async def all(self, items: Sequence[Item]) -> None:
        """Answer every item.

        Raises:
            FailureBudgetExceeded: too many of the latest responses got no verdict.
            EvaluationError: the policy's weights changed on the way.
        """
        await side_by_side(items, self._one, self._config.in_flight)

    async def _one(self, item: Item) -> None:
        answer = await self._response(item)
        if answer.response is not None:
            answer = await self._judged(item, answer)
        self._log.add(answer)
        self._progress(1)
        self._budget.add([answer.value is not None])

    async def _response(self, item: Item) -> Answer:
        """The policy's response, not judged yet."""
        if item.earlier is not None and item.earlier.response is not None:
            return item.earlier
        question, name = item.question, self._config.rollout
        generated = await self._generate(item)
        metadata = question.metadata or {}
        answer = Answer(
            question=question.id,
            number=item.number,
            category=str(metadata[CATEGORY]) if CATEGORY in metadata else None,
            prompt=question.prompt,
            references=question.references,
            status=generated.status,
            reason=generated.reason,
            failed_at=None if generated.status is Status.OK else name,
        )
        if generated.status is not Status.OK:
            return answer
        rollout = generated.rollouts[0]
        if self._version is None:
            self._version = rollout.model_version
        if rollout.model_version != self._version:
            raise EvaluationError(
                f"the policy changed from version {self._version} to {rollout.model_version} during the evaluation: "
                "evaluate a policy that nobody trains, for example a copy of its weights"
            )
        found = {
            "response": rollout.response,
            "response_tokens": len(rollout.token_ids),
            "finish_reason": rollout.finish_reason,
            "policy_version": rollout.model_version,
        }
        return answer.model_copy(update=found)

    async def _generate(self, item: Item) -> GenerateResult:
        name, asked = self._config.rollout, self._config.sampling
        seed = sampling_seed(asked.seed, 0, item.question.id, item.number)
        sampling = Sampling(**asked.model_dump(exclude={"n", "seed"}), n=1, seed=seed)
        sample = GenerateSample(id=_id(item), prompt=item.question.prompt, seed=seed)

        async def call(samples: list[GenerateSample], attempt: int) -> list[GenerateResult]:
            return await self._clients[name].generate(samples, sampling)

        return (await self._calls.each(name, [sample], call, _not_generated))[0]

    async def _judged(self, item: Item, answer: Answer) -> Answer:
        question, verifier = item.question, self._config.verifier
        sample = Sample(
            id=_id(item),
            prompt=question.prompt,
            response=answer.response,
            references=question.references,
            code=question.code,
            metadata=question.metadata,
        )

        async def call(samples: list[Sample], attempt: int) -> list[Result]:
            return await self._clients[verifier.service].score(samples, options=verifier.options)

        result = (await self._calls.each(verifier.service, [sample], call, not_scored))[0]
        judged = {
            "status": result.status,
            "value": result.value,
            "reason": result.reason,
            "verdict": result.verdict,
            "failed_at": None if result.status is Status.OK else verifier.service,
        }
        return answer.model_copy(update=judged)


def not_scored(sample: Sample, status: Status, reason: str) -> Result:
    """The result of a sample whose whole request failed."""
    return failed(status, reason, id=sample.id)


def _not_generated(sample: GenerateSample, status: Status, reason: str) -> GenerateResult:
    return GenerateResult(id=sample.id, status=status, reason=reason)


def _id(item: Item) -> str:
    return f"{item.question.id}/{item.number}"
