"""From hidden states to log-probs of given tokens and entropies; the full logits never exist.

Logits are made a chunk at a time, in one place, and made again for the gradient. Shape suffixes: N positions, n
positions of one chunk, D hidden size, V vocabulary.
"""

# pyright: standard

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

#: Logits alive at one time: 8 Mi of them are 32 MiB in fp32. Fewer make the products slower.
LOGITS_PER_CHUNK = 8 * 1024 * 1024


def target_logprobs(
    model: nn.Module, hidden_ND: Tensor, targets_N: Tensor, temperature: float, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of the targets and the entropies of the distributions they are from (nats, fp32), each (N,).

    Both are differentiable when gradients are enabled; without `entropy` there are none.
    """
    head, vocabulary = output_head(model)
    rows = max(1, LOGITS_PER_CHUNK // vocabulary)
    if not isinstance(head, nn.Linear):
        return _through(head, hidden_ND, targets_N, temperature, entropy, rows)
    chunks = _Chunks(_compute_dtype(head.weight), temperature, rows)
    if torch.is_grad_enabled():
        logps_N, entropy_N = cast(Any, _LinearHead).apply(
            hidden_ND, head.weight, head.bias, targets_N, chunks, entropy
        )
        return logps_N, entropy_N if entropy else None
    logps_N, entropy_N, _ = chunks.logprobs(hidden_ND, head.weight, head.bias, targets_N, entropy)
    return logps_N, entropy_N if entropy else None


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


def _compute_dtype(weight_VD: Tensor) -> torch.dtype:
    """What the head's products take: on a CPU fp32, whose bf16 is the slower; elsewhere what the model runs in."""
    kind = weight_VD.device.type
    if kind == "cpu":
        return torch.float32
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight_VD.dtype


@dataclass(frozen=True)
class _Chunks:
    """The arithmetic on `rows` positions at a time. Log-probs and gradients of logits are fp32 throughout."""

    dtype: torch.dtype
    temperature: float
    rows: int

    def logprobs(
        self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, entropy: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, entropies (zeros unless asked for) and log-normalisers of the scaled logits, each (N,)."""
        count = len(targets_N)
        logps_N, entropy_N, total_N = torch.zeros(3, count, device=hidden_ND.device).unbind()
        weight_VD = weight_VD.to(self.dtype)
        spare_nV = self._buffer(weight_VD, count) if entropy else None
        for part, logits_nV in self._logits(hidden_ND, weight_VD, bias_V):
            chosen_n = logits_nV.gather(1, targets_N[part, None])[:, 0]
            largest_n1 = logits_nV.amax(1, keepdim=True)
            logits_nV -= largest_n1
            exp_nV = (
                logits_nV.exp_() if spare_nV is None else torch.exp(logits_nV, out=spare_nV[: len(logits_nV)])
            )
            sum_n = exp_nV.sum(1)
            total_N[part] = largest_n1[:, 0] + sum_n.log()
            logps_N[part] = chosen_n - total_N[part]
            if spare_nV is not None:
                entropy_N[part] = sum_n.log() - exp_nV.mul_(logits_nV).sum(1) / sum_n
        return logps_N, entropy_N, total_N

    def gradients(
        self,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        saved: tuple[Tensor, Tensor],
        given: tuple[Tensor, Tensor | None],
        wanted: tuple[bool, bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Of hidden states, weight and bias, as far as `wanted`, from those of log-probs and entropies.

        `saved` are entropies and log-normalisers.
        """
        (entropy_N, total_N), (logps_grad_N, entropy_grad_N) = saved, given
        hidden_grad_ND = torch.zeros_like(hidden_ND) if wanted[0] else None
        weight_grad_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if wanted[1] else None
        bias_grad_V = (
            None if bias_V is None or not wanted[2] else torch.zeros_like(bias_V, dtype=torch.float32)
        )
        used_VD = weight_VD.to(self.dtype)
        spare_nV = None if entropy_grad_N is None else self._buffer(used_VD, len(targets_N))
        for part, logits_nV in self._logits(hidden_ND, used_VD, bias_V):
            logits_nV -= total_N[part, None]
            if entropy_grad_N is None or spare_nV is None:
                grad_nV = logits_nV.exp_().mul_(logps_grad_N[part, None] / -self.temperature)
            else:
                # d log p_i / d z_j = [i = j] - p_j and d entropy / d z_j = -p_j (log p_j + entropy)
                p_nV = torch.exp(logits_nV, out=spare_nV[: len(logits_nV)])
                logits_nV.add_(entropy_N[part, None]).mul_(entropy_grad_N[part, None])
                grad_nV = logits_nV.add_(logps_grad_N[part, None]).mul_(p_nV).div_(-self.temperature)
            grad_nV.scatter_add_(1, targets_N[part, None], logps_grad_N[part, None] / self.temperature)
            product_nV = grad_nV.to(self.dtype)
            if hidden_grad_ND is not None:
                hidden_grad_ND[part] = torch.mm(product_nV, used_VD).to(hidden_ND.dtype)
            if weight_grad_VD is not None:
                _add_product(weight_grad_VD, product_nV.t(), hidden_ND[part].to(self.dtype))
            if bias_grad_V is not None:
                bias_grad_V += grad_nV.sum(0)
        return (
            hidden_grad_ND,
            None if weight_grad_VD is None else weight_grad_VD.to(weight_VD.dtype),
            None if bias_grad_V is None or bias_V is None else bias_grad_V.to(bias_V.dtype),
        )

    def _logits(
        self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Each chunk's scaled logits, all in one place, since new memory costs as much as the arithmetic."""
        kept_nV = self._buffer(weight_VD, len(hidden_ND))
        for start in range(0, len(hidden_ND), self.rows):
            part = slice(start, min(start + self.rows, len(hidden_ND)))
            logits_nV = kept_nV[: part.stop - part.start]
            hidden_nD = hidden_ND[part].to(self.dtype)
            if self.dtype == torch.float32:
                torch.mm(hidden_nD, weight_VD.t(), out=logits_nV)
            else:
                torch.mm(hidden_nD, weight_VD.t(), out_dtype=torch.float32, out=logits_nV)
            if bias_V is not None:
                logits_nV += bias_V
            if self.temperature != 1.0:
                logits_nV /= self.temperature
            yield part, logits_nV

    def _buffer(self, weight_VD: Tensor, count: int) -> Tensor:
        rows = min(self.rows, count)
        return torch.empty(rows, weight_VD.shape[0], dtype=torch.float32, device=weight_VD.device)


class _LinearHead(torch.autograd.Function):
    """`_Chunks` with gradients: keeps hidden states and three numbers per position."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        chunks: _Chunks,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden_ND.device.type, enabled=False):
            logps_N, entropy_N, total_N = chunks.logprobs(hidden_ND, weight_VD, bias_V, targets_N, entropy)
        ctx.chunks = chunks
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, entropy_N, total_N)
        if not entropy:
            ctx.mark_non_differentiable(entropy_N)
        return logps_N, entropy_N

    @staticmethod
    def backward(ctx: Any, logps_grad_N: Tensor | None, entropy_grad_N: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        hidden_ND, weight_VD, bias_V, targets_N, *saved = ctx.saved_tensors
        if logps_grad_N is None and entropy_grad_N is None:
            return (None,) * 6
        if logps_grad_N is None:
            logps_grad_N = torch.zeros_like(saved[0])
        with torch.autocast(hidden_ND.device.type, enabled=False):
            grads = ctx.chunks.gradients(
                hidden_ND,
                weight_VD,
                bias_V,
                targets_N,
                saved,
                (logps_grad_N, entropy_grad_N),
                ctx.needs_input_grad[:3],
            )
        return (*grads, None, None, None)


def _add_product(sum_VD: Tensor, first_Vn: Tensor, second_nD: Tensor) -> None:
    """Add a product to an fp32 sum without rounding it first."""
    if second_nD.dtype == torch.float32:
        sum_VD.addmm_(first_Vn, second_nD)
    else:
        torch.addmm(sum_VD, first_Vn, second_nD, out_dtype=torch.float32, out=sum_VD)


def _through(
    head: Callable[[Tensor], Tensor],
    hidden_ND: Tensor,
    targets_N: Tensor,
    temperature: float,
    entropy: bool,
    rows: int,
) -> tuple[Tensor, Tensor | None]:
    """The same for a head that is more than one product, by torch's own gradients."""

    def one(hidden_nD: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor]:
        logps_nV = (head(hidden_nD).float() / temperature).log_softmax(-1)
        entropy_n = -(logps_nV.exp() * logps_nV).sum(-1) if entropy else logps_nV.new_zeros(len(logps_nV))
        return logps_nV.gather(-1, targets_n.unsqueeze(-1)).squeeze(-1), entropy_n

    starts = range(0, max(len(targets_N), 1), rows)
    pieces = [(hidden_ND[start : start + rows], targets_N[start : start + rows]) for start in starts]
    results = [cast(Any, checkpoint)(one, *piece, use_reentrant=False) for piece in pieces]
    logps_N, entropy_N = (torch.cat(parts) for parts in zip(*results, strict=True))
    return logps_N, entropy_N if entropy else None
