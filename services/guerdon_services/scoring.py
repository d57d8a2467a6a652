"""Log-probs of responses under a causal model: the engine below both model scorers.

Hidden states go through the output head only at the positions that predict a response token, in chunks, so the
full (rows, tokens, vocabulary) logits never exist. Rows of one forward have similar lengths. `token_logprobs`
is the seam for whatever makes this faster (prefixes shared within a group, tree masks, varlen attention).

Shape suffixes: B rows, L padded row length, N response tokens of all rows, T response tokens of one row,
D hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from guerdon.functional import chunked_logprobs
from guerdon_services.runtime.scorer import NotReady

#: Logits alive at one time: 4 Mi of them are 16 MiB in fp32.
_LOGITS_PER_CHUNK = 4 * 1024 * 1024

#: What logits may be divided by: quotients and their gradients stay within fp32.
Temperature = Annotated[float, Field(ge=1e-9, le=1e9)]


@dataclass(frozen=True)
class ScoredSequence:
    """A prompt (at least one token) and the response whose tokens are to be scored."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


def token_logprobs(
    model: nn.Module,
    sequences: Sequence[ScoredSequence],
    *,
    temperature: float = 1.0,
    max_tokens: int = 16_384,
) -> list[Tensor]:
    """Log-probs (nats, fp32, shape (T,)) of each sequence's response tokens, without gradients, in order.

    `max_tokens` bounds rows x length of one forward; a batch that does not fit in memory is halved.

    Raises:
        NotReady: memory is too short for a single sequence.
    """
    out: list[Tensor] = [torch.empty(0)] * len(sequences)

    def run(indices: list[int]) -> None:
        rows = batch_logprobs(model, [sequences[i] for i in indices], temperature=temperature)
        for index, row in zip(indices, rows, strict=True):
            out[index] = row.cpu()

    with torch.no_grad():
        for indices in token_batches(sequences, max_tokens):
            halve_when_out_of_memory(run, indices)
    return out


def token_batches(sequences: Sequence[ScoredSequence], max_tokens: int) -> list[list[int]]:
    """Indices of the non-empty responses in batches of similar length, at most `max_tokens` padded tokens each.

    A sequence longer than `max_tokens` gets a batch of its own. The order is fixed by lengths and positions.
    """
    order = [i for i, sequence in enumerate(sequences) if sequence.response_ids]
    order.sort(key=lambda i: (-len(sequences[i]), i))
    batches: list[list[int]] = []
    for index in order:
        if batches and (len(batches[-1]) + 1) * len(sequences[batches[-1][0]]) <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def batch_logprobs(
    model: nn.Module, sequences: Sequence[ScoredSequence], *, temperature: float
) -> list[Tensor]:
    """The same for one batch in one forward; differentiable when gradients are enabled."""
    if not sequences:
        return []
    device = next(model.parameters()).device
    length = max(len(sequence) for sequence in sequences)
    ids_BL = torch.zeros(len(sequences), length, dtype=torch.long)
    valid_BL = torch.zeros(len(sequences), length, dtype=torch.long)
    predicts_BL = torch.zeros(len(sequences), length, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        if not sequence.prompt_ids:
            raise ValueError("a scored sequence needs at least one prompt token")
        ids_BL[row, : len(sequence)] = torch.tensor([*sequence.prompt_ids, *sequence.response_ids])
        valid_BL[row, : len(sequence)] = 1
        # The hidden state at position p predicts the token at p + 1.
        predicts_BL[row, len(sequence.prompt_ids) - 1 : len(sequence) - 1] = True
    targets_N = torch.tensor([token for sequence in sequences for token in sequence.response_ids])
    hidden_BLD = _hidden_states(model, ids_BL.to(device), valid_BL.to(device))
    head, vocabulary = output_head(model)
    logps_N = chunked_logprobs(
        hidden_BLD[predicts_BL.to(device)],
        targets_N.to(device),
        head,
        temperature=temperature,
        chunk=max(1, _LOGITS_PER_CHUNK // vocabulary),
    )
    return list(logps_N.split([len(sequence.response_ids) for sequence in sequences]))


def _hidden_states(model: nn.Module, ids_BL: Tensor, valid_BL: Tensor) -> Tensor:
    positions_BL = torch.arange(ids_BL.shape[1], device=ids_BL.device).expand_as(ids_BL)
    trunk = cast(Callable[..., Any], cast(Any, model).base_model)
    return trunk(
        input_ids=ids_BL, attention_mask=valid_BL, position_ids=positions_BL, use_cache=False
    ).last_hidden_state


def output_head(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], int]:
    """The function from hidden states to logits, as the model's own forward applies it, and the vocabulary size.

    Raises:
        ValueError: the architecture rescales its logits in a way not known here.
    """
    weight_head = cast(Any, model).get_output_embeddings()
    config = cast(Any, model).config.get_text_config()
    for unknown in ("logit_scale", "logits_scaling"):
        if getattr(config, unknown, None) not in (None, 1, 1.0):
            raise ValueError(f"models with {unknown} in their configuration are not supported")
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    if cap is None:
        return weight_head, weight_head.weight.shape[0]
    return lambda hidden: cap * torch.tanh(weight_head(hidden) / cap), weight_head.weight.shape[0]


def halve_when_out_of_memory(run: Callable[[list[int]], None], indices: list[int]) -> None:
    """Call `run` on the batch, and on its halves when it does not fit in memory.

    Raises:
        NotReady: not even one sequence fits.
    """
    try:
        run(indices)
        return
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        if len(indices) == 1:
            raise NotReady("not enough memory to score a sequence of this length") from error
    # Outside of the handler, whose traceback keeps the failed batch's tensors alive.
    middle = len(indices) // 2
    halve_when_out_of_memory(run, indices[:middle])
    halve_when_out_of_memory(run, indices[middle:])


def is_out_of_memory(error: BaseException) -> bool:
    """True for CUDA's out-of-memory error and for that of torch's CPU allocator, which is a bare RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
