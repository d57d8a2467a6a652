import math
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from guerdon_trainer.batch import Batch, make_batch
from guerdon_trainer.config import RecipeError, RunConfig
from guerdon_trainer.groups import Group, ProcessRewards, RolloutError
from guerdon_trainer.objective import advantages_of
from guerdon_trainer.prepare import TinyPolicy
from guerdon_trainer.prepare.tiny import build_model, build_tokenizer
from guerdon_trainer.step import Learner, add_adapters, all_logprobs, kl_in_reward, make_learner, optimise

Make = Callable[..., RunConfig]
LOSSES = (
    ("loss={name: gspo}", "advantage={name: grpo}"),
    ("loss={name: gspo_token}", "advantage={name: rloo}"),
    ("loss={name: ppo_clip, aggregation: token-mean}", "advantage={name: grpo, scale: none}"),
    ("loss={name: ppo_clip, aggregation: seq-mean-token-mean, dual_clip: 3}", "advantage={name: rloo}"),
)
#: `RECIPE` without its process reward.
PLAIN = ("rewards=[{service: math}]", "process_reward=null")


@pytest.fixture
def batch(make_group: Callable[..., Group]) -> Batch:
    groups = [
        make_group(0, {"1": 1.0, "12345": 0.0, "12": 0.5, "": 0.0}),
        make_group(1, {"+3": 1.0, "4444": 0.0, "7;": None}, prompt="1+2+3+4="),
    ]
    return make_batch(groups, None)


def _learner(config: RunConfig, *, initial: bool = False) -> Learner:
    def model() -> torch.nn.Module:
        return build_model(TinyPolicy(hidden_size=16, layers=1, heads=2), build_tokenizer(), seed=1).eval()

    return make_learner(model(), model() if initial else None, config.optimizer)  # pyright: ignore[reportArgumentType]


def _gradient(
    config: RunConfig, batch: Batch, advantages: Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
    """The gradient of one step, read off a plain SGD step of rate 1."""
    learner = _learner(config)
    before = torch.nn.utils.parameters_to_vector(learner.model.parameters()).detach().clone()
    sgd = torch.optim.SGD(learner.model.parameters(), lr=1.0)
    learner = Learner(learner.policy, sgd, torch.optim.lr_scheduler.LambdaLR(sgd, lambda _: 1.0), None)
    advantages = advantages_of(config, batch) if advantages is None else advantages
    metrics = optimise(learner, batch, advantages, config, 1)
    return before - torch.nn.utils.parameters_to_vector(learner.model.parameters()).detach(), metrics


@pytest.mark.parametrize("old", ["recompute", "engine"])
@pytest.mark.parametrize("overrides", LOSSES)
def test_micro_batches_of_any_size_give_the_same_step(
    make_config: Make, batch: Batch, overrides: tuple[str, str], old: str
) -> None:
    words = (*PLAIN, *overrides, f"optimizer.old_logprobs={old}")
    results = [
        _gradient(make_config(*words, f"optimizer.micro_batch_tokens={tokens}"), batch)
        for tokens in (10_000, 25, 1)
    ]
    whole, metrics = results[0]
    assert float(whole.norm()) > 1e-4
    # The engine of these tests claims other log-probabilities: what has to become rarer is clipped already.
    assert (metrics["clip_fraction"] > 0) == (old == "engine")
    for gradient, other in results[1:]:
        torch.testing.assert_close(gradient, whole, atol=1e-6, rtol=1e-4)
        assert other == pytest.approx(metrics, abs=1e-5)


@pytest.mark.parametrize("overrides", LOSSES)
def test_a_response_without_reward_changes_nothing(
    make_config: Make, make_group: Callable[..., Group], overrides: tuple[str, str]
) -> None:
    config = make_config(*PLAIN, *overrides)
    rewarded = {"1": 1.0, "12345": 0.0, "12": 1.0}
    without = _gradient(config, make_batch([make_group(0, rewarded)], None))[0]
    with_one = _gradient(config, make_batch([make_group(0, {**rewarded, "7777777": None})], None))[0]
    torch.testing.assert_close(with_one, without, atol=1e-7, rtol=0)


def test_the_loss_falls_for_what_was_rewarded(make_config: Make, batch: Batch) -> None:
    config = make_config(*PLAIN, *LOSSES[0], "optimizer.warmup_steps=0")
    learner = _learner(config)
    before = all_logprobs(learner.policy, batch, 1.0, 10_000)
    for step in range(20):
        optimise(learner, batch, advantages_of(config, batch), config, step)
    change_BT = all_logprobs(learner.policy, batch, 1.0, 10_000) - before
    assert float(change_BT[0].sum()) > 0  # the right one of group 0
    assert float(change_BT[1].sum()) < 0  # the wrong one


def test_process_rewards_reach_single_tokens(make_config: Make, make_group: Callable[..., Group]) -> None:
    groups = [make_group(0, {"12": 1.0, "34": 0.0, "56": None})]
    process = ProcessRewards({"0/0": [0.3, -0.1], "0/1": [0.0, 0.2]}, 1, {})
    config = make_config("advantage.whiten=false")
    advantages_BT = advantages_of(config, make_batch(groups, process))
    # Process: returns-to-go of r_t minus the other response's mean; outcome: leave-one-out, +1 and -1.
    expected = torch.tensor([[0.2 - 0.1 * 2 + 1, -0.1 - 0.1 + 1], [0.2 - 0.1 * 2 - 1, 0.2 - 0.1 - 1], [0, 0]])
    torch.testing.assert_close(advantages_BT, expected)


def test_kl_in_the_reward_is_taken_of_the_policy_that_sampled(make_config: Make, batch: Batch) -> None:
    advantage = "advantage={name: reinforce_pp, whiten: false, kl_coefficient: 0.5}"
    config = make_config(*PLAIN, advantage, "loss={name: ppo_clip}", "optimizer.micro_batch_tokens=25")
    learner = _learner(config, initial=True)
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.mul_(1.5)
    kl_BT = kl_in_reward(learner, batch, config)
    assert kl_BT is not None
    assert learner.initial is not None
    now_BT, before_BT = (all_logprobs(one, batch, 1.0, 10_000) for one in (learner.policy, learner.initial))
    torch.testing.assert_close(kl_BT, now_BT - before_BT)
    assert float(kl_BT.abs().max()) > 1e-3
    # A token's penalty also counts for the tokens before it; the response without reward gets nothing.
    lost_BT = advantages_of(config, batch) - advantages_of(config, batch, kl_BT)
    returns_BT = torch.where(batch.mask_BT, 0.5 * kl_BT, 0).flip(-1).cumsum(-1).flip(-1)
    learned_BT = batch.mask_BT & batch.valid_B[:, None]
    torch.testing.assert_close(lost_BT, torch.where(learned_BT, returns_BT, 0), atol=1e-6, rtol=1e-5)
    engine = make_config(*PLAIN, advantage, "loss={name: ppo_clip}", "optimizer.old_logprobs=engine")
    torch.testing.assert_close(kl_in_reward(learner, batch, engine), batch.engine_logps_BT - before_BT)
    assert kl_in_reward(learner, batch, make_config(*PLAIN, *LOSSES[0])) is None


def test_the_learning_rate_warms_up_over_optimiser_steps(make_config: Make, batch: Batch) -> None:
    config = make_config(*PLAIN, *LOSSES[0], "optimizer.lr=0.01", "optimizer.warmup_steps=4")
    learner = _learner(config)
    rates = [optimise(learner, batch, advantages_of(config, batch), config, step)["lr"] for step in range(6)]
    assert rates == pytest.approx([0.0025, 0.005, 0.0075, 0.01, 0.01, 0.01])


def test_mini_batches_are_off_policy_after_the_first(make_config: Make, batch: Batch) -> None:
    one = make_config(*PLAIN, *LOSSES[0])
    learner = _learner(one, initial=True)
    metrics = optimise(learner, batch, advantages_of(one, batch), one, 1)
    assert (metrics["kl_old"], metrics["clip_fraction"], metrics["ratio_mean"]) == (0.0, 0.0, 1.0)
    assert metrics["kl_initial"] == pytest.approx(0.0, abs=1e-6)
    three = make_config(
        *PLAIN, *LOSSES[0], "optimizer.mini_batches=3", "optimizer.lr=0.05", "optimizer.warmup_steps=0"
    )
    learner = _learner(three, initial=True)
    metrics = optimise(learner, batch, advantages_of(three, batch), three, 1)
    assert metrics["kl_old"] > 0
    assert metrics["ratio_mean"] != 1.0
    assert metrics["kl_initial"] > 0


def test_ratios_may_start_from_the_engines_logprobs(make_config: Make, batch: Batch) -> None:
    config = make_config(*PLAIN, *LOSSES[0], "optimizer.old_logprobs=engine")
    metrics = optimise(_learner(config), batch, advantages_of(config, batch), config, 1)
    # The fake engine claims -0.5 nats for tokens that the model gives about -log 18.
    assert metrics["ratio_mean"] == pytest.approx(math.exp(0.5) / 18, rel=0.2)
    assert metrics["engine_mismatch"] == pytest.approx(math.log(18) - 0.5, abs=0.2)


def test_metrics_say_what_happened(make_config: Make, batch: Batch) -> None:
    config = make_config(*PLAIN, *LOSSES[0])
    metrics = optimise(_learner(config), batch, advantages_of(config, batch), config, 1)
    assert set(metrics) == {
        "loss", "ratio_mean", "clip_fraction", "entropy", "kl_old", "engine_mismatch", "engine_mismatch_max",
        "engine_kl", "grad_norm", "lr",
    }  # fmt: skip
    assert all(math.isfinite(value) for value in metrics.values())
    # 18 symbols, hardly trained: close to uniform, and the fake engine claims -0.5 nats for each.
    assert metrics["entropy"] == pytest.approx(math.log(18), abs=0.1)
    assert metrics["engine_mismatch"] == pytest.approx(math.log(18) - 0.5, abs=0.2)


def test_a_batch_without_any_reward_is_an_error(make_config: Make, make_group: Callable[..., Group]) -> None:
    config = make_config(*PLAIN, *LOSSES[0])
    batch = make_batch([make_group(0, {"1": None, "2": None})], None)
    with pytest.raises(RolloutError, match="no response of the batch has a reward"):
        optimise(_learner(config), batch, advantages_of(config, batch), config, 1)


def test_a_gradient_that_is_no_number_ends_the_step(make_config: Make, batch: Batch) -> None:
    config = make_config(*PLAIN, *LOSSES[0])
    learner = _learner(config)
    weight = next(learner.policy.parameters())
    weight.register_hook(lambda slope: slope * math.nan)
    with pytest.raises(RolloutError, match=r"step 3: the gradient is no number \(norm nan\)"):
        optimise(learner, batch, advantages_of(config, batch), config, 3)


#: A correction that goes with one advantage per sequence, and one per token; NaN stands where the engine said nothing.
CORRECTED = (
    (*LOSSES[0], "importance={level: sequence, cap: 8}"),
    (*LOSSES[1], "importance={level: token, cap: 8}"),
    (*LOSSES[2], "importance={level: token, cap: 8}"),
)


def _engine(batch: Batch, config: RunConfig, drift: float) -> Batch:
    """The batch of an engine that finds every token e^drift times less likely than the trainer."""
    logps_BT = all_logprobs(_learner(config).policy, batch, 1.0, 10_000)
    nothing_BT = torch.full_like(logps_BT, math.nan)
    return replace(batch, engine_logps_BT=torch.where(batch.sampled_BT, logps_BT - drift, nothing_BT))


@pytest.mark.parametrize("overrides", CORRECTED)
def test_where_engine_and_trainer_agree_a_correction_changes_nothing(
    make_config: Make, batch: Batch, overrides: tuple[str, ...]
) -> None:
    plain, corrected = make_config(*PLAIN, *overrides[:-1]), make_config(*PLAIN, *overrides)
    batch = _engine(batch, plain, 0.0)
    gradient, metrics = _gradient(plain, batch)
    again, figures = _gradient(corrected, batch)
    torch.testing.assert_close(again, gradient, atol=1e-7, rtol=1e-5)
    assert metrics["engine_kl"] == pytest.approx(0, abs=1e-9)
    assert figures["importance_weight"] == pytest.approx(1)
    assert figures["importance_truncated"] == 0
    assert "importance_weight" not in metrics


@pytest.mark.parametrize("cap", [8.0, 1.25])
@pytest.mark.parametrize("tokens", [10_000, 1])
def test_tokens_that_the_engine_found_less_likely_weigh_more_up_to_the_cap(
    make_config: Make, batch: Batch, cap: float, tokens: int
) -> None:
    words = (*PLAIN, *LOSSES[2], "optimizer.max_grad_norm=1e3", f"optimizer.micro_batch_tokens={tokens}")
    plain, corrected = make_config(*words), make_config(*words, f"importance={{level: token, cap: {cap}}}")
    batch = _engine(batch, plain, math.log(2))
    gradient, metrics = _gradient(plain, batch)
    again, figures = _gradient(corrected, batch)
    weight = min(2.0, cap)
    torch.testing.assert_close(again, gradient * weight, atol=1e-6, rtol=1e-4)
    assert figures["importance_weight"] == pytest.approx(weight, rel=1e-5)
    assert figures["importance_truncated"] == (cap < 2)
    # KL(engine || trainer) by k3: e^d - d - 1 with d the trainer's log-probability less the engine's.
    assert metrics["engine_kl"] == pytest.approx(2 - math.log(2) - 1, rel=1e-4)
    assert metrics["engine_mismatch"] == pytest.approx(math.log(2), rel=1e-4)


def test_each_token_has_its_own_weight_where_a_response_has_one_advantage(
    make_config: Make, batch: Batch
) -> None:
    words = (*PLAIN, *LOSSES[2], "optimizer.max_grad_norm=1e3")
    plain, corrected = make_config(*words), make_config(*words, "importance={level: token, cap: 8}")
    drift_BT = torch.linspace(-1, 1, batch.mask_BT.numel()).reshape(batch.mask_BT.shape)
    exact = _engine(batch, plain, 0.0)
    batch = replace(exact, engine_logps_BT=exact.engine_logps_BT - drift_BT)
    weighted_BT = advantages_of(plain, batch)[:, None] * drift_BT.exp()
    expected, _ = _gradient(plain, batch, weighted_BT)
    torch.testing.assert_close(_gradient(corrected, batch)[0], expected, atol=1e-6, rtol=1e-4)


def test_a_sequence_weighs_by_all_its_tokens(make_config: Make, make_group: Callable[..., Group]) -> None:
    words = (*PLAIN, *LOSSES[0])
    plain = make_config(*words)
    corrected = make_config(*words, "importance={level: sequence, cap: 64}")
    group = make_group(0, {"12": 1.0, "345": 0.0})
    batch = _engine(make_batch([group], None), plain, math.log(2))
    lengths_B = batch.mask_BT.sum(-1)
    _, figures = _gradient(corrected, batch)
    expected = float((lengths_B * 2.0**lengths_B).sum() / lengths_B.sum())
    assert figures["importance_weight"] == pytest.approx(expected, rel=1e-4)


def test_a_missing_peft_is_one_sentence(make_config: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    lora = make_config("optimizer.lora={}").optimizer.lora
    assert lora is not None
    with pytest.raises(
        RecipeError, match=r"optimizer.lora needs the library peft: pip install guerdon-trainer\[lora\]"
    ):
        add_adapters(build_model(TinyPolicy(), build_tokenizer(), seed=0), lora)
