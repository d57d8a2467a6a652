"""Which losses, advantages and rewards go together, and that their micro-batches add up."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from guerdon.types import Result, Span, Status, Verdict
from guerdon_trainer.batch import Batch, make_batch
from guerdon_trainer.config import RunConfig
from guerdon_trainer.config.errors import RecipeError
from guerdon_trainer.groups import Group, ProcessRewards, Response
from guerdon_trainer.objective import advantages_of, denominator_of, loss_of

Make = Callable[..., RunConfig]
MakeGroup = Callable[..., Group]

PLAIN = ("rewards=[{service: math}, {service: rules, weight: 0.1}]", "process_reward=null")
FIRST = ("rewards=[{service: math}, {service: rules, weight: 0}]", "process_reward=null")
REFERENCE = (
    "rewards=[{service: math, weight: 0},"
    " {service: reference_reward, follows_policy: true, options: {template: verifree}}]",
    "process_reward=null",
)
OLDER = ("rollout.max_policy_age=1", "optimizer.old_logprobs=engine")
AGGREGATIONS = (
    "aggregation: token-mean",
    "aggregation: seq-mean-token-mean",
    "aggregation: seq-mean-token-sum",
    "aggregation: seq-mean-token-sum-norm, norm: 9",
)
SEQUENCE = ("{name: grpo}", "{name: grpo, scale: none}", "{name: grpo, min_std: 1e-6}", "{name: rloo}")
PER_TOKEN = ("{name: reinforce_pp, gamma: 0.9}", "{name: reinforce_pp, baseline: group}")
TERMS = ", kl_coefficient: 0.1, entropy_coefficient: 0.01"


def recipes() -> list[tuple[str, ...]]:
    """Overrides of every loss with every advantage that fits it, of plain and of process rewards."""
    plain = [
        *[(loss, a) for loss in ("name: gspo", "name: gspo, delta: 2") for a in SEQUENCE],
        *[("name: gspo_token", a) for a in (*SEQUENCE, *PER_TOKEN)],
        *[
            (f"name: {name}, {how}", a)
            for name in ("ppo_clip", "reinforce")
            for how in AGGREGATIONS
            for a in (SEQUENCE[0], PER_TOKEN[0])
        ],
    ]
    nft = [
        f"name: nft, {how}, {more}"
        for how in AGGREGATIONS
        for more in ("omega: drgrpo", "omega: grpo, eps: 0.5", "omega: none, neg_weight: 0")
    ]
    verifree = [(f"name: verifree, {how}", a) for how in AGGREGATIONS for a in (SEQUENCE[1], SEQUENCE[3])]
    process = [
        (loss, a)
        for loss in ("name: gspo_token", "name: ppo_clip", "name: reinforce")
        for a in ("{name: prime}", "{name: prime, form: released, gamma_process: 0.9}", PER_TOKEN[1])
    ]
    return [
        *[(*PLAIN, f"loss={{{loss}{TERMS}}}", f"advantage={a}") for loss, a in plain],
        *[(*FIRST, f"loss={{{loss}{TERMS}}}", "advantage=null") for loss in nft],
        *[(*REFERENCE, f"loss={{{loss}{TERMS}}}", f"advantage={a}") for loss, a in verifree],
        *[(f"loss={{{loss}{TERMS}}}", f"advantage={a}") for loss, a in process],
    ]


def judged(response: Response, value: float | None) -> Response:
    """The response with a reference that begins after half of it."""
    if value is None:
        return response
    half = len(response.rollout.token_ids) // 2
    span = Span(start=0, end=1, token_start=half, token_end=half + 2, sampled_tokens=half)
    result = Result(status=Status.OK, value=value, token_ids=[4, 5], verdict=Verdict(span=span))
    return replace(response, results={"reference_reward": result}, reward=value)


@pytest.fixture
def groups(make_group: MakeGroup) -> list[Group]:
    """Two groups of ragged size, with a response without reward, an empty and a truncated one."""
    made = [
        make_group(0, {"1": 1.0, "12345": 0.0, "12": 0.5, "": 0.0, "123": 1.0}),
        make_group(1, {"+3": 1.0, "4444": 0.0, "7;": None}, prompt="1+2+3+4="),
    ]
    cut = made[0].responses[4]
    cut = replace(cut, rollout=cut.rollout.model_copy(update={"finish_reason": "length"}))
    return [replace(made[0], responses=[*made[0].responses[:4], cut]), made[1]]


def batch_of(config: RunConfig, groups: list[Group]) -> Batch:
    """The batch that a step of this recipe would learn from."""
    process = None
    if config.process:
        rows = [response for group in groups for response in group.responses if response.reward is not None]
        rewards = {row.id: [0.1 * at - 0.15 for at in range(len(row.rollout.token_ids))] for row in rows}
        process = ProcessRewards(rewards, 1, {})
    if config.injected:
        groups = [
            replace(group, responses=[judged(response, response.reward) for response in group.responses])
            for group in groups
        ]
    return make_batch(groups, process, injected=config.injected, mask_truncated=config.loss.mask_truncated)


def numbers(batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities of the policy, of an older one and of the initial one, and entropies."""
    generator = torch.Generator().manual_seed(7)
    shape = batch.mask_BT.shape
    logps = -2 * torch.rand(shape, generator=generator)
    old, initial = (logps + 0.2 * torch.randn(shape, generator=generator) for _ in range(2))
    return logps, old, initial, torch.rand(shape, generator=generator)


def gradients(config: RunConfig, batch: Batch, parts: list[list[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, and its gradient for log-probabilities and for entropies, summed over micro-batches."""
    logps, old, initial, entropy = numbers(batch)
    logps.requires_grad_()
    entropy.requires_grad_()
    advantages, denominator = advantages_of(config, batch), denominator_of(config.loss, batch)
    total = torch.zeros(())
    for rows in parts:
        part = batch.select(torch.tensor(rows))
        width = part.mask_BT.shape[1]
        rows_advantages = advantages[rows] if advantages.dim() == 1 else advantages[rows, :width]
        loss = loss_of(
            config.loss,
            logps[rows, :width],
            old[rows, :width],
            rows_advantages,
            part,
            denominator,
            initial_logps_BT=initial[rows, :width],
            entropy_BT=entropy[rows, :width],
        )
        loss.value.backward()
        total += loss.value.detach()
    assert logps.grad is not None
    return total, logps.grad, torch.zeros_like(entropy) if entropy.grad is None else entropy.grad


@pytest.mark.parametrize("overrides", recipes(), ids=lambda words: " ".join(words[-2:]))
def test_rule_5_micro_batches_of_every_recipe_add_up(
    make_config: Make, groups: list[Group], overrides: tuple[str, ...]
) -> None:
    config = make_config(*overrides)
    batch = batch_of(config, groups)
    whole = gradients(config, batch, [[0, 1, 2, 3, 4, 5, 6, 7]])
    cut = gradients(config, batch, [[2], [0, 7, 5], [3, 1], [6, 4]])
    for one, other in zip(whole, cut, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other)
    _, slope, entropy_slope = whole
    learned_BT = batch.learned_BT
    assert (slope[learned_BT] != 0).any()
    assert (slope[~learned_BT] == 0).all(), "a token that is not learned from has a gradient"
    assert (entropy_slope[batch.sampled_BT & learned_BT] < 0).all()
    assert (entropy_slope[~(batch.sampled_BT & learned_BT)] == 0).all()


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        ("name: gspo", 6),  # 8 responses, one without reward and an empty one
        ("name: gspo, mask_truncated: true", 5),
        ("name: ppo_clip, aggregation: seq-mean-token-sum", 6),
        ("name: ppo_clip", 1 + 5 + 2 + 3 + 2 + 4),
        ("name: reinforce, mask_truncated: true", 1 + 5 + 2 + 2 + 4),
    ],
)
def test_what_a_loss_is_divided_by(make_config: Make, groups: list[Group], loss: str, count: int) -> None:
    config = make_config(*PLAIN, f"loss={{{loss}}}", "advantage={name: rloo}")
    assert denominator_of(config.loss, batch_of(config, groups)) == count


def test_a_truncated_response_counts_in_the_baseline_and_gives_no_gradient(
    make_config: Make, groups: list[Group]
) -> None:
    words = (*PLAIN, "advantage={name: rloo}")
    results = {}
    for masked in ("true", "false"):
        config = make_config(
            *words, f"loss={{name: gspo, clip_low: 0.9, clip_high: 9, mask_truncated: {masked}}}"
        )
        batch = batch_of(config, groups)
        results[masked] = (advantages_of(config, batch), gradients(config, batch, [list(range(8))])[1])
    torch.testing.assert_close(results["true"][0], results["false"][0])
    assert (results["true"][1][4] == 0).all()
    assert (results["false"][1][4, :3] != 0).all()


def test_the_terms_beside_a_loss_are_what_they_say(make_config: Make, groups: list[Group]) -> None:
    words = (*PLAIN, "advantage={name: grpo}")
    plain = make_config(*words, "loss={name: ppo_clip}")
    terms = make_config(*words, f"loss={{name: ppo_clip, kl_estimator: k2{TERMS}}}")
    batch = batch_of(plain, groups)
    everything = [list(range(8))]
    value, slope, _ = gradients(plain, batch, everything)
    with_terms, slope_with_terms, entropy_slope = gradients(terms, batch, everything)
    logps, _, initial, entropy = numbers(batch)
    learned = batch.learned_BT
    difference = (logps - initial)[learned]
    expected = 0.1 * 0.5 * difference.square().mean() - 0.01 * entropy[learned].mean()
    torch.testing.assert_close(with_terms - value, expected)
    torch.testing.assert_close((slope_with_terms - slope)[learned], 0.1 * difference / learned.sum())
    torch.testing.assert_close(entropy_slope[learned], -0.01 / learned.sum().expand(difference.shape))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k1+", "k3+"])
def test_rule_1_nothing_outside_the_mask_matters_to_the_kl_term(
    make_config: Make, groups: list[Group], estimator: str
) -> None:
    loss = f"loss={{name: gspo, kl_coefficient: 0.1, kl_estimator: {estimator}}}"
    config = make_config(*PLAIN, "advantage={name: grpo}", loss)
    batch = batch_of(config, groups)
    advantages = advantages_of(config, batch)
    slopes: list[Tensor] = []
    for filler in (0.0, float("nan"), float("inf")):
        logps, old, initial = (torch.where(batch.learned_BT, values, filler) for values in numbers(batch)[:3])
        logps.requires_grad_()
        loss_of(config.loss, logps, old, advantages, batch, 6, initial_logps_BT=initial).value.backward()
        assert logps.grad is not None
        slopes.append(logps.grad)
    for slope in slopes[1:]:
        torch.testing.assert_close(slope, slopes[0], rtol=0, atol=0)


def test_a_term_without_its_numbers_is_an_error(make_config: Make, groups: list[Group]) -> None:
    config = make_config(*PLAIN, "advantage={name: grpo}", "loss={name: gspo, kl_coefficient: 0.1}")
    batch = batch_of(config, groups)
    logps, old, *_ = numbers(batch)
    with pytest.raises(ValueError, match=r"loss\.kl_coefficient needs"):
        loss_of(config.loss, logps, old, advantages_of(config, batch), batch, 6)


def test_nft_weighs_with_the_rates_of_all_rewarded_responses(make_config: Make, groups: list[Group]) -> None:
    config = make_config(*FIRST, "loss={name: nft}", "advantage=null")
    rates = advantages_of(config, batch_of(config, groups))
    assert rates[:5].tolist() == pytest.approx([0.5] * 5)
    assert rates[5:7].tolist() == pytest.approx([0.5] * 2)


def test_verifree_weighs_references_by_their_probability_or_by_the_advantage(
    make_config: Make, groups: list[Group]
) -> None:
    by_weight = {}
    for weight in ("reward", "advantage"):
        config = make_config(
            *REFERENCE, f"loss={{name: verifree, weight: {weight}}}", "advantage={name: rloo}"
        )
        batch = batch_of(config, groups)
        slope = gradients(config, batch, [list(range(8))])[1]
        by_weight[weight] = -slope * denominator_of(config.loss, batch)
        advantages = advantages_of(config, batch)
    row, reference = 1, batch.reference_BT[1]
    assert reference.sum() == 2
    assert (by_weight["reward"][row][reference] == batch.weights_B[row]).all()
    torch.testing.assert_close(by_weight["advantage"][row][reference], advantages[row].expand(2))
    sampled = batch.sampled_BT[row]
    torch.testing.assert_close(by_weight["reward"][row][sampled], advantages[row].expand(int(sampled.sum())))


def test_a_custom_template_of_another_type_is_left_to_the_service(make_config: Make) -> None:
    options = "rewards.1.options={template: custom, custom_template: what}"
    make_config(*REFERENCE, options, "loss={name: verifree}", "advantage={name: rloo}")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ((*PLAIN, "loss={name: nft}"), "loss nft needs advantage null"),
        ((*PLAIN, "advantage=null"), "loss nft needs advantage null"),
        (
            (*PLAIN, "loss={name: nft}", "advantage=null"),
            "loss nft learns from math alone, which says how right a response is",
        ),
        (
            (*PLAIN, "advantage={name: reinforce_pp}", "loss={name: gspo}"),
            "advantage reinforce_pp is per token and loss gspo per sequence: use loss gspo_token",
        ),
        ((*PLAIN, "advantage={name: prime}"), "advantage prime needs an entry of rewards with role process"),
        (
            ("advantage={name: grpo}",),
            "an entry of rewards with role process needs advantage prime or reinforce_pp",
        ),
        (
            (*REFERENCE, "loss={name: verifree}", "advantage={name: reinforce_pp}"),
            "advantage reinforce_pp is per token and loss verifree per sequence",
        ),
        (
            (*PLAIN, "loss={name: verifree}", "advantage={name: rloo}"),
            "loss.service 'reference_reward' is no entry of rewards with role outcome",
        ),
        (
            (*REFERENCE, "loss={name: verifree}", "advantage={name: rloo}", "rollout.temperature=0.7"),
            "loss verifree needs the same temperature in the options of 'reference_reward' (1.0) and in",
        ),
        (
            (
                "rewards=[{service: reference_reward, options: {template: rlpr}}]",
                "process_reward=null",
                "loss={name: verifree}",
                "advantage={name: rloo}",
            ),
            "loss verifree needs all tokens of the answer scored",
        ),
        (
            (
                "rewards=[{service: reference_reward, options: {template: verifree}}]",
                "process_reward=null",
                "loss={name: verifree}",
                "advantage={name: rloo}",
            ),
            "loss verifree needs follows_policy: true beside 'reference_reward'",
        ),
        (
            (
                *REFERENCE,
                "rewards.1.options={template: verifree, aggregation: mean_logprob}",
                "loss={name: verifree}",
                "advantage={name: rloo}",
            ),
            "loss.weight reward raises the reference's likelihood by R, which is negative",
        ),
        (
            (*REFERENCE, "loss={name: verifree}", "advantage={name: rloo}", *OLDER),
            "loss verifree has no ratio to the policy that sampled: rollout.max_policy_age must be 0",
        ),
        (
            (*PLAIN, "loss={name: reinforce}", "advantage={name: rloo}", *OLDER),
            "loss reinforce has no ratio to the policy that sampled: rollout.max_policy_age must be 0, or give",
        ),
        (
            ("rewards=[{service: math, weight: 0}]", "process_reward=null", "advantage={name: rloo}"),
            "every entry of rewards has weight 0: there is nothing to learn from",
        ),
        (
            (
                *("rewards=[{service: math, weight: 0}]", "process_reward=null", "filter={kind: spread}"),
                *("loss={name: nft}", "advantage=null"),
            ),
            "filter spread looks at how rewards differ, and every outcome in rewards has weight 0",
        ),
        (
            (*PLAIN, "advantage={name: grpo}", "loss.kl_coefficient=0.1", "training.kl_to_initial=false"),
            "loss.kl_coefficient needs training.kl_to_initial",
        ),
        (
            (*PLAIN, "advantage={name: grpo}", "loss={name: ppo_clip, norm: 3}"),
            "'loss': norm belongs to aggregation seq-mean-token-sum-norm",
        ),
        (
            (*PLAIN, "advantage={name: grpo}", "loss={name: ppo_clip, dual_clip: 3, delta: 3}"),
            "'loss': dual_clip and delta bound the same ratio",
        ),
    ],
)
def test_what_does_not_go_together_is_one_sentence_with_its_keys(
    make_config: Make, overrides: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RecipeError) as error:
        make_config(*overrides)
    assert str(error.value).startswith(sentence)
    assert len(str(error.value).splitlines()) == 1
