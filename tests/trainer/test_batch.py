from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from guerdon_trainer.batch import make_batch
from guerdon_trainer.groups import Group, ProcessRewards

MakeGroup = Callable[..., Group]


def test_rows_keep_the_order_of_groups_and_the_sampled_tokens(make_group: MakeGroup) -> None:
    groups = [make_group(5, {"12": 1.0, "3": 0.0}), make_group(9, {"+++": 0.0}, prompt="1+2+3=")]
    batch = make_batch(groups, None)
    assert batch.groups_B.tolist() == [0, 0, 1]
    assert batch.prompt_lengths_B.tolist() == [4, 4, 6]
    assert batch.mask_BT.sum(-1).tolist() == [2, 1, 3]
    assert batch.lengths_B.tolist() == [6, 5, 9]
    for row, response in enumerate(response for group in groups for response in group.responses):
        ids = response.rollout.token_ids
        start = int(batch.prompt_lengths_B[row])
        assert batch.response_ids_BT[row, : len(ids)].tolist() == ids
        assert batch.input_ids_BS[row, start : start + len(ids)].tolist() == ids
    assert batch.rewards_B.tolist() == [1.0, 0.0, 0.0]


def test_a_response_without_reward_is_not_valid_and_its_reward_is_no_number(make_group: MakeGroup) -> None:
    batch = make_batch([make_group(0, {"1": 1.0, "22": None})], None)
    assert batch.valid_B.tolist() == [True, False]
    assert batch.rewards_B.isnan().tolist() == [False, True]
    assert batch.mask_BT.sum(-1).tolist() == [1, 2]
    assert batch.learned_BT.sum(-1).tolist() == [1, 0]


def test_a_response_without_token_rewards_is_not_valid(make_group: MakeGroup) -> None:
    process = ProcessRewards({"0/0": [0.5, -0.5]}, 1, {})
    batch = make_batch([make_group(0, {"12": 1.0, "3": 0.0})], process)
    assert batch.valid_B.tolist() == [True, False]
    assert batch.token_rewards_BT[0].tolist() == [0.5, -0.5]
    assert batch.token_rewards_BT[1, 0].isnan()


def test_numbers_that_do_not_fit_their_tokens_are_an_error(make_group: MakeGroup) -> None:
    process = ProcessRewards({"0/0": [0.5]}, 1, {})
    with pytest.raises(ValueError, match="response 0/0 has 2 tokens and 1 numbers for them"):
        make_batch([make_group(0, {"12": 1.0})], process)


def test_selecting_rows_drops_the_padding_of_the_others(make_group: MakeGroup) -> None:
    batch = make_batch([make_group(0, {"1": 1.0, "12345": 0.0, "12": 0.0})], None)
    part = batch.select(torch.tensor([2, 0]))
    assert part.mask_BT.tolist() == [[True, True], [True, False]]
    assert part.input_ids_BS.shape == (2, 6)
    assert part.rewards_B.tolist() == [0.0, 1.0]


def test_an_empty_response_has_no_tokens_and_is_valid(make_group: MakeGroup) -> None:
    batch = make_batch([make_group(0, {"": 0.0, "12": 1.0})], None)
    assert batch.mask_BT.tolist() == [[False, False], [True, True]]
    assert batch.valid_B.tolist() == [True, True]
    assert batch.select(torch.tensor([0])).mask_BT.shape == (1, 0)


def test_no_response_at_all_is_an_error(make_group: MakeGroup) -> None:
    with pytest.raises(ValueError, match="at least one response"):
        make_batch([replace(make_group(0, {"1": 1.0}), responses=[])], None)
