"""Sampling with vLLM: groups go in as they come, weights change under a stated policy, a dead engine is started again.

The engine lives on an event loop in a thread of its own; the threads of the runtime hand their groups over and wait.
What a caller sees of an update or of a death is that the answer takes longer: the group is sampled again from its
beginning. What a listener has heard of a group stands: what is missing is sampled by the same version, or the group
fails.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import structlog
from transformers import PreTrainedTokenizerBase

from guerdon.types import VersionsResponse
from guerdon_services import models
from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.given import Given
from guerdon_services.rollout.engines.growing import Ending, Growing, ending
from guerdon_services.rollout.engines.stopping import StopStrings, decode, end_tokens
from guerdon_services.rollout.engines.vllm_hold import Hold
from guerdon_services.rollout.engines.vllm_updates import EngineDied, Updates
from guerdon_services.rollout.engines.vllm_weights import Followed
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.progress import report_progress
from guerdon_services.runtime.scorer import NotReady, Unscorable

if TYPE_CHECKING:
    from guerdon_services.rollout.engines.vllm_core import Core

_log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A group under which the engine died so often is given up: it may be what kills it.
_LIVES = 3
#: Seconds between two looks for new weights or a dead engine, and at whether a group moves.
_LOOK_EVERY_S, _SIGN_EVERY_S = 0.2, 2.0
#: Seconds between two looks whether the KV cache has room.
_ROOM_EVERY_S = 0.02


class VllmEngine:
    """Runs any model of vLLM, on CPUs and GPUs alike.

    `start` starts an engine with the weights of a folder: vLLM's where it is not given.

    Raises:
        RuntimeError: vLLM cannot run the model here.
    """

    name = "vllm"

    def __init__(self, settings: RolloutSettings, start: "Callable[[Path], Core] | None" = None) -> None:
        if start is None:
            from guerdon_services.rollout.engines.vllm_core import Core

            start = partial(Core, settings)
        self._followed = Followed(settings.model, settings.weights_dir, max_rank=settings.max_lora_rank)
        model = self._followed.source.model
        self._config = json.loads((model / "config.json").read_text())
        self._tokenizer = models.load_tokenizer(model)
        self._end_tokens = _end_tokens(model, self._config, self._tokenizer)
        self._updates = Updates(settings, self._followed, start)
        self._hold = Hold(self._updates, self._followed, settings.update_limit_s)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()
        try:
            self._wait(self._updates.start())
        except Exception as error:
            self.close()
            raise RuntimeError(f"vLLM does not run {self._followed.path}: {error}") from error
        self._context_length = self._updates.core.context_length
        asyncio.run_coroutine_threadsafe(self._watch(), self._loop)

    @property
    def version(self) -> int:
        """The version of the weights that answer now."""
        return self._followed.version

    @property
    def state(self) -> str:
        """What serves, and what went wrong last."""
        return self._updates.state

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer."""
        return self._tokenizer

    @property
    def vocabulary_size(self) -> int:
        """What the model's configuration says."""
        return int((self._config.get("text_config") or self._config)["vocab_size"])

    @property
    def context_length(self) -> int | None:
        """What vLLM was started for."""
        return self._context_length

    @property
    def preemptions(self) -> int:
        """What vLLM counts, of all engines that there were."""
        return self._updates.preemptions

    @property
    def hold(self) -> Hold:
        """What a trainer does to the engine; for what runs on the engine's loop (`call`)."""
        return self._hold

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of what runs on the engine's loop; for callers on a loop of their own."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    @property
    def pids(self) -> list[int]:
        """The engine's processes."""
        return self._updates.core.pids

    def versions(self) -> VersionsResponse:
        """The version that serves, and those in the folder that is followed."""
        return self._followed.versions()

    def refresh(self) -> None:
        """Take up the latest published weights, if there are newer ones."""
        self._wait(self._updates.take_up())

    def generate(self, rows: Sequence[Row]) -> list[Sampled]:
        """One response per row, in order; called from many threads."""
        return self._wait(self._generate(rows))

    def close(self) -> None:
        """End the engine's processes; what still waits for them is cancelled."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._followed.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._updates.stop()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of what runs on the loop; tells the runtime's watchdog of each step of the engine."""
        future, steps = asyncio.run_coroutine_threadsafe(work, self._loop), -1
        while True:
            try:
                return future.result(_SIGN_EVERY_S)
            except TimeoutError:
                if future.done():
                    raise
            if self._updates.steps != steps:
                steps = self._updates.steps
                report_progress()

    async def _watch(self) -> None:
        error = ""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self._updates.revive()
                await self._updates.take_up()
                error = ""
            except (
                Exception
            ) as problem:  # a folder that is away for a while: the engine goes on with what it has
                if str(problem) != error:
                    _log.warning(
                        "new weights cannot be looked for", error=f"{type(problem).__name__}: {problem}"
                    )
                error = str(problem)

    async def _generate(self, rows: Sequence[Row]) -> list[Sampled]:
        if not rows:
            return []
        given = Given()
        for _ in range(_LIVES):
            try:
                return await self._group(rows, given)
            except EngineDied:
                self._updates.died()
        raise NotReady(f"the engine died {_LIVES} times under this group")

    async def _group(self, rows: Sequence[Row], given: Given) -> list[Sampled]:
        """All rows, begun by one version: again after an update that aborted some of them or came in between."""
        while True:
            core = await self._updates.serving()
            while core.gauge.full:
                await asyncio.sleep(_ROOM_EVERY_S)
                core = await self._updates.serving()
            missing = given.missing(rows, self.version)
            with self._updates.running():
                asked = (self._sample(core, ask, given) for ask in _merged(missing))
                answers = await _unless_gone(rows, asyncio.gather(*asked, return_exceptions=True))
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            sampled = [one for several in cast(list[list[Sampled | None]], answers) for one in several]
            whole = [one for one in sampled if one is not None]
            if len(whole) == len(missing) and len({one.version for one in whole}) <= 1:
                return given.completed(dict(zip(missing, whole, strict=True)))

    async def _sample(self, core: "Core", ask: "_Ask", given: Given) -> list[Sampled | None]:
        """The responses to one row; None for one that was aborted."""
        row = ask.row
        if row.raw_logprobs and len(row.prompt_ids) + row.max_new_tokens >= core.context_length:
            raise Unscorable("sampling.raw_logprobs: leave one token of the context free to have them")
        if row.listener is not None:
            return [await self._heard(core, ask, given)]
        outputs = await core.sample(row, ask.n, self._end_tokens)
        return [await self._sampled(core, row, ending(output)) for output in outputs]

    async def _heard(self, core: "Core", ask: "_Ask", given: Given) -> Sampled | None:
        """The response to a row that somebody listens to."""
        growing = given.half(ask.place) or Growing(ask.row, self._tokenizer, self.version)
        sampled: Sampled | None = None
        async with aclosing(core.grow(growing.begin(), self._end_tokens)) as outputs:
            async for output in outputs:
                news = growing.take(output, self.version)
                if isinstance(news, Ending):
                    sampled = await self._sampled(core, ask.row, news)
                    break
                if news.ids and growing.given_as_it_grows:
                    given.begun(ask.place, growing)
                    growing.give(news)
        if sampled is not None:
            given.ended(ask.place, sampled)
            growing.end(sampled)
        return sampled

    async def _sampled(self, core: "Core", row: Row, end: Ending) -> Sampled | None:
        """The response that ended so; None if it was aborted."""
        if end.finish_reason == "abort":
            return None
        if end.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a response with {end.finish_reason!r}")
        token_ids, logprobs = end.tokens.ids, end.tokens.logprobs
        first, *_, last = [version for version in end.versions for _ in range(2)]
        raw: list[float] = []
        if row.raw_logprobs and first == last:
            at_one = row.temperature in (0, 1)
            raw = logprobs if at_one else await core.score(row.prompt_ids, token_ids)
        return Sampled(
            token_ids=token_ids,
            logprobs=logprobs,
            text=self._text(row, token_ids, end.stop_reason),
            finish_reason=end.finish_reason,
            version=first,
            raw_logprobs=raw,
            last_version=None if first == last else last,
        )

    def _text(self, row: Row, token_ids: list[int], stop_reason: int | str | None) -> str:
        if isinstance(stop_reason, str):
            cut = StopStrings(self._tokenizer, row.stop, ignored=row.min_new_tokens).cut(token_ids)
            if cut is not None:
                return cut
        ends = isinstance(stop_reason, int) and token_ids[-1] == stop_reason
        return decode(self._tokenizer, token_ids[:-1] if ends else token_ids)


@dataclass(frozen=True)
class _Ask:
    """One request to vLLM: `n` responses to a row, which is number `place` of the call."""

    place: int
    row: Row
    n: int = 1


def _merged(rows: Mapping[int, Row]) -> list[_Ask]:
    """Neighbours that are the same and have no seed become one request: vLLM computes their prompt once.

    Not where somebody listens: vLLM gives out nothing of such a request before all of it is there. Nor greedy ones,
    which it refuses.
    """
    merged: list[_Ask] = []
    for place, row in rows.items():
        alone = row.seed is not None or row.listener is not None or row.temperature == 0
        if merged and not alone and merged[-1].row == row:
            merged[-1] = replace(merged[-1], n=merged[-1].n + 1)
        else:
            merged.append(_Ask(place, row))
    return merged


async def _unless_gone(rows: Sequence[Row], work: asyncio.Future[T]) -> T:
    """The result of `work`, which is cancelled once nobody listens to any of the rows any more.

    Raises:
        NotReady: it was cancelled.
    """
    if any(row.listener is None for row in rows):
        return await work
    try:
        while not work.done():
            if all(row.listener is not None and row.listener.gone for row in rows):
                raise NotReady("nobody waits for the group any more")
            await asyncio.wait([work], timeout=_LOOK_EVERY_S)
        return work.result()
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _end_tokens(folder: Path, config: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids after which a response is complete, found where transformers' `generate` looks for them."""
    generation = folder / "generation_config.json"
    named = json.loads(generation.read_text()) if generation.is_file() else config
    return end_tokens(named.get("eos_token_id"), tokenizer)
