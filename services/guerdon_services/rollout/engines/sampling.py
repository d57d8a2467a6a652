"""From logits to sampled tokens, each row under parameters of its own.

Shapes: B rows, V vocabulary, S blocks of W neighbouring tokens. A token's mass is its probability but for a factor.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from guerdon_services.rollout.engine import Row

#: Colder than this, logits divided by their temperature leave fp32; the draw has long been that of the best token.
_COLDEST = 1e-30
#: Tokens of a block. Cumulative sums over a whole vocabulary are slow: first a block is drawn, then a token of it.
_BLOCK = 256


class Sampler:
    """Draws one token per row and step.

    A row's randomness is a stream of uniform numbers from its own seed, turned into tokens by the inverse of
    the cumulative distribution: the same seed gives the same response in any company. `end_tokens` are the ids
    that are not drawn among each row's first `min_new_tokens`.
    """

    def __init__(
        self, rows: Sequence[Row], end_tokens: Sequence[frozenset[int]], vocabulary: int, device: torch.device
    ) -> None:
        self._temperature_B = torch.tensor([row.temperature for row in rows], device=device)
        self._top_p_B = torch.tensor([row.top_p for row in rows], dtype=torch.float64, device=device)
        self._top_k_B = torch.tensor([row.top_k for row in rows], device=device)
        self._min_p_B = torch.tensor([row.min_p for row in rows], dtype=torch.float64, device=device)
        self._least = [row.min_new_tokens for row in rows]
        self._end_tokens = list(end_tokens)
        steps = max(row.max_new_tokens for row in rows)
        self._uniforms_BT = torch.stack([_uniforms(row, steps) for row in rows])
        self._truncates = any(row.truncated for row in rows)
        self._penalties = _Penalties(rows, vocabulary, device) if any(row.penalised for row in rows) else None
        self._raw = any(row.raw_logprobs for row in rows)
        self._step = 0

    def keep(self, kept_B: Tensor) -> None:
        """Go on with these rows only (indices of the present ones)."""
        self._temperature_B = self._temperature_B[kept_B]
        self._top_p_B = self._top_p_B[kept_B]
        self._top_k_B = self._top_k_B[kept_B]
        self._min_p_B = self._min_p_B[kept_B]
        self._uniforms_BT = self._uniforms_BT[kept_B.cpu()]
        kept = kept_B.tolist()
        self._least = [self._least[index] for index in kept]
        self._end_tokens = [self._end_tokens[index] for index in kept]
        if self._penalties is not None:
            self._penalties.keep(kept_B)

    def draw(self, logits_BV: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The next token of each row, its log-prob (fp32, see `Sampled`), and that at temperature 1; all of shape B.

        Raises:
            FloatingPointError: logits are not finite, as those of weights that training has spoiled.
        """
        logits_BV = logits_BV.float()
        greedy_B = self._temperature_B == 0
        temperature_B = torch.where(greedy_B, 1.0, self._temperature_B.clamp(min=_COLDEST))
        scaled_BV = logits_BV / temperature_B[:, None]
        sums_B = scaled_BV.logsumexp(-1)
        # Ahead of the draw: it would leave the vocabulary, which ends all work on a GPU.
        if not sums_B.isfinite().all():
            raise FloatingPointError("the model's logits are not finite")
        drawn_BV = self._moved(logits_BV, scaled_BV, temperature_B)
        uniform_B = self._uniforms_BT[:, self._step].to(logits_BV.device)
        self._step += 1
        if greedy_B.all():
            tokens_B = drawn_BV.argmax(-1)
        else:
            tokens_B = _invert(self._truncate(_masses(drawn_BV)), uniform_B)
            if greedy_B.any():
                tokens_B = torch.where(greedy_B, drawn_BV.argmax(-1), tokens_B)
        if self._penalties is not None:
            self._penalties.add(tokens_B)
        taken_B = _taken(scaled_BV, tokens_B) - sums_B
        raw_B = _taken(logits_BV, tokens_B) - logits_BV.logsumexp(-1) if self._raw else taken_B
        return tokens_B, taken_B, raw_B

    def _moved(self, logits_BV: Tensor, scaled_BV: Tensor, temperature_B: Tensor) -> Tensor:
        """Logits that are drawn from: `scaled_BV`, unless penalties apply or the end must not come yet."""
        early = [
            index
            for index, least in enumerate(self._least)
            # Where every token ends the response, one of them it is.
            if self._step < least and len(self._end_tokens[index]) < logits_BV.shape[-1]
        ]
        if self._penalties is None and not early:
            return scaled_BV
        moved_BV = logits_BV.clone() if self._penalties is None else self._penalties.applied(logits_BV)
        for index in early:
            moved_BV[index, sorted(self._end_tokens[index])] = -torch.inf
        return moved_BV / temperature_B[:, None]

    def _truncate(self, masses_BV: Tensor) -> Tensor:
        """Zero what min-p, top-k and then top-p exclude."""
        if not self._truncates:
            return masses_BV
        masses_BV, vocabulary = masses_BV.double(), masses_BV.shape[-1]
        least_B1 = self._min_p_B[:, None] * masses_BV.amax(-1, keepdim=True)
        sorted_BV, order_BV = (masses_BV * (masses_BV >= least_B1)).sort(dim=-1, descending=True, stable=True)
        limit_B = torch.where(self._top_k_B == 0, vocabulary, self._top_k_B.clamp(max=vocabulary))
        rank_V = torch.arange(vocabulary, device=masses_BV.device)
        sorted_BV = sorted_BV * (rank_V < limit_B[:, None])
        # A token is in the nucleus while those before it have less than top_p of what top-k left; the first always is,
        # also where top_p is next to nothing.
        before_BV = sorted_BV.cumsum(-1) - sorted_BV
        nucleus_B = torch.where(self._top_p_B >= 1, torch.inf, self._top_p_B * sorted_BV.sum(-1))
        sorted_BV = sorted_BV * ((before_BV < nucleus_B[:, None]) | (rank_V == 0))
        return torch.zeros_like(masses_BV).scatter(-1, order_BV, sorted_BV)


class _Penalties:
    """What was written before, and how it moves the logits: OpenAI's two penalties and CTRL's repetition penalty."""

    def __init__(self, rows: Sequence[Row], vocabulary: int, device: torch.device) -> None:
        def column(values: list[float]) -> Tensor:
            return torch.tensor(values, device=device)[:, None]

        self._presence_B1 = column([row.presence_penalty for row in rows])
        self._frequency_B1 = column([row.frequency_penalty for row in rows])
        self._repetition_B1 = column([row.repetition_penalty for row in rows])
        self._written_BV = torch.zeros(len(rows), vocabulary, device=device)
        self._prompt_BV = torch.zeros(len(rows), vocabulary, dtype=torch.bool, device=device)
        for index, row in enumerate(rows):
            self._prompt_BV[index, list(row.prompt_ids)] = True

    def keep(self, kept_B: Tensor) -> None:
        """Go on with these rows only."""
        for name, tensor in list(vars(self).items()):
            setattr(self, name, tensor[kept_B])

    def add(self, tokens_B: Tensor) -> None:
        """Count one more token of each row."""
        self._written_BV.scatter_add_(-1, tokens_B[:, None], torch.ones_like(self._presence_B1))

    def applied(self, logits_BV: Tensor) -> Tensor:
        """The logits that are sampled from."""
        written_BV = self._written_BV > 0
        repeated_BV = torch.where(
            logits_BV > 0, logits_BV / self._repetition_B1, logits_BV * self._repetition_B1
        )
        moved_BV = torch.where(self._prompt_BV | written_BV, repeated_BV, logits_BV)
        return moved_BV - self._frequency_B1 * self._written_BV - self._presence_B1 * written_BV


def _uniforms(row: Row, steps: int) -> Tensor:
    """The row's random numbers in [0, 1), float64, one per step; fewer steps are a prefix of more."""
    if row.temperature == 0:
        return torch.zeros(steps, dtype=torch.float64)
    generator = torch.Generator()
    if row.seed is None:
        generator.seed()
    else:
        generator.manual_seed(row.seed)
    drawn = torch.rand(row.max_new_tokens, generator=generator, dtype=torch.float64)
    return torch.nn.functional.pad(drawn, (0, steps - row.max_new_tokens))


def _masses(logits_BV: Tensor) -> Tensor:
    """Probabilities by that of the likeliest token."""
    return (logits_BV - logits_BV.amax(-1, keepdim=True)).exp_()


def _taken(logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
    """The logit of one token a row, of shape B."""
    return logits_BV.gather(-1, tokens_B[:, None])[:, 0]


def _invert(masses_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """The first token whose cumulative mass exceeds the uniform number's share of the whole."""
    vocabulary = masses_BV.shape[-1]
    if vocabulary <= _BLOCK:
        return _first_above(masses_BV.double(), uniform_B)[0]
    body = vocabulary // _BLOCK * _BLOCK
    sums_BS = masses_BV[:, :body].unflatten(-1, (-1, _BLOCK)).sum(-1)
    rest_B1 = masses_BV[:, body:].sum(-1, keepdim=True)
    block_B, within_B = _first_above(torch.cat([sums_BS, rest_B1], -1).double(), uniform_B)
    token_BW = block_B[:, None] * _BLOCK + torch.arange(_BLOCK, device=masses_BV.device)
    masses_BW = masses_BV.gather(-1, token_BW.clamp(max=vocabulary - 1)).double() * (token_BW < vocabulary)
    return block_B * _BLOCK + _first_above(masses_BW, within_B)[0]


def _first_above(masses_BV: Tensor, share_B: Tensor) -> tuple[Tensor, Tensor]:
    """The first item whose cumulative mass exceeds a share of the whole, and how far into the item that share is."""
    cumulative_BV = masses_BV.cumsum(-1)
    total_B = cumulative_BV[:, -1]
    # Rounding must not reach the total: an item without mass would be drawn.
    target_B = torch.minimum(share_B * total_B, torch.nextafter(total_B, torch.zeros_like(total_B)))
    item_B = torch.searchsorted(cumulative_BV, target_B[:, None], right=True)[:, 0]
    mass_B = masses_BV.gather(-1, item_B[:, None])[:, 0]
    before_B = cumulative_BV.gather(-1, item_B[:, None])[:, 0] - mass_B
    return item_B, ((target_B - before_B) / mass_B).clamp(0, 1)
