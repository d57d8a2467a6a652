"""Sampling with transformers: a batched decode loop over its key-value cache.

Shapes: U different prompts, B rows, T tokens, V vocabulary. Prompts are padded on the left, with explicit
position ids; equal prompts are computed once; a row that has finished leaves the batch.
"""

import inspect
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedTokenizerBase

from guerdon.types import VersionsResponse
from guerdon_services import models
from guerdon_services.rollout.engine import Row, Sampled
from guerdon_services.rollout.engines.kv_cache import roomy_cache
from guerdon_services.rollout.engines.sampling import Sampler
from guerdon_services.rollout.engines.stopping import StopStrings, decode, end_tokens
from guerdon_services.rollout.settings import RolloutSettings
from guerdon_services.rollout.telling import Teller
from guerdon_services.runtime.progress import report_progress

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TransformersEngine:
    """Runs any causal model of transformers, on CPU or GPU; one call at a time."""

    name = "transformers"
    #: A batch that was begun has its memory.
    preemptions = 0

    def __init__(self, settings: RolloutSettings) -> None:
        models.set_threads(settings.threads)
        self._settings = settings
        self._turn = threading.Lock()
        self._followed = models.FollowedModel(settings.model, settings.weights_dir, device=settings.device)
        self._model: Any = self._followed.model
        self._model.to(_DTYPES[settings.dtype])
        self._device = torch.device(settings.device)
        self._eos = _end_tokens(self._model, self.tokenizer)
        parameters = inspect.signature(self._model.forward).parameters
        # transformers 5.24 renamed the argument.
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"

    @property
    def version(self) -> int:
        """The version of the weights that answer now."""
        return self._followed.version

    @property
    def state(self) -> str:
        """What serves, and what went wrong last."""
        serves, refusal = f"version {self.version} serves", self._followed.refusal
        return f"{serves}; {refusal}" if refusal else serves

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The policy's tokenizer."""
        return self._followed.tokenizer

    @property
    def vocabulary_size(self) -> int:
        """Rows of the input embedding."""
        return self._followed.language_model.vocabulary_size

    @property
    def context_length(self) -> int | None:
        """What the model's configuration says."""
        return self._followed.language_model.context_length

    def versions(self) -> VersionsResponse:
        """The loaded version, and those in the folder that is followed."""
        return self._followed.versions()

    def refresh(self) -> None:
        """Take up the latest published weights, if there are newer ones."""
        with self._turn:
            self._followed.refresh()

    def close(self) -> None:
        """Download no more."""
        self._followed.close()

    @torch.inference_mode()
    def generate(self, rows: Sequence[Row]) -> list[Sampled]:
        """One response per row, in order."""
        sampled: dict[int, Sampled] = {}
        with self._turn:
            for indices in self._batches(rows):
                for index, one in zip(indices, self._decode([rows[i] for i in indices]), strict=True):
                    sampled[index] = one
        return [sampled[index] for index in range(len(rows))]

    def _batches(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        """Rows of similar prompt lengths together, within the limits on rows and tokens."""
        settings = self._settings
        order = sorted(
            range(len(rows)), key=lambda i: (len(rows[i].prompt_ids), rows[i].prompt_ids), reverse=True
        )
        batch: list[int] = []
        width = 0
        for index in order:
            wider = max(width, len(rows[index].prompt_ids) + rows[index].max_new_tokens)
            full = len(batch) == settings.max_batch or wider * (len(batch) + 1) > settings.max_tokens
            if batch and full:
                yield batch
                batch, wider = [], len(rows[index].prompt_ids) + rows[index].max_new_tokens
            batch.append(index)
            width = wider
        if batch:
            yield batch

    def _decode(self, rows: Sequence[Row]) -> list[Sampled]:
        """Sample one batch: prompts first, then a token of every unfinished row per step."""
        ends = [
            frozenset(row.stop_token_ids) | (frozenset() if row.ignore_eos else self._eos) for row in rows
        ]
        progress = [
            _Progress(row, self.tokenizer, end, self.version) for row, end in zip(rows, ends, strict=True)
        ]
        logits_BV, state = self._prefill(rows)
        # As vLLM does: the least tokens hold no end token, not even one that would be ignored.
        early = [end | self._eos | end_tokens(None, self.tokenizer) for end in ends]
        sampler = Sampler(rows, early, logits_BV.shape[-1], self._device)
        active = list(progress)
        while True:
            tokens_B, logps_B, raws_B = sampler.draw(logits_BV)
            report_progress()
            drawn = zip(tokens_B.tolist(), logps_B.tolist(), raws_B.tolist(), strict=True)
            for one, (token, logp, raw) in zip(active, drawn, strict=True):
                one.add(token, logp, raw)
            going = _closed_up([one.finish_reason is None for one in active])
            if not going:
                return [one.result() for one in progress]
            if len(going) < len(active):
                kept_B = torch.tensor(going, device=self._device)
                active = [active[index] for index in going]
                tokens_B = tokens_B[kept_B]
                sampler.keep(kept_B)
                state.keep(kept_B)
            logits_BV = self._step(tokens_B, state)

    def _prefill(self, rows: Sequence[Row]) -> tuple[Tensor, "_State"]:
        """Logits after each row's prompt, and the state to go on from; a group's prompt is computed once."""
        prompts = list(dict.fromkeys(row.prompt_ids for row in rows))
        width = max(map(len, prompts))
        ids_UT = torch.zeros(len(prompts), width, dtype=torch.long)
        mask_UT = torch.zeros(len(prompts), width, dtype=torch.long)
        for number, prompt in enumerate(prompts):
            ids_UT[number, width - len(prompt) :] = torch.tensor(prompt)
            mask_UT[number, width - len(prompt) :] = 1
        state = _State(
            cache=roomy_cache(self._model.config),
            # Without padding the attention needs no mask, and is faster.
            mask_BT=None if bool(mask_UT.all()) else mask_UT.to(self._device),
            position_B=mask_UT.sum(-1).to(self._device),
        )
        positions_UT = (mask_UT.cumsum(-1) - 1).clamp(min=0).to(self._device)
        logits_UV = self._forward(ids_UT.to(self._device), positions_UT, state)
        number_of = {prompt: number for number, prompt in enumerate(prompts)}
        rows_B = torch.tensor([number_of[row.prompt_ids] for row in rows], device=self._device)
        state.keep(rows_B)
        return logits_UV[rows_B], state

    def _step(self, tokens_B: Tensor, state: "_State") -> Tensor:
        """Logits after one more token of each row."""
        if state.mask_BT is not None:
            state.mask_BT = nn.functional.pad(state.mask_BT, (0, 1), value=1)
        logits_BV = self._forward(tokens_B[:, None], state.position_B[:, None], state)
        state.position_B = state.position_B + 1
        return logits_BV

    def _forward(self, ids_BT: Tensor, positions_BT: Tensor, state: "_State") -> Tensor:
        output = self._model(
            input_ids=ids_BT,
            attention_mask=state.mask_BT,
            position_ids=positions_BT,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: state.cache},
        )
        return output.logits[:, -1]


def _closed_up(going: Sequence[bool]) -> list[int]:
    """The rows that go on, where each hole is filled by the last of them, so that few rows change places."""
    rows = [index for index, goes in enumerate(going) if goes]
    tail = [index for index in rows if index >= len(rows)]
    return [index if going[index] else tail.pop() for index in range(len(rows))]


class _State:
    """What the model remembers of the rows being decoded."""

    def __init__(self, cache: DynamicCache, mask_BT: Tensor | None, position_B: Tensor) -> None:
        self.cache = cache
        self.mask_BT = mask_BT
        self.position_B = position_B

    def keep(self, rows_B: Tensor) -> None:
        """Go on with these rows; an index may repeat."""
        self.cache.batch_select_indices(rows_B)
        self.position_B = self.position_B[rows_B]
        if self.mask_BT is not None:
            self.mask_BT = self.mask_BT[rows_B]


class _Progress:
    """One row's response so far; `ends` are the ids that complete it."""

    def __init__(
        self, row: Row, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int], version: int
    ) -> None:
        self._row = row
        self._tokenizer = tokenizer
        self._ends = ends
        self._version = version
        self._stop = StopStrings(tokenizer, row.stop, ignored=row.min_new_tokens)
        self._teller = None if row.listener is None else Teller(row, tokenizer, version)
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._raw_logprobs: list[float] = []
        self._text: str | None = None
        self.finish_reason: Literal["stop", "length"] | None = None

    def add(self, token: int, logprob: float, raw_logprob: float) -> None:
        """Take the next token and see whether the response ends with it."""
        self._token_ids.append(token)
        self._logprobs.append(logprob)
        self._raw_logprobs.append(raw_logprob)
        written = len(self._token_ids)
        if written > self._row.min_new_tokens and token in self._ends:
            self._text = decode(self._tokenizer, self._token_ids[:-1])
        else:
            self._text = self._stop.cut(self._token_ids)
        if self._text is not None:
            self.finish_reason = "stop"
        elif written == self._row.max_new_tokens:
            self.finish_reason = "length"
        if self._teller is not None:
            self._tell(self._teller, token, logprob)

    def _tell(self, teller: Teller, token: int, logprob: float) -> None:
        if teller.gone:
            self.finish_reason = self.finish_reason or "length"  # whatever it says, nobody hears it
        elif self.finish_reason is None:
            teller.grew([token], [logprob])
        else:
            teller.ended(self.result())

    def result(self) -> Sampled:
        """The finished response."""
        assert self.finish_reason is not None
        return Sampled(
            token_ids=self._token_ids,
            logprobs=self._logprobs,
            text=decode(self._tokenizer, self._token_ids) if self._text is None else self._text,
            finish_reason=self.finish_reason,
            version=self._version,
            raw_logprobs=self._raw_logprobs if self._row.raw_logprobs else [],
        )


def _end_tokens(model: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """The ids after which a response is complete: those of the generation config, else the tokenizer's."""
    generation = model.generation_config
    return end_tokens(None if generation is None else generation.eos_token_id, tokenizer)
