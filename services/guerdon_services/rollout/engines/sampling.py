"""From logits to sampled tokens, each row under parameters of its own.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from guerdon_services.rollout.engine import Row

#: Colder than this, logits divided by their temperature leave fp32; the draw has long been that of the best token.
_COLDEST = 1e-30


class Sampler:
    """Draws one token per row and step.

    A row's randomness is a stream of uniform numbers from its own seed, turned into tokens by the inverse of
    the cumulative distribution: the same seed gives the same response in any company.
    """

    def __init__(self, rows: Sequence[Row], device: torch.device) -> None:
        self._temperature_B = torch.tensor([row.temperature for row in rows], device=device)
        self._top_p_B = torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=device)
        self._top_k_B = torch.tensor([row.top_k for row in rows], device=device)
        steps = max(row.max_new_tokens for row in rows)
        self._uniforms_BT = torch.stack([_uniforms(row, steps) for row in rows])
        self._step = 0

    def keep(self, kept_B: Tensor) -> None:
        """Go on with these rows only (indices of the present ones)."""
        self._temperature_B = self._temperature_B[kept_B]
        self._top_p_B = self._top_p_B[kept_B]
        self._top_k_B = self._top_k_B[kept_B]
        self._uniforms_BT = self._uniforms_BT[kept_B.cpu()]

    def draw(self, logits_BV: Tensor) -> tuple[Tensor, Tensor]:
        """The next token of each row and its log-prob (fp32, see `Sampled`); both of shape B."""
        greedy_B = self._temperature_B == 0
        temperature_B = torch.where(greedy_B, 1.0, self._temperature_B.clamp(min=_COLDEST))
        logps_BV = (logits_BV.float() / temperature_B[:, None]).log_softmax(-1)
        uniform_B = self._uniforms_BT[:, self._step].to(logps_BV.device)
        self._step += 1
        tokens_B = logps_BV.argmax(-1)
        if not greedy_B.all():
            probs_BV = self._truncate(logps_BV.double().exp())
            tokens_B = torch.where(greedy_B, tokens_B, _invert(probs_BV, uniform_B))
        return tokens_B, logps_BV.gather(-1, tokens_B[:, None])[:, 0]

    def _truncate(self, probs_BV: Tensor) -> Tensor:
        """Zero what top-k and then top-p exclude; the rest is not normalised again."""
        vocabulary = probs_BV.shape[-1]
        limit_B = torch.where(self._top_k_B == 0, vocabulary, self._top_k_B.clamp(max=vocabulary))
        if bool((limit_B == vocabulary).all()) and bool((self._top_p_B >= 1).all()):
            return probs_BV
        sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
        rank_V = torch.arange(vocabulary, device=probs_BV.device)
        sorted_BV = sorted_BV * (rank_V < limit_B[:, None])
        # A token is in the nucleus while those before it have less than top_p of what top-k left.
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        nucleus_B = torch.where(self._top_p_B >= 1, torch.inf, self._top_p_B * sorted_BV.sum(-1))
        sorted_BV = sorted_BV * (before_BV < nucleus_B[:, None])
        return torch.zeros_like(probs_BV).scatter(-1, order_BV, sorted_BV)


def _uniforms(row: Row, steps: int) -> Tensor:
    """The row's random numbers in [0, 1), float64, one per step; fewer steps are a prefix of more."""
    if row.temperature == 0:
        return torch.zeros(steps, dtype=torch.float64)
    generator = torch.Generator().manual_seed(row.seed)
    drawn = torch.rand(row.max_new_tokens, generator=generator, dtype=torch.float64)
    return torch.nn.functional.pad(drawn, (0, steps - row.max_new_tokens))


def _invert(probs_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token whose cumulative probability exceeds the uniform number's share of the whole."""
    cumulative_BV = probs_BV.cumsum(-1)
    total_B = cumulative_BV[:, -1]
    # Rounding must not reach the total: a token of probability zero would be drawn.
    target_B = torch.minimum(uniform_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    return torch.searchsorted(cumulative_BV, target_B[:, None], right=True)[:, 0]
