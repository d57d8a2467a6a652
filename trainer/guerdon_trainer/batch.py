"""Groups of responses as padded tensors.

Shape suffixes: B responses, T response tokens, S prompt and response tokens; all padded right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from guerdon_trainer.config import RewardConfig
from guerdon_trainer.groups import Group, ProcessRewards, Response
from guerdon_trainer.rows import Row, injected_row, sampled_row

_NOTHING = float("nan")


@dataclass(frozen=True)
class Batch:
    """The responses of a step. Only cells under `mask_BT` mean anything.

    `valid_B` marks the responses that got every reward; the others keep their place, but leave every baseline
    and give no gradient. Their rewards are NaN: were one read by mistake, the loss would show it. `learned_B` marks
    the valid responses that also give a gradient: all but truncated ones, where the loss masks those.

    `outcomes_B` is correctness; `rewards_B` the mix of all outcome rewards. The tokens under
    `reference_BT` are those of a reference that took the place of the sampled answer, and `weights_B` what its
    likelihood counts (VeriFree's R); other losses have none.
    """

    input_ids_BS: Tensor
    prompt_lengths_B: Tensor
    response_ids_BT: Tensor
    mask_BT: Tensor
    reference_BT: Tensor
    engine_logps_BT: Tensor
    groups_B: Tensor
    rewards_B: Tensor
    outcomes_B: Tensor
    weights_B: Tensor
    token_rewards_BT: Tensor
    valid_B: Tensor
    learned_B: Tensor

    def __len__(self) -> int:
        return len(self.groups_B)

    @property
    def lengths_B(self) -> Tensor:
        """Prompt and response tokens of each row."""
        return self.prompt_lengths_B + self.mask_BT.sum(-1)

    @property
    def learned_BT(self) -> Tensor:
        """The tokens that give a gradient."""
        return self.mask_BT & self.learned_B[:, None]

    @property
    def sampled_BT(self) -> Tensor:
        """The tokens that the policy sampled, and for which the engine has log-probabilities."""
        return self.mask_BT & ~self.reference_BT

    def select(self, rows: Tensor) -> "Batch":
        """These rows, without the padding that only other rows needed."""
        picked = {field.name: getattr(self, field.name)[rows] for field in fields(self)}
        widths = {
            "_BT": int(picked["mask_BT"].sum(-1).max()),
            "_BS": int((picked["prompt_lengths_B"] + picked["mask_BT"].sum(-1)).max()),
        }
        return Batch(
            **{
                name: tensor[:, : widths.get(name[-3:])] if tensor.dim() == 2 else tensor
                for name, tensor in picked.items()
            }
        )

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""
        return Batch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def make_batch(
    groups: Sequence[Group],
    process: ProcessRewards | None,
    *,
    injected: RewardConfig | None = None,
    mask_truncated: bool = False,
) -> Batch:
    """One row per response, groups in the given order.

    With `process`, a response without token rewards is not valid either. With `injected`, rows are those of
    `rows.injected_row`. With `mask_truncated`, truncated responses give no gradient.

    Raises:
        ValueError: there is no response, or a row of numbers is not as long as its tokens.
    """
    places = [(number, group, one) for number, group in enumerate(groups) for one in group.responses]
    if not places:
        raise ValueError("a batch needs at least one response")
    responses = [response for _, _, response in places]
    rows = [_row(response, injected, mask_truncated) for response in responses]
    prompts = [group.prompt_token_ids for _, group, _ in places]
    mask_BT, reference_BT = _masks(rows)
    token_rewards_BT, scored_B = _token_rewards(responses, rows, process)
    rewards_B = _values([row.reward for row in rows])
    valid_B = ~rewards_B.isnan() & scored_B
    return Batch(
        input_ids_BS=_padded([ids + row.token_ids for ids, row in zip(prompts, rows, strict=True)], 0),
        prompt_lengths_B=torch.tensor([len(ids) for ids in prompts]),
        response_ids_BT=_padded([row.token_ids for row in rows], 0),
        mask_BT=mask_BT,
        reference_BT=reference_BT,
        engine_logps_BT=_padded([row.engine_logps for row in rows], 0.0),
        groups_B=torch.tensor([number for number, _, _ in places]),
        rewards_B=rewards_B,
        outcomes_B=_values([response.outcome for response in responses]),
        weights_B=_values([row.weight for row in rows]),
        token_rewards_BT=token_rewards_BT,
        valid_B=valid_B,
        learned_B=valid_B & torch.tensor([row.learned for row in rows]),
    )


def _masks(rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
    """Which cells hold a token, and which the token of a reference."""
    lengths_B = torch.tensor([len(row.token_ids) for row in rows])
    injected_B = torch.tensor([row.injected for row in rows])
    columns_T = torch.arange(int(lengths_B.max()))
    mask_BT = columns_T < lengths_B[:, None]
    return mask_BT, mask_BT & (columns_T >= (lengths_B - injected_B)[:, None])


def _token_rewards(
    responses: Sequence[Response], rows: Sequence[Row], process: ProcessRewards | None
) -> tuple[Tensor, Tensor]:
    """The process rewards, NaN where there are none, and which responses have all they need."""
    found = [None if process is None else process.tokens.get(response.id) for response in responses]
    table = [
        [_NOTHING] * len(row.token_ids) if rewards is None else _as_long(rewards, response)
        for rewards, row, response in zip(found, rows, responses, strict=True)
    ]
    scored = [process is None or rewards is not None for rewards in found]
    return _padded(table, 0.0), torch.tensor(scored)


def _row(response: Response, injected: RewardConfig | None, mask_truncated: bool) -> Row:
    if injected is None:
        return sampled_row(response, mask_truncated=mask_truncated)
    return injected_row(response, injected, mask_truncated=mask_truncated)


def _as_long(values: list[float], response: Response) -> list[float]:
    length = len(response.rollout.token_ids)
    if len(values) != length:
        raise ValueError(f"response {response.id} has {length} tokens and {len(values)} numbers for them")
    return values


def _values(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([_NOTHING if value is None else value for value in values], dtype=torch.float32)


def _padded(rows: Sequence[Sequence[float]], padding: float) -> Tensor:
    width = max(len(row) for row in rows)
    dtype = torch.float32 if isinstance(padding, float) else torch.int64
    padded = torch.full((len(rows), width), padding, dtype=dtype)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = torch.tensor(row, dtype=dtype)
    return padded
