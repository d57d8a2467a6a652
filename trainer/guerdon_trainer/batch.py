"""Groups of responses as padded tensors.

Shape suffixes: B responses, T response tokens, S prompt and response tokens; all padded right.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from guerdon_trainer.groups import Group, ProcessRewards, Response

_NOTHING = float("nan")


@dataclass(frozen=True)
class Batch:
    """The responses of a step. Only cells under `mask_BT` mean anything.

    `valid_B` marks the responses that got every reward; the others keep their place, but leave every baseline
    and give no gradient. Their rewards are NaN: were one read by mistake, the loss would show it.
    """

    input_ids_BS: Tensor
    prompt_lengths_B: Tensor
    response_ids_BT: Tensor
    mask_BT: Tensor
    engine_logps_BT: Tensor
    groups_B: Tensor
    rewards_B: Tensor
    outcomes_B: Tensor
    token_rewards_BT: Tensor
    valid_B: Tensor

    def __len__(self) -> int:
        return len(self.groups_B)

    @property
    def lengths_B(self) -> Tensor:
        """Prompt and response tokens of each row."""
        return self.prompt_lengths_B + self.mask_BT.sum(-1)

    @property
    def learned_BT(self) -> Tensor:
        """The tokens that give a gradient: those of valid responses."""
        return self.mask_BT & self.valid_B[:, None]

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


def make_batch(groups: Sequence[Group], process: ProcessRewards | None) -> Batch:
    """One row per response, groups in the given order.

    With `process`, a response without token rewards is not valid either.

    Raises:
        ValueError: there is no response, or a row of numbers is not as long as its tokens.
    """
    rows = [(number, group, response) for number, group in enumerate(groups) for response in group.responses]
    if not rows:
        raise ValueError("a batch needs at least one response")
    responses = [response for _, _, response in rows]
    token_rewards = [None if process is None else process.tokens.get(response.id) for response in responses]
    valid = [
        response.reward is not None and (process is None or rewards is not None)
        for response, rewards in zip(responses, token_rewards, strict=True)
    ]
    lengths = [len(response.rollout.token_ids) for response in responses]
    return Batch(
        input_ids_BS=_padded([group.prompt_token_ids + r.rollout.token_ids for _, group, r in rows], 0),
        prompt_lengths_B=torch.tensor([len(group.prompt_token_ids) for _, group, _ in rows]),
        response_ids_BT=_padded([response.rollout.token_ids for response in responses], 0),
        mask_BT=torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None],
        engine_logps_BT=_padded([_engine_logps(response) for response in responses], 0.0),
        groups_B=torch.tensor([number for number, _, _ in rows]),
        rewards_B=_values([response.reward for response in responses]),
        outcomes_B=_values([response.outcome for response in responses]),
        token_rewards_BT=_padded(
            [
                [_NOTHING] * length if rewards is None else _as_long(rewards, length, response)
                for rewards, length, response in zip(token_rewards, lengths, responses, strict=True)
            ],
            0.0,
        ),
        valid_B=torch.tensor(valid),
    )


def _engine_logps(response: Response) -> list[float]:
    return _as_long(response.rollout.logprobs, len(response.rollout.token_ids), response)


def _as_long(values: list[float], length: int, response: Response) -> list[float]:
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
