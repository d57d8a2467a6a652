"""Parts of a batch: every row once, within the budget, about equal, one for every rank."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from guerdon.logprobs import packed_size
from guerdon_trainer.batch import Batch
from guerdon_trainer.micro_batches import micro_batches


def batch_of(groups: list[tuple[int, list[int]]]) -> Batch:
    """Of prompt length and response lengths per group; ids tell groups and responses apart."""
    rows = [
        (number, [1000 + number] * prompt, [10 + index] * length)
        for number, (prompt, lengths) in enumerate(groups)
        for index, length in enumerate(lengths)
    ]
    width = max(len(prompt) + len(response) for _, prompt, response in rows)
    longest = max(max(len(response) for _, _, response in rows), 1)
    lengths_B = torch.tensor([len(response) for _, _, response in rows])
    zeros_BT = torch.zeros(len(rows), longest)
    return Batch(
        input_ids_BS=torch.tensor([(p + r + [0] * width)[:width] for _, p, r in rows]),
        prompt_lengths_B=torch.tensor([len(prompt) for _, prompt, _ in rows]),
        response_ids_BT=torch.tensor([(r + [0] * longest)[:longest] for _, _, r in rows]),
        mask_BT=torch.arange(longest)[None] < lengths_B[:, None],
        reference_BT=zeros_BT.bool(),
        engine_logps_BT=zeros_BT,
        groups_B=torch.tensor([number for number, _, _ in rows]),
        rewards_B=zeros_BT[:, 0],
        outcomes_B=zeros_BT[:, 0],
        weights_B=zeros_BT[:, 0],
        token_rewards_BT=zeros_BT,
        valid_B=torch.ones(len(rows), dtype=torch.bool),
        learned_B=torch.ones(len(rows), dtype=torch.bool),
    )


def tokens(batch: Batch, rows: torch.Tensor, packs: bool) -> int:
    lengths = batch.lengths_B[rows].tolist()
    if not packs:
        return len(lengths) * max(lengths)
    return packed_size([batch.input_ids_BS[row, : batch.lengths_B[row]].tolist() for row in rows])


_GROUPS = st.lists(
    st.tuples(st.integers(1, 20), st.lists(st.integers(0, 20), min_size=1, max_size=5)),
    min_size=1,
    max_size=5,
)


@given(_GROUPS, st.integers(1, 120), st.booleans(), st.integers(1, 3))
def test_every_row_is_in_one_part_within_the_budget(
    groups: list[tuple[int, list[int]]], budget: int, packs: bool, ranks: int
) -> None:
    batch = batch_of(groups)
    parts = micro_batches(batch, budget, packs=packs, ranks=ranks)
    filled = batch.mask_BT.any(-1).nonzero()[:, 0].tolist()
    assert sorted(torch.cat(parts).tolist()) == filled
    assert len(parts) % ranks == 0
    for rows in parts:
        assert len(rows) <= 1 or tokens(batch, rows, packs) <= budget


def test_a_group_that_fits_stays_together_and_its_prompt_counts_once() -> None:
    batch = batch_of([(50, [10] * 4), (50, [10] * 4)])
    assert [rows.tolist() for rows in micro_batches(batch, 90, packs=True)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert len(micro_batches(batch, 180, packs=True)) == 1
    assert len(micro_batches(batch, 180, packs=False)) == 3


@pytest.mark.parametrize("packs", [True, False])
def test_parts_are_about_equal(packs: bool) -> None:
    batch = batch_of([(1, [10] * 9)])
    sizes = [len(rows) for rows in micro_batches(batch, 88, packs=packs)]
    assert sizes == [5, 4]  # and not as many as fit in the first
    sizes = [len(rows) for rows in micro_batches(batch, 1000, packs=packs, ranks=2)]
    assert sizes == [5, 4]


def test_a_rank_may_have_nothing_to_do() -> None:
    batch = batch_of([(3, [5])])
    assert [rows.tolist() for rows in micro_batches(batch, 1000, packs=True, ranks=2)] == [[0], []]
