"""The one path that every door shares: admission, options, batching, stamping."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar, cast

import structlog

from guerdon import errors
from guerdon.types import (
    GenerateRequest,
    GenerateResult,
    GenerateSample,
    Result,
    Sample,
    ScoreRequest,
    ServiceInfo,
    Status,
    UpdateRequest,
    UpdateResponse,
    VersionsRequest,
    VersionsResponse,
)
from guerdon_services.runtime import duplicates, sizes, stamping
from guerdon_services.runtime.batcher import Batcher
from guerdon_services.runtime.lane import Lane, contained
from guerdon_services.runtime.listening import Inbox, Listener
from guerdon_services.runtime.metrics import Metrics, OperationMetrics
from guerdon_services.runtime.scorer import (
    AnyScorer,
    AnyService,
    Batching,
    GenerateJob,
    Generator,
    Learner,
    NotReady,
    ScoreJob,
    Scorer,
    ScorerOptions,
    Versioned,
)
from guerdon_services.runtime.settings import RuntimeSettings
from guerdon_services.runtime.submission import Failure, Finish, Ran, Submission
from guerdon_services.runtime.validation import BadItem, Parsed, parse_options
from guerdon_services.runtime.versions import VersionWatch

log = structlog.get_logger(__name__)

JobT = TypeVar("JobT")
AnswerT = TypeVar("AnswerT", Result, GenerateResult, UpdateResponse)
AnyJob = ScoreJob[Any]

#: One update at a time, at once.
_UPDATE_BATCHING = Batching(max_items=1, max_wait_ms=0)
#: Seconds that a caller who names none waits for a version.
_VERSION_WAIT_S = 30.0
_NOW = VersionsRequest()


@dataclass(frozen=True)
class _Operation(Generic[JobT, AnswerT]):
    batcher: Batcher[JobT, AnswerT]
    metrics: OperationMetrics


class Dispatcher:
    """Runs one service for all doors.

    Every operation raises `errors.Unavailable` while the service starts or stops, `errors.TooLarge` over the
    item limit, `errors.Overloaded` over the pending limit, and `errors.InvalidRequest` when the service lacks
    the operation or does not know an option. Everything else is the status of an item.
    """

    def __init__(self, service: AnyService, settings: RuntimeSettings, metrics: Metrics) -> None:
        self.service = service
        self._settings = settings
        self._metrics = metrics
        # One model executor: what learns must not score at the same time.
        workers = 1 if isinstance(service, Learner) else service.batching.concurrency
        self.lane = Lane(workers, service.name)
        self._score: _Operation[AnyJob, Result] | None = None
        self._generate: _Operation[GenerateJob, GenerateResult] | None = None
        self._update: _Operation[UpdateRequest, UpdateResponse] | None = None
        if isinstance(service, Scorer):
            scorer = cast(AnyScorer, service)
            self._score = self._operation("score", scorer.score, Result)
        if isinstance(service, Generator):
            self._generate = self._operation("generate", service.generate, GenerateResult)
        if isinstance(service, Learner):
            self._update = self._operation("update", self._run_updates, UpdateResponse, _UPDATE_BATCHING)
        self._watch = (
            VersionWatch(cast(Versioned, service), self.lane) if isinstance(service, Versioned) else None
        )
        self._accepting = False
        self._refusal = "the service is starting"
        metrics.model_version.set_function(lambda: self.service.model_version or 0)

    @property
    def operations(self) -> list[str]:
        """What the service does: score, generate, update."""
        named = {"score": self._score, "generate": self._generate, "update": self._update}
        return [name for name, operation in named.items() if operation is not None]

    @property
    def max_body_bytes(self) -> int:
        """The largest request body, in bytes."""
        return self._settings.max_body_bytes

    def accept(self) -> None:
        """The service is open: admit work."""
        self._accepting = True
        self._metrics.ready.set(1)
        self.lane.start()
        if self._watch is not None:
            self._watch.start()

    def refuse(self, reason: str) -> None:
        """Admit no more work; what was admitted goes on."""
        self._accepting = False
        self._refusal = reason
        self._metrics.ready.set(0)
        if self._watch is not None:
            self._watch.stop()

    @property
    def waiting(self) -> int:
        """Items admitted and not started, over all operations."""
        operations = (self._score, self._generate, self._update)
        return sum(operation.batcher.waiting for operation in operations if operation is not None)

    def abandon(self, reason: str) -> None:
        """Give every unfinished item the status unavailable: the process is about to end."""
        for operation in (self._score, self._generate, self._update):
            if operation is not None:
                operation.batcher.fail_all(Failure(Status.UNAVAILABLE, reason))

    def room(self) -> int:
        """How many items the batcher can use: what runs at once, and as much again."""
        batching = self.service.batching
        return max(1, 2 * batching.max_items * batching.concurrency)

    async def score(self, request: ScoreRequest, timeout_s: float | None = None) -> list[Result]:
        """One result per sample, in order; items not done after `timeout_s` seconds have status timeout."""
        return await (await self.begin_score(Parsed(request, request.samples), timeout_s)).all()

    async def generate(
        self, request: GenerateRequest, timeout_s: float | None = None
    ) -> list[GenerateResult]:
        """One result per prompt, in order; as `score`."""
        return await (await self.begin_generate(Parsed(request, request.samples), timeout_s)).all()

    async def update(self, request: UpdateRequest, timeout_s: float | None = None) -> UpdateResponse:
        """One update; never at the same time as a batch of scores."""
        [response] = await (await self.begin_update(request, timeout_s)).all()
        return response

    @property
    def has_versions(self) -> bool:
        """Whether the service's weights change: it learns, or follows one that does."""
        return self._watch is not None

    async def versions(self, request: VersionsRequest = _NOW) -> VersionsResponse:
        """The versions of the weights; at once, even while the service learns, or once one is served.

        Raises:
            errors.Timeout: the version that was waited for did not come in time.
            errors.InternalError: the service failed to say.
        """
        service = self.service
        if self._watch is None or not isinstance(service, Versioned):
            raise self._lacks("versions")
        self._check_accepting()
        wanted, timeout_s = request.wait_for, request.timeout_s
        timeout_s = _VERSION_WAIT_S if timeout_s is None else timeout_s
        if wanted is not None and not await self._watch.reached(wanted, timeout_s):
            self._check_accepting()
            current = self.service.model_version
            raise errors.Timeout(
                f"version {wanted} did not come in {timeout_s:.3g} s, version {current} is served"
            )
        try:
            return await asyncio.to_thread(contained, service.versions)
        except NotReady as error:
            raise errors.Unavailable(str(error)) from error
        except Exception as error:
            log.exception("versions failed")
            raise errors.InternalError(f"{type(error).__name__}: {error}") from error

    def info(self) -> ServiceInfo:
        """What the service is and what it accepts."""
        service = self.service
        options = cast(AnyScorer, service).options_type if isinstance(service, Scorer) else ScorerOptions
        return ServiceInfo(
            scorer=service.name,
            scorer_version=service.version,
            operations=self.operations,
            options_schema=json.dumps(options.model_json_schema()),
            model_version=service.model_version,
            max_request_items=self._settings.max_request_items,
            max_body_bytes=self._settings.max_body_bytes,
            details=service.details(),
        )

    async def begin_score(
        self, parsed: Parsed[ScoreRequest, Sample], timeout_s: float | None = None, *, bounded: bool = True
    ) -> Submission[Result]:
        """Admit a score request whole. `bounded=False` skips the pending limit, for a door that bounds itself."""
        if self._score is None:
            raise self._lacks("score")
        scorer = cast(AnyScorer, self.service)
        self._admit(self._score, len(parsed.samples), bounded)
        options: ScorerOptions = parse_options(scorer.options_type, parsed.envelope.options)
        min_version = parsed.envelope.min_version
        jobs: list[AnyJob | Failure] = [
            Failure(Status.INVALID_INPUT, sample.reason)
            if isinstance(sample, BadItem)
            else ScoreJob(sample, options, min_version)
            for sample in parsed.samples
        ]
        tokens = scorer.tokens if sizes.counted(scorer) else None
        places = await self._same(self._score, parsed.samples) if scorer.deterministic else None
        return await self._submit(
            self._score,
            jobs,
            partial(stamping.results, scorer),
            timeout_s,
            tokens=tokens,
            places=places,
            ids=[sample.id for sample in parsed.samples],
        )

    async def _same(
        self, operation: _Operation[AnyJob, Result], samples: Sequence[Sample | BadItem]
    ) -> duplicates.Places | None:
        """Which samples are the same; None where all differ. Their options are the request's."""
        alike = duplicates.by_response(samples)
        if alike is None:
            return None
        operation.batcher.reserve(len(samples))
        try:
            return await asyncio.to_thread(duplicates.by_all, samples, alike)
        finally:
            operation.batcher.unreserve(len(samples))

    async def begin_generate(
        self,
        parsed: Parsed[GenerateRequest, GenerateSample],
        timeout_s: float | None = None,
        *,
        bounded: bool = True,
        listening: Literal["rollouts", "tokens"] | None = None,
    ) -> Submission[GenerateResult]:
        """Admit a generate request whole; as `begin_score`. Rollouts or tokens come ahead where the door listens."""
        if self._generate is None:
            raise self._lacks("generate")
        self._admit(self._generate, len(parsed.samples), bounded)
        sampling, min_version = parsed.envelope.sampling, parsed.envelope.min_version
        inbox = None if listening is None else Inbox()
        jobs = [
            Failure(Status.INVALID_INPUT, sample.reason)
            if isinstance(sample, BadItem)
            else GenerateJob(
                sample,
                sampling,
                min_version,
                None if inbox is None else Listener(inbox, index, tokens=listening == "tokens"),
            )
            for index, sample in enumerate(parsed.samples)
        ]
        return await self._submit(
            self._generate,
            jobs,
            partial(stamping.generations, self.service),
            timeout_s,
            ids=[sample.id for sample in parsed.samples],
            inbox=inbox,
        )

    async def begin_update(
        self, request: UpdateRequest, timeout_s: float | None = None, *, bounded: bool = True
    ) -> Submission[UpdateResponse]:
        """Admit one update; as `begin_score`."""
        if self._update is None:
            raise self._lacks("update")
        self._check_items(len(request.samples))
        self._admit(self._update, 1, bounded)
        return await self._submit(
            self._update,
            [request],
            lambda _, values, ran: [
                stamping.update(self.service, request.request_id, request.samples, value, ran)
                for value in values
            ],
            timeout_s,
            ids=[request.request_id],
        )

    async def _submit(
        self,
        operation: _Operation[JobT, AnswerT],
        jobs: Sequence[JobT | Failure],
        stamp: Finish[AnswerT],
        timeout_s: float | None,
        *,
        ids: Sequence[str | None],
        tokens: Callable[[JobT], int] | None = None,
        places: duplicates.Places | None = None,
        inbox: Inbox | None = None,
    ) -> Submission[AnswerT]:
        def finish(
            names: Sequence[str | None], values: Sequence[AnswerT | Failure], ran: Ran
        ) -> Sequence[AnswerT]:
            answers = stamp(names, values, ran)
            for status, count in Counter(answer.status for answer in answers).items():
                operation.metrics.items[status].inc(count)
            return answers

        submission = Submission(ids, finish, places, inbox)
        if places is not None:
            jobs = [jobs[place[0]] for place in places]
        counts = None
        if tokens is not None:
            operation.batcher.reserve(len(jobs))
            try:
                jobs, counts = await asyncio.to_thread(sizes.of, jobs, tokens)
            finally:
                operation.batcher.unreserve(len(jobs))
        operation.batcher.submit(jobs, submission, timeout_s, counts)
        return submission

    def _admit(self, operation: _Operation[Any, Any], count: int, bounded: bool) -> None:
        self._check_accepting()
        self._check_items(count)
        limit = self._settings.max_pending
        if bounded and operation.batcher.waiting + count > limit:
            raise errors.Overloaded(
                f"{operation.batcher.waiting} items wait already, at most {limit} may",
                retry_after_s=min(30.0, operation.batcher.wait_s()),
            )

    def _check_accepting(self) -> None:
        if not self._accepting:
            raise errors.Unavailable(self._refusal)

    def _check_items(self, count: int) -> None:
        limit = self._settings.max_request_items
        if count > limit:
            raise errors.TooLarge(f"samples: {count} items in one request, larger than max ({limit})")

    def _lacks(self, operation: str) -> errors.InvalidRequest:
        have = ", ".join(self.operations)
        return errors.InvalidRequest(
            f"service {self.service.name} has no operation {operation}; it has: {have}"
        )

    def _run_updates(self, requests: Sequence[UpdateRequest]) -> list[UpdateResponse]:
        learner = cast("Learner[Any, Any]", self.service)
        return [learner.update(request) for request in requests]

    def _operation(
        self,
        name: str,
        run: Callable[[Sequence[JobT]], Sequence[AnswerT]],
        result_type: type[AnswerT],
        batching: Batching | None = None,
    ) -> _Operation[JobT, AnswerT]:
        metrics = self._metrics.operation(name)
        batcher = Batcher(
            name,
            run,
            result_type,
            lane=self.lane,
            limits=lambda: batching or self.service.batching,
            version=lambda: self.service.model_version,
            metrics=metrics,
            again=self._awaits_version,
            refresh=self.service.refresh if isinstance(self.service, Versioned) else lambda: None,
            slow_s=self._settings.slow_s,
        )
        return _Operation(batcher, metrics)

    def _awaits_version(self, job: object, waited_s: float) -> bool:
        """Whether a job is early for the weights that it asks for, and may still wait for them."""
        asked: int | None = getattr(job, "min_version", None)
        if asked is None or waited_s >= self.service.version_wait_s:
            return False
        loaded = self.service.model_version
        return loaded is not None and asked > loaded
