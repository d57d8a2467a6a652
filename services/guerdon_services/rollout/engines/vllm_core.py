"""One vLLM engine with its processes: how it is started, asked, given other weights, and ended.

Everything here runs on one event loop. vLLM's own names appear in this file, `vllm_worker` and nowhere else.
"""

# pyright: reportMissingImports=false
import os
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from guerdon_services.rollout.engine import Row
from guerdon_services.rollout.engines.guard import Guard
from guerdon_services.rollout.engines.vllm_updates import EngineDied, Pause
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.runtime.scorer import Unscorable

#: Keys and values on a CPU, where nothing else is said: vLLM would take most of the machine's memory.
_CPU_KV_BYTES = 1 << 30
#: From this share of the KV cache on, new groups wait: vLLM would take running ones out to make room.
_FULL = 0.9
#: The largest ranks of adapters that vLLM can be started for.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
#: The coldest temperature that vLLM samples at.
_COLDEST = 0.01
#: vLLM's number of the one adapter that serves.
_ADAPTER = 1


class Core:
    """A vLLM engine that runs, or has died (`dead`).

    Raises:
        RuntimeError: vLLM cannot run the model here.
    """

    def __init__(self, settings: RolloutSettings, path: Path) -> None:
        self.gauge = _Gauge()
        self._guard = Guard()
        try:
            with self._guard.marking():
                llm = _start(settings, path, self.gauge)
        except BaseException:
            self._guard.close()
            raise
        self._llm: AsyncLLM | None = llm
        #: Tokens of the longest prompt and response together.
        self.context_length: int = llm.model_config.max_model_len
        manager: Any = llm.engine_core.resources.engine_manager  # type: ignore[attr-defined]
        self.pids: list[int] = [process.pid for process in manager.processes]
        self._adapter: LoRARequest | None = None

    @property
    def dead(self) -> bool:
        """Whether the engine's processes have ended."""
        return self._llm is None or self._llm.errored

    @property
    def llm(self) -> AsyncLLM:
        """vLLM's own object.

        Raises:
            EngineDied: it was ended.
        """
        if self._llm is None:
            raise EngineDied("the engine was ended")
        return self._llm

    async def ready(self, version: int) -> None:
        """Prepare the workers and sample one token, the first of which compiles what there is to compile.

        Raises:
            EngineDied, RuntimeError: the model does not run here.
        """
        await self.llm.collective_rpc("guerdon_ready")
        await self.llm.update_weight_version(str(version))
        await self.sample(Row((1,), 1, 0.0, 1.0, 0, (), 0), 1, frozenset())

    async def sample(self, row: Row, n: int, end_tokens: frozenset[int]) -> list[CompletionOutput]:
        """`n` responses to one prompt, in order.

        Raises:
            EngineDied: the engine died under it.
        """
        output = await self._ask(row.prompt_ids, parameters(row, n, end_tokens))
        return sorted(output.outputs, key=lambda one: one.index)

    async def grow(self, row: Row, end_tokens: frozenset[int]) -> AsyncGenerator[CompletionOutput]:
        """What one response grows by, as it is sampled; where its listener wants it whole, all at once.

        Raises:
            EngineDied: the engine died under it.
        """
        asked = parameters(row, 1, end_tokens)
        if row.listener is not None and row.listener.tokens:
            asked.output_kind = RequestOutputKind.DELTA
        async with aclosing(self._parts(row.prompt_ids, asked)) as parts:
            async for part in parts:
                yield part.outputs[0]

    async def score(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> list[float]:
        """Log-probs (nats) of `token_ids` after a prompt, at temperature 1: one forward.

        Raises:
            EngineDied: the engine died under it.
        """
        ids = [*prompt_ids, *token_ids]
        parameters = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
        parameters.output_kind = RequestOutputKind.FINAL_ONLY
        output = await self._ask(ids, parameters)
        assert output.prompt_logprobs is not None
        scored: list[float] = []
        for token, position in zip(token_ids, list(output.prompt_logprobs)[len(prompt_ids) :], strict=True):
            assert position is not None
            scored.append(position[token].logprob)
        return scored

    async def _ask(self, prompt_ids: Sequence[int], parameters: SamplingParams) -> RequestOutput:
        output: RequestOutput | None = None
        async for part in self._parts(prompt_ids, parameters):
            output = part
        assert output is not None
        return output

    async def _parts(
        self, prompt_ids: Sequence[int], parameters: SamplingParams
    ) -> AsyncGenerator[RequestOutput]:
        prompt: Any = {"prompt_token_ids": list(prompt_ids)}
        answers: Any = self.llm.generate(prompt, parameters, uuid.uuid4().hex, lora_request=self._adapter)
        try:
            async with aclosing(answers) as parts:
                async for part in parts:
                    yield part
        except EngineDeadError as error:
            raise EngineDied("the engine died") from error
        except VLLMValidationError as error:
            raise Unscorable(f"sampling: {error}") from error

    async def pause(self, how: Pause) -> None:
        """Sample no more; running requests end first, are aborted, or wait for `resume`."""
        await self.llm.pause_generation(mode=how, clear_cache=how != "keep")

    async def reload(self, path: Path, version: int, *, keep: bool) -> None:
        """Read the weights of a Hugging Face folder; call while paused. Nothing computed by the old ones stays.

        With `keep`, requests that wait compute their keys and values anew, and go on from where they were.
        """
        await self.llm.collective_rpc("reload_weights", kwargs={"weights_path": str(path)})
        await self.forget(version, keep=keep)

    async def adapt(self, adapter: Path | None, version: int, *, keep: bool) -> None:
        """Put another adapter on the model, or none; call while paused. `keep` is as for `reload`."""
        if adapter is None:
            if self._adapter is not None:
                await self.llm.remove_lora(_ADAPTER)
            self._adapter = None
        else:
            # In place: requests that wait go on with it.
            name, path = f"version {version}", str(adapter)
            await self.llm.add_lora(LoRARequest(name, _ADAPTER, path, load_inplace=True))
            self._adapter = LoRARequest(name, _ADAPTER, path)
        await self._call_it(version, keep=keep)

    async def forget(self, version: int, *, keep: bool = True) -> None:
        """Nothing of other weights stays, nor of what they computed; those that are loaded are called `version`."""
        await self.llm.collective_rpc("guerdon_reloaded")
        # With a whole model vLLM gives up the adapter.
        self._adapter = None
        await self._call_it(version, keep=keep)

    async def _call_it(self, version: int, *, keep: bool) -> None:
        if not await self.llm.reset_prefix_cache(reset_running_requests=keep):
            raise RuntimeError("vLLM did not give up its prefix cache")
        await self.llm.update_weight_version(str(version))

    async def resume(self) -> None:
        """Sample again."""
        await self.llm.resume_generation()

    def stop(self) -> None:
        """End the engine's processes."""
        # Let go of here: vLLM ends itself once more when it is collected, and at exit would find its own modules gone.
        llm, self._llm = self._llm, None
        if llm is not None:
            # What waits for answers of an engine that is ended alive would wait for ever.
            llm.output_processor.propagate_error(EngineDeadError())
            with suppress(Exception):  # a dead engine may fail at that in many ways; what counts is below
                llm.shutdown(timeout=5)
        self._guard.close()


class _Gauge(StatLoggerBase):
    """What vLLM says of itself after each step."""

    def __init__(self) -> None:
        #: Counts steps: a sign of life.
        self.steps = 0
        self.preemptions = 0
        self.kv_usage = 0.0
        self.running = 0

    @property
    def full(self) -> bool:
        """Whether a new group would drive out one that runs."""
        return self.running > 0 and self.kv_usage >= _FULL

    def record(self, scheduler_stats: Any, iteration_stats: Any, *_: Any, **__: Any) -> None:
        self.steps += 1
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is not None:
            self.kv_usage, self.running = scheduler_stats.kv_cache_usage, scheduler_stats.num_running_reqs

    def log_engine_initialized(self) -> None:
        pass


def _start(settings: RolloutSettings, path: Path, gauge: _Gauge) -> AsyncLLM:
    for name, value in _environment(settings).items():
        os.environ.setdefault(name, value)
    arguments = AsyncEngineArgs(**(_arguments(settings, path) | settings.vllm))  # type: ignore[arg-type]
    config = arguments.create_engine_config()
    return AsyncLLM.from_vllm_config(
        config, stat_loggers=[lambda *_: gauge], disable_log_stats=True, enable_log_requests=False
    )


def _environment(settings: RolloutSettings) -> Mapping[str, str]:
    """What vLLM reads from the environment; what is set already stands."""
    variables = {
        # The service has threads: a forked child might wait for ever for a lock that one of them held.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # The sampler whose log-probs `vllm_worker` knows.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }
    if current_platform.is_cpu():
        variables |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(settings.threads)}
    return variables


def _arguments(settings: RolloutSettings, path: Path) -> dict[str, JsonValue]:
    kv_bytes = None if settings.kv_cache_mb is None else settings.kv_cache_mb << 20
    if current_platform.is_cpu():
        kv_bytes = kv_bytes or _CPU_KV_BYTES
    adapters: dict[str, JsonValue] = {}
    if settings.max_lora_rank:
        rank = next(rank for rank in _RANKS if rank >= settings.max_lora_rank)
        adapters = {"enable_lora": True, "max_lora_rank": rank, "max_loras": 1}
    return adapters | {
        "model": str(path),
        "dtype": settings.dtype,
        "max_num_seqs": settings.max_batch,
        "kv_cache_memory_bytes": kv_bytes,
        # As long as keys and values fit into, up to what the model was made for.
        "max_model_len": -1,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",
        "worker_extension_cls": "guerdon_services.rollout.engines.vllm_worker.WorkerExtension",
        # Compiling a graph takes a CPU minutes.
        "enforce_eager": current_platform.is_cpu(),
    }


def parameters(row: Row, n: int, end_tokens: frozenset[int]) -> SamplingParams:
    """A row's parameters in vLLM's words.

    Raises:
        Unscorable: vLLM does not sample so.
    """
    if 0 < row.temperature < _COLDEST:
        # It would take this one in its place.
        raise Unscorable(f"sampling.temperature: vLLM samples at 0, or at {_COLDEST} and more")
    try:
        return _parameters(row, n, end_tokens)
    except VLLMValidationError as error:
        raise Unscorable(f"sampling: {error}") from error


def _parameters(row: Row, n: int, end_tokens: frozenset[int]) -> SamplingParams:
    stop_ids = set(row.stop_token_ids) | (frozenset() if row.ignore_eos else end_tokens)
    return SamplingParams(
        n=n,
        temperature=row.temperature,
        top_p=row.top_p,
        top_k=row.top_k,
        min_p=row.min_p,
        presence_penalty=row.presence_penalty,
        frequency_penalty=row.frequency_penalty,
        repetition_penalty=row.repetition_penalty,
        seed=row.seed,
        max_tokens=row.max_new_tokens,
        min_tokens=row.min_new_tokens,
        stop=list(row.stop) or None,
        # Named one by one, so that both engines end at the same tokens.
        stop_token_ids=sorted(stop_ids),
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        # Text is needed to find stop strings, and decoded by us otherwise.
        detokenize=bool(row.stop),
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
