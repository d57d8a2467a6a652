import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from guerdon_trainer.advantages import StdThreshold, keep_by_length
from guerdon_trainer.config import RunConfig
from guerdon_trainer.config.errors import RecipeError
from guerdon_trainer.filters import GroupFilter
from guerdon_trainer.groups import Group

Make = Callable[..., RunConfig]
MakeGroup = Callable[..., Group]

RLPR = "filter={kind: std_threshold, beta: 1.0, ratio: 0.5, start_step: 2, filter_step: 4}"


def of_length(group: Group, *finish_reasons: str) -> Group:
    """The group with these finish reasons, one per response."""
    responses = [
        replace(response, rollout=response.rollout.model_copy(update={"finish_reason": reason}))
        for response, reason in zip(group.responses, finish_reasons, strict=True)
    ]
    return replace(group, responses=responses)


def test_a_group_without_two_rewards_is_never_kept(make_config: Make, make_group: MakeGroup) -> None:
    keep = GroupFilter(make_config("filter=null")).keep
    assert not keep(make_group(0, {"1": 1.0, "2": None}))
    assert not keep(replace(make_group(0, {"1": 1.0}), responses=[]))
    assert keep(make_group(0, {"1": 1.0, "2": 1.0}))


def test_a_group_that_gives_no_gradient_is_never_kept(make_config: Make, make_group: MakeGroup) -> None:
    both_cut = of_length(make_group(0, {"1": 1.0, "2": 0.0}), "length", "length")
    one_cut = of_length(make_group(0, {"1": 1.0, "2": 0.0}), "length", "stop")
    empty = make_group(0, {"": 1.0})
    empty = replace(empty, responses=[*empty.responses, *empty.responses])
    masking = GroupFilter(make_config("filter=null", "loss.mask_truncated=true")).keep
    assert [masking(group) for group in (both_cut, one_cut, empty)] == [False, True, False]
    keep = GroupFilter(make_config("filter=null")).keep
    assert [keep(group) for group in (both_cut, one_cut, empty)] == [True, True, False]


def test_accuracy_and_spread(make_config: Make, make_group: MakeGroup) -> None:
    accuracy = GroupFilter(make_config("filter={kind: accuracy, lower: 0.5, upper: 0.8}"))
    assert accuracy.keep(make_group(0, {"1": 1.0, "2": 0.0}))
    assert accuracy.keep(make_group(0, {"1": 1.0, "2": 0.0, "3": None}))
    assert not accuracy.keep(make_group(0, {"1": 1.0, "2": 0.0, "3": 0.0}))
    spread = GroupFilter(make_config("filter={kind: spread, min_std: 0.1}"))
    assert spread.keep(make_group(0, {"1": 0.4, "2": 0.7}))
    assert not spread.keep(make_group(0, {"1": 0.4, "2": 0.5}))


def test_all_filters_of_a_list_must_pass(make_config: Make, make_group: MakeGroup) -> None:
    both = GroupFilter(make_config("filter=[{kind: accuracy, lower: 0.5, upper: 0.8}, {kind: truncation}]"))
    assert both.keep(make_group(0, {"1": 1.0, "2222": 0.0}))
    assert not both.keep(make_group(0, {"1": 1.0, "22222": 0.0}))  # rollout.max_new_tokens is 5
    assert not both.keep(make_group(0, {"1": 0.0, "2": 0.0}))


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ("", [True, True, False]),
        (", margin: 1", [True, False, False]),
        (", by: finish_reason", [False, True, True]),
    ],
)
def test_truncation(make_config: Make, make_group: MakeGroup, settings: str, kept: list[bool]) -> None:
    keep = GroupFilter(make_config(f"filter={{kind: truncation{settings}}}")).keep
    groups = [
        of_length(make_group(0, {"1": 1.0, text: 0.0}), "stop", reason)
        for text, reason in (("2", "length"), ("2222", "stop"), ("22222", "stop"))
    ]
    assert [keep(group) for group in groups] == kept


def test_one_long_response_drops_its_group() -> None:
    lengths, groups = torch.tensor([3, 6, 5, 5, 6]), torch.tensor([4, 4, 9, 9, 2])
    assert keep_by_length(lengths, groups, limit=6) == {9}
    assert keep_by_length(lengths, groups, limit=7) == {2, 4, 9}
    rewarded = torch.tensor([True, False, True, True, True])
    assert keep_by_length(lengths, groups, limit=6, valid_B=rewarded) == {4, 9}


def test_the_moving_threshold_follows_all_groups_that_were_generated(
    make_config: Make, make_group: MakeGroup
) -> None:
    filter = GroupFilter(make_config(RLPR))
    wide, narrow, alone = (
        make_group(0, rewards) for rewards in ({"1": 1.0, "2": 0.0}, {"1": 0.5, "2": 0.4}, {"1": 1.0})
    )
    wide_std, narrow_std = math.sqrt(0.5), math.sqrt(0.005)
    for seen in (
        [narrow],
        [wide],
        [wide, narrow, alone],
    ):  # the first step does not count, nor one reward alone
        assert filter.keep(narrow)
        filter.end_step(seen)
    assert not filter.keep(narrow)
    average = (wide_std + (wide_std + narrow_std) / 2) / 2
    assert filter.state["thresholds"][0]["average"] == pytest.approx(average)
    filter.end_step([narrow, narrow])
    assert filter.state["thresholds"][0]["average"] == pytest.approx(0.5 * average + 0.5 * narrow_std)


def test_a_restored_filter_goes_on_exactly(make_config: Make, make_group: MakeGroup) -> None:
    config = make_config(RLPR)
    groups = [make_group(0, {"1": 0.1 * place, "2": 0.37}) for place in range(9)]
    whole, first, second = GroupFilter(config), GroupFilter(config), GroupFilter(config)
    for step in range(3):
        whole.end_step(groups[step:])
        first.end_step(groups[step:])
    second.restore(json.loads(json.dumps(first.state)))
    for step in range(3, 8):
        assert [whole.keep(group) for group in groups] == [second.keep(group) for group in groups]
        whole.end_step(groups[step:])
        second.end_step(groups[step:])
        assert second.state == whole.state


def test_nothing_to_restore_leaves_a_new_filter_and_another_recipe_is_refused(make_config: Make) -> None:
    filter = GroupFilter(make_config(RLPR))
    filter.restore({})
    assert filter.state == GroupFilter(make_config(RLPR)).state
    with pytest.raises(ValueError, match="the checkpoint has 0 moving thresholds, the recipe 1"):
        filter.restore(GroupFilter(make_config("filter=null")).state)


def test_deviations_that_are_no_number_neither_count_nor_pass() -> None:
    threshold = StdThreshold(beta=1.0, start_step=1, filter_step=2)
    assert threshold.keep(math.nan)
    threshold.end_step([math.nan])
    assert threshold.threshold is None  # nothing was taken down: all groups are kept
    threshold.end_step([0.2, math.nan, math.inf])
    assert threshold.threshold == 0.2
    assert (threshold.keep(math.nan), threshold.keep(0.2), threshold.keep(0.1)) == (False, True, False)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("filter={kind: std_threshold, start_step: 11}", "start_step must come before filter_step"),
        ("filter=[{kind: accuracy, lowr: 0.1}]", "did you mean"),
    ],
)
def test_mistakes_in_filters_are_named(make_config: Make, override: str, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        make_config(override)


def test_one_section_a_list_or_nothing_are_the_same_setting(make_config: Make) -> None:
    def kinds(override: str) -> list[Any]:
        return [one.kind for one in make_config(override).filter]

    assert kinds("filter=null") == []
    assert kinds("filter={kind: spread}") == kinds("filter=[{kind: spread}]") == ["spread"]
