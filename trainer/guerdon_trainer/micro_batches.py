"""Which responses go through the model together: parts of about equal size, within a budget of tokens.

Shape suffix: B responses.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from guerdon_trainer.batch import Batch

#: The tokens of a part that holds these rows and no other.
_Size = Callable[[int, int], int]


def micro_batches(batch: Batch, max_tokens: int, *, packs: bool, ranks: int = 1) -> list[Tensor]:
    """Row numbers in parts of at most `max_tokens` tokens (at least one row); rows without tokens are in none.

    As few parts as will do, a multiple of `ranks`, and the largest of them as small as can be; they may be empty.
    Where the model `packs`, responses of a group stand together and share its prompt; otherwise those of like length
    do, and padding counts.
    """
    order_B, size = (_by_group if packs else _by_length)(batch)
    count = -(-max(len(_filled(len(order_B), size, max_tokens)), 1) // ranks) * ranks
    low, high = 1, max_tokens
    while low < high:  # the smallest budget that needs no more parts
        middle = (low + high) // 2
        if len(_filled(len(order_B), size, middle)) <= count:
            high = middle
        else:
            low = middle + 1
    parts = [order_B[start:end] for start, end in _filled(len(order_B), size, low)]
    return parts + [order_B[:0]] * (count - len(parts))


def _filled(rows: int, size: _Size, budget: int) -> list[tuple[int, int]]:
    """Parts filled one after the other, each as far as the budget goes."""
    parts: list[tuple[int, int]] = []
    start = 0
    while start < rows:
        end = start + 1
        while end < rows and size(start, end + 1) <= budget:
            end += 1
        parts.append((start, end))
        start = end
    return parts


def _by_group(batch: Batch) -> tuple[Tensor, _Size]:
    filled_B = batch.mask_BT.any(-1).nonzero()[:, 0].cpu()
    order_B = filled_B[torch.argsort(batch.groups_B.cpu()[filled_B], stable=True)]
    groups, prompts = batch.groups_B.cpu()[order_B], batch.prompt_lengths_B.cpu()[order_B]
    responses = batch.mask_BT.sum(-1).cpu()[order_B]
    first = torch.ones_like(groups, dtype=torch.bool)
    first[1:] = groups[1:] != groups[:-1]
    # What each row adds to the part it is in: its prompt only when no row before it brought that.
    added = [0, *(responses + torch.where(first, prompts, 0)).cumsum(0).tolist()]
    missing = torch.where(first, 0, prompts).tolist()
    return order_B, lambda start, end: added[end] - added[start] + missing[start]


def _by_length(batch: Batch) -> tuple[Tensor, _Size]:
    filled_B = batch.mask_BT.any(-1).nonzero()[:, 0].cpu()
    lengths_B = batch.lengths_B.cpu()[filled_B]
    order_B = filled_B[torch.argsort(lengths_B, stable=True, descending=True)]
    lengths = lengths_B.sort(descending=True).values.tolist()
    return order_B, lambda start, end: lengths[start] * (end - start)
