from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from guerdon import weights
from guerdon_trainer.batch import Batch, make_batch
from guerdon_trainer.groups import Group
from guerdon_trainer.model import Policy, checkpoint_layers, load_policy, load_tokenizer, token_logprobs
from guerdon_trainer.prepare import TinyPolicy
from guerdon_trainer.prepare.tiny import build_model, build_tokenizer
from guerdon_trainer.step import all_logprobs
from guerdon_trainer.weights import publish_policy


@pytest.fixture
def model() -> PreTrainedModel:
    return build_model(TinyPolicy(hidden_size=16, layers=2, heads=2), build_tokenizer(), seed=0).eval()


@pytest.fixture
def batch(make_group: Callable[..., Group]) -> Batch:
    groups = [
        make_group(0, {"1": 1.0, "12345": 0.0, "12": 0.0}),
        make_group(1, {"": 0.0, "+3": 1.0}, prompt="1+2+3+4="),
    ]
    return make_batch(groups, None)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_each_row_alone_with_all_logits(
    model: PreTrainedModel, batch: Batch, temperature: float
) -> None:
    logps_BT, entropy_BT = token_logprobs(Policy(model), batch, temperature)
    for row in range(len(batch)):
        start, end = int(batch.prompt_lengths_B[row]), int(batch.lengths_B[row])
        ids = batch.input_ids_BS[row : row + 1, :end]
        all_TV = (model(input_ids=ids).logits[0] / temperature).log_softmax(-1)[start - 1 : end - 1]
        expected = all_TV.gather(-1, ids[0, start:end, None])[:, 0]
        torch.testing.assert_close(logps_BT[row, : end - start], expected, atol=1e-5, rtol=0)
        entropy = -(all_TV.exp() * all_TV).sum(-1)
        torch.testing.assert_close(entropy_BT[row, : end - start], entropy, atol=1e-5, rtol=0)
    assert bool((logps_BT[~batch.mask_BT] == 0).all())
    assert logps_BT.dtype == torch.float32


def test_nan_in_padding_changes_nothing(model: PreTrainedModel, batch: Batch) -> None:
    """Neither values nor gradients: nothing outside the mask is read."""

    def gradient(given: Batch) -> tuple[Tensor, Tensor]:
        policy = Policy(model)
        policy.zero_grad()
        logps_BT, _ = token_logprobs(policy, given, 0.8)
        logps_BT.square().sum().backward()
        return logps_BT.detach(), torch.cat(
            [parameter.grad.flatten() for parameter in policy.parameters() if parameter.grad is not None]
        )

    inside_BS = torch.arange(batch.input_ids_BS.shape[1])[None] < batch.lengths_B[:, None]
    spoilt = replace(
        batch,
        input_ids_BS=torch.where(inside_BS, batch.input_ids_BS, 10**6),
        response_ids_BT=torch.where(batch.mask_BT, batch.response_ids_BT, -5),
        engine_logps_BT=torch.where(batch.mask_BT, batch.engine_logps_BT, float("nan")),
    )
    torch.testing.assert_close(gradient(spoilt), gradient(batch), atol=0, rtol=0)


def test_a_packed_row_and_a_padded_batch_have_the_same_gradients(
    model: PreTrainedModel, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients: list[Tensor] = []
    for packed in (True, False):
        monkeypatch.setattr("guerdon.logprobs.engine.packs", lambda *_, packed=packed: packed)
        model.zero_grad()
        logps_BT, entropy_BT = token_logprobs(Policy(model), batch, 0.8)
        (logps_BT.square() + entropy_BT).sum().backward()
        gradients.append(
            torch.cat([cast(Tensor, parameter.grad).flatten() for parameter in model.parameters()])
        )
    assert float(gradients[0].norm()) > 1
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-5, rtol=1e-5)


def test_layers_that_are_computed_again_give_the_same_gradients(batch: Batch) -> None:
    def run(again: bool) -> list[Tensor]:
        model = build_model(TinyPolicy(hidden_size=16, layers=2, heads=2), build_tokenizer(), seed=0).eval()
        calls: list[int] = []
        model.model.layers[1].self_attn.register_forward_hook(lambda *_: calls.append(1))
        if again:
            checkpoint_layers(model)
        policy = Policy(model)
        calls.clear()
        token_logprobs(policy, batch, 1.0)[0].sum().backward()
        assert len(calls) == (2 if again else 1)
        return [cast(Tensor, parameter.grad) for parameter in model.parameters()]

    torch.testing.assert_close(run(True), run(False), atol=1e-6, rtol=1e-5)


def test_bf16_layers_give_fp32_logprobs_near_the_exact_ones(model: PreTrainedModel, batch: Batch) -> None:
    exact_BT, _ = token_logprobs(Policy(model), batch, 1.0)
    rough_BT, _ = token_logprobs(Policy(model, autocast=torch.bfloat16), batch, 1.0)
    assert rough_BT.dtype == torch.float32
    drift = (rough_BT - exact_BT).abs()[batch.mask_BT]
    assert 0 < float(drift.detach().max()) < 0.05
    rough_BT.sum().backward()
    assert all(cast(Tensor, parameter.grad).dtype == torch.float32 for parameter in model.parameters())


def test_micro_batches_change_no_logprob(model: PreTrainedModel, batch: Batch) -> None:
    whole_BT, _ = token_logprobs(Policy(model), batch, 1.0)
    for max_tokens in (1, 25):
        torch.testing.assert_close(
            all_logprobs(Policy(model), batch, 1.0, max_tokens), whole_BT.detach(), atol=1e-5, rtol=0
        )


def test_what_is_published_loads_as_it_was(model: PreTrainedModel, batch: Batch, tmp_path: Path) -> None:
    publish_policy(Policy(model), build_tokenizer(), tmp_path, 3)
    latest = weights.latest(tmp_path)
    assert latest is not None
    assert latest.version == 3
    loaded = load_policy(latest.path, torch.device("cpu"))
    assert load_tokenizer(latest.path)("1+2=")["input_ids"] == build_tokenizer()("1+2=")["input_ids"]
    torch.testing.assert_close(
        token_logprobs(Policy(loaded), batch, 1.0)[0],
        token_logprobs(Policy(model), batch, 1.0)[0],
        atol=0,
        rtol=0,
    )
