"""From hidden states to the log-probs of given tokens; the full logits never exist.

Shape suffixes: N positions, n positions of one chunk, D hidden size, V vocabulary.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from guerdon.functional import chunked_logprobs

#: Logits alive at one time: 8 Mi of them are 32 MiB in fp32. Fewer make the products slower.
LOGITS_PER_CHUNK = 8 * 1024 * 1024


def target_logprobs(model: nn.Module, hidden_ND: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
    """Log-probs (nats, fp32, shape (N,)) of the targets; differentiable when gradients are enabled."""
    head, vocabulary = output_head(model)
    chunk = max(1, LOGITS_PER_CHUNK // vocabulary)
    if not torch.is_grad_enabled() and isinstance(head, nn.Linear):
        return _in_one_buffer(head, hidden_ND, targets_N, temperature, chunk)
    return chunked_logprobs(hidden_ND, targets_N, head, temperature=temperature, chunk=chunk)


def _in_one_buffer(
    head: nn.Linear, hidden_ND: Tensor, targets_N: Tensor, temperature: float, chunk: int
) -> Tensor:
    """The same without gradients: all chunks in one place, since new memory costs as much as the arithmetic."""
    count = len(targets_N)
    logps_N = torch.empty(count, dtype=torch.float32, device=hidden_ND.device)
    kept_nV = hidden_ND.new_empty(min(chunk, count), head.out_features)
    for start in range(0, count, chunk):
        hidden_nD, targets_n = hidden_ND[start : start + chunk], targets_N[start : start + chunk]
        product_nV = kept_nV[: len(targets_n)]
        torch.mm(hidden_nD, head.weight.t(), out=product_nV)
        if head.bias is not None:
            product_nV += head.bias
        logits_nV = product_nV.float()
        if temperature != 1.0:
            logits_nV /= temperature
        chosen_n = logits_nV.gather(1, targets_n.unsqueeze(1)).squeeze(1)
        largest_n1 = logits_nV.amax(1, keepdim=True)
        logits_nV -= largest_n1
        logps_N[start : start + chunk] = chosen_n - largest_n1.squeeze(1) - logits_nV.exp_().sum(1).log()
    return logps_N


def output_head(model: nn.Module) -> tuple[Callable[[Tensor], Tensor], int]:
    """The function from hidden states to logits, and the vocabulary size.

    It is what nearly every model's own forward applies; `support.check_head` finds the others.
    """
    weight_head = cast(Any, model).get_output_embeddings()
    config = cast(Any, model).config.get_text_config()
    cap: float | None = getattr(config, "final_logit_softcapping", None)
    if cap is None:
        return weight_head, weight_head.weight.shape[0]
    return lambda hidden: cap * torch.tanh(weight_head(hidden) / cap), weight_head.weight.shape[0]
