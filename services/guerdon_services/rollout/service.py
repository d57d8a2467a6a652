"""The rollout service: groups of sampled responses with token ids, log-probs and the policy's version."""

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from guerdon.types import GenerateResult, GenerateSample, Sampling, Status, VersionsResponse
from guerdon_services import models
from guerdon_services.rollout import engines
from guerdon_services.rollout.engine import Engine, Row, Sampled
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.rollout.telling import rollout_of
from guerdon_services.runtime.scorer import (
    RELEASE,
    Batching,
    GenerateJob,
    Generator,
    NotReady,
    Unscorable,
    Versioned,
)

if TYPE_CHECKING:
    from fastapi import APIRouter

    from guerdon_services.runtime.dispatch import Dispatcher


class RolloutGenerator(Generator[RolloutSettings], Versioned):
    """Samples `n` responses per prompt from the policy, and follows its published weights."""

    name: ClassVar[str] = "rollout"
    version: ClassVar[str] = RELEASE
    settings_type = RolloutSettings

    def __init__(self, settings: RolloutSettings) -> None:
        super().__init__(settings)
        # vLLM makes batches of its own out of what comes when it comes.
        concurrency = engines.concurrency(settings)
        one = Batching(max_items=1, max_wait_ms=0, concurrency=concurrency)
        self.batching = one if concurrency > 1 else self._batches(1)
        self.version_wait_s = settings.version_wait_s
        self._engine: Engine | None = None
        self._tokenizing = threading.Lock()

    def _batches(self, concurrency: int) -> Batching:
        settings = self.settings
        return Batching(
            max_items=settings.max_batch, max_wait_ms=settings.max_wait_ms, concurrency=concurrency
        )

    def open(self) -> None:
        """Load the policy."""
        self._engine = engines.open_engine(self.settings)
        if self._engine.name == "transformers":
            self.batching = self._batches(self.batching.concurrency)

    def close(self) -> None:
        """Release the policy."""
        if self._engine is not None:
            self._engine.close()

    @property
    def engine(self) -> Engine:
        """The engine that runs the policy.

        Raises:
            NotReady: it is still being loaded.
        """
        if self._engine is None:
            raise NotReady("the policy is being loaded")
        return self._engine

    @property
    def model_version(self) -> int | None:
        """The version of the weights that answer now."""
        return None if self._engine is None else self._engine.version

    def versions(self) -> VersionsResponse:
        """The version that answers now, and those in the folder that is followed."""
        return self.engine.versions()

    def refresh(self) -> None:
        """Take up the latest published weights."""
        self.engine.refresh()

    @property
    def served_name(self) -> str:
        """What OpenAI clients call the model."""
        return self.settings.served_name or self.settings.model.resolve().name

    def device_memory(self) -> dict[str, int]:
        """Of the device that samples."""
        return models.device_memory(self.settings.device)

    def collectors(self) -> Sequence[Collector]:
        """What the engine counts."""
        return [_EngineCounts(lambda: self._engine)]

    def details(self) -> dict[str, str]:
        """Which policy, from where, run by what."""
        settings = self.settings
        details = {
            "model": str(settings.model),
            "weights_dir": str(settings.weights_dir or ""),
            "engine": engines.chosen(settings) if self._engine is None else self._engine.name,
            "served_name": self.served_name,
        }
        if self._engine is not None:
            details["state"] = self._engine.state
        context = None if self._engine is None else self._engine.context_length
        return details if context is None else {**details, "context_length": str(context)}

    def routes(self, dispatch: "Dispatcher") -> "APIRouter":
        """OpenAI's routes, and vLLM's own where it is the engine."""
        from guerdon_services.rollout.openai import build_router

        router = build_router(self, dispatch)
        if engines.chosen(self.settings) == "vllm":
            from guerdon_services.rollout.vllm_routes import add_routes

            add_routes(router, self)
        return router

    def generate(self, batch: Sequence[GenerateJob]) -> list[GenerateResult]:
        """One group per job; prompts at fault are `invalid_input`, their neighbours unharmed.

        Nobody waits here for weights still to come: the runtime asks again, while others are served.
        """
        engine = self.engine
        rows: list[Row] = []
        prepared = [self._prepare(job) for job in batch]
        for group in prepared:
            if not isinstance(group, GenerateResult):
                rows.extend(group)
        sampled = iter(engine.generate(rows))
        return [
            group
            if isinstance(group, GenerateResult)
            else self._result(job.sample, group, [next(sampled) for _ in group])
            for job, group in zip(batch, prepared, strict=True)
        ]

    def _prepare(self, job: GenerateJob) -> list[Row] | GenerateResult:
        """The rows of one group, or why there are none."""
        if job.listener is not None and job.listener.told:
            # It was begun, given out in part, and failed: another sample of it would not be what was given out.
            reason = "the group failed after a part of it was given out; ask for it again"
            return GenerateResult(id=job.sample.id, status=Status.UNAVAILABLE, reason=reason)
        version = self.engine.version
        if job.min_version is not None and job.min_version > version:
            reason = f"version {job.min_version} is not published, the latest is {version}"
            return GenerateResult(id=job.sample.id, status=Status.UNAVAILABLE, reason=reason)
        try:
            return self._rows(job)
        except Unscorable as error:
            return GenerateResult(id=job.sample.id, status=Status.INVALID_INPUT, reason=str(error))

    def _rows(self, job: GenerateJob) -> list[Row]:
        sample, sampling = job.sample, job.sampling
        prompt_ids = tuple(self._prompt_ids(sample))
        self._check(prompt_ids, sampling)
        seed = sampling.seed if sample.seed is None else sample.seed
        return [
            Row(
                prompt_ids=prompt_ids,
                max_new_tokens=sampling.max_new_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                stop=tuple(sampling.stop),
                seed=None if seed is None else _row_seed(seed, number),
                stop_token_ids=tuple(sampling.stop_token_ids),
                min_p=sampling.min_p,
                presence_penalty=sampling.presence_penalty,
                frequency_penalty=sampling.frequency_penalty,
                repetition_penalty=sampling.repetition_penalty,
                min_new_tokens=sampling.min_new_tokens,
                ignore_eos=sampling.ignore_eos,
                raw_logprobs=sampling.raw_logprobs,
                listener=job.listener,
                number=number,
            )
            for number in range(sampling.n)
        ]

    def _prompt_ids(self, sample: GenerateSample) -> list[int]:
        engine = self.engine
        with self._tokenizing:  # a tokenizer of transformers is used by one thread at a time
            ids = models.encode_prompt(
                engine.tokenizer, sample.prompt, sample.prompt_token_ids, context=engine.context_length
            )
        size = engine.vocabulary_size
        for index, token in enumerate(ids):
            if not 0 <= token < size:
                raise Unscorable(
                    f"prompt_token_ids[{index}]: token id {token} is outside the vocabulary of {size}"
                )
        return ids

    def _check(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> None:
        for index, stop in enumerate(sampling.stop):
            if not stop:
                raise Unscorable(f"sampling.stop[{index}]: empty; it would stop before the first token")
        size = self.engine.vocabulary_size
        for index, token in enumerate(sampling.stop_token_ids):
            if not 0 <= token < size:
                raise Unscorable(
                    f"sampling.stop_token_ids[{index}]: token id {token} is outside the vocabulary of {size}"
                )
        asked, most = sampling.max_new_tokens, self.settings.max_new_tokens
        if sampling.min_new_tokens > asked:
            raise Unscorable(
                f"sampling.min_new_tokens: {sampling.min_new_tokens} is more than max_new_tokens, {asked}"
            )
        if asked > most:
            raise Unscorable(f"sampling.max_new_tokens: {asked} is more than this service's limit of {most}")
        context = self.engine.context_length
        if context is None or len(prompt_ids) + asked <= context:
            return
        if len(prompt_ids) >= context:
            raise Unscorable(f"prompt: {len(prompt_ids)} tokens leave no room in a context of {context}")
        raise Unscorable(
            f"sampling.max_new_tokens: {len(prompt_ids)} prompt tokens and {asked} new ones are more than "
            f"the model's context of {context}"
        )

    def _result(self, sample: GenerateSample, rows: list[Row], sampled: list[Sampled]) -> GenerateResult:
        rollouts = [rollout_of(one) for one in sampled]
        return GenerateResult(
            id=sample.id, status=Status.OK, rollouts=rollouts, prompt_token_ids=list(rows[0].prompt_ids)
        )


class _EngineCounts(Collector):
    """Nothing until the engine is there."""

    def __init__(self, engine: Callable[[], Engine | None]) -> None:
        self._engine = engine

    def collect(self) -> Iterable[Metric]:
        engine = self._engine()
        if engine is None:
            return []
        name, meaning = "guerdon_rollout_preemptions", "Responses taken out of the KV cache to make room"
        return [CounterMetricFamily(name, meaning, value=engine.preemptions)]

    def describe(self) -> Iterable[Metric]:
        return []


def _row_seed(seed: int, number: int) -> int:
    """The seed of response `number` of a group, independent of how many there are."""
    digest = hashlib.sha256(f"guerdon-rollout-{seed}-{number}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
