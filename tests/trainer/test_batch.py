from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from guerdon.types import Result, Span, Status, Verdict
from guerdon_trainer.batch import make_batch
from guerdon_trainer.config import RewardConfig
from guerdon_trainer.groups import Group, ProcessRewards, Response

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


REFERENCE = RewardConfig(
    name="reference_reward",
    service="reference_reward",
    weight=0.9,
    options={"template": "verifree", "aggregation": "product"},
)


def scored(
    response: Response, value: float, ids: list[int], start: int, kept: int, finish_reason: str = "stop"
) -> Response:
    """The response with a reference reward's result: `ids` begin at token `start`, after `kept` sampled ones."""
    span = Span(start=0, end=1, token_start=start, token_end=start + len(ids), sampled_tokens=kept)
    result = Result(
        status=Status.OK,
        value=value,
        token_ids=ids,
        verdict=Verdict(span=span if ids else None),
    )
    return replace(
        response,
        rollout=response.rollout.model_copy(update={"finish_reason": finish_reason}),
        results={"reference_reward": result},
        reward=0.9 * value + 0.1,
    )


@pytest.fixture
def verifree_group(make_group: MakeGroup) -> Group:
    """Rows: an answer replaced, no answer, truncated after the answer began, a token across the border, no reward."""
    texts = {"123456": 0.0, "777": 0.0, "1299": 0.0, "4567": 0.0, "8": None}
    group = make_group(0, texts)
    responses = group.responses
    return replace(
        group,
        responses=[
            scored(responses[0], 0.5, [9, 10, 11], start=4, kept=4),
            scored(responses[1], 0.0, [], start=0, kept=0),
            scored(responses[2], 0.25, [9, 10, 11], start=2, kept=2, finish_reason="length"),
            scored(responses[3], 0.75, [9, 10, 11], start=4, kept=2),
            responses[4],
        ],
    )


def test_a_reference_takes_the_place_of_the_sampled_answer(verifree_group: Group) -> None:
    batch = make_batch([verifree_group], None, injected=REFERENCE, mask_truncated=True)
    sampled = [response.rollout.token_ids for response in verifree_group.responses]
    rows = [[*sampled[0][:4], 9, 10, 11], sampled[1], sampled[2], sampled[3][:2], sampled[4]]
    for row, ids in enumerate(rows):
        assert batch.response_ids_BT[row, : len(ids)].tolist() == ids
        assert int(batch.mask_BT[row].sum()) == len(ids)
        start = int(batch.prompt_lengths_B[row])
        assert batch.input_ids_BS[row, start : start + len(ids)].tolist() == ids
    assert batch.reference_BT.sum(-1).tolist() == [3, 0, 0, 0, 0]
    assert batch.reference_BT[0].tolist() == [False] * 4 + [True] * 3
    assert batch.sampled_BT.sum(-1).tolist() == [4, 3, 4, 2, 1]
    assert batch.engine_logps_BT[0].tolist() == [-0.5] * 4 + [0.0] * 3
    assert batch.weights_B.tolist() == [0.5, 0.0, 0.0, 0.0, 0.0]


def test_a_truncated_response_has_r_0_stays_in_the_baseline_and_gives_no_gradient(
    verifree_group: Group,
) -> None:
    batch = make_batch([verifree_group], None, injected=REFERENCE, mask_truncated=True)
    assert batch.rewards_B[:4].tolist() == pytest.approx([0.55, 0.1, 0.1, 0.775])
    assert batch.valid_B.tolist() == [True, True, True, True, False]
    assert batch.learned_B.tolist() == [True, True, False, True, False]
    assert batch.learned_BT.sum(-1).tolist() == [7, 3, 0, 2, 0]
    # Where they are not masked they are scored like any other.
    scored_alike = make_batch([verifree_group], None, injected=REFERENCE)
    assert scored_alike.rewards_B[2].item() == pytest.approx(0.9 * 0.25 + 0.1)
    assert scored_alike.reference_BT.sum(-1).tolist() == [3, 0, 3, 0, 0]
    assert scored_alike.learned_B.tolist() == [True, True, True, True, False]


def test_other_losses_may_mask_truncated_responses_too(verifree_group: Group) -> None:
    batch = make_batch([verifree_group], None, mask_truncated=True)
    assert batch.learned_B.tolist() == [True, True, False, True, False]
    assert batch.mask_BT.sum(-1).tolist() == [6, 3, 4, 4, 1]
    assert not batch.reference_BT.any()
    assert batch.rewards_B[2].item() == pytest.approx(0.9 * 0.25 + 0.1)


def test_a_reference_that_does_not_stand_where_it_says_is_an_error(verifree_group: Group) -> None:
    lost = scored(verifree_group.responses[0], 0.5, [9, 10], start=4, kept=4)
    result = lost.results["reference_reward"].model_copy(update={"token_ids": [9]})
    group = replace(verifree_group, responses=[replace(lost, results={"reference_reward": result})])
    with pytest.raises(ValueError, match="does not stand where its span says"):
        make_batch([group], None, injected=REFERENCE)


def test_rule_9_no_sampled_token_is_replaced_but_by_a_reference(verifree_group: Group) -> None:
    batch = make_batch([verifree_group], None, injected=REFERENCE, mask_truncated=True)
    for row, response in enumerate(verifree_group.responses):
        count = int(batch.sampled_BT[row].sum())
        assert batch.response_ids_BT[row, :count].tolist() == response.rollout.token_ids[:count]
