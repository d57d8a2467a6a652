"""Log-probs and entropies without full logits: values and gradients are those of log_softmax."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from guerdon.logprobs import head

VOCABULARY, WIDTH = 11, 6


class Stub(nn.Module):
    """No trunk, one head."""

    def __init__(self, *, bias: bool = False, cap: float | None = None) -> None:
        super().__init__()
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
        self.config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(final_logit_softcapping=cap))

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def plain(model: Stub, hidden_ND: Tensor, targets_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    scaled_NV = head.output_head(model)[0](hidden_ND) / temperature
    logps_NV = scaled_NV.log_softmax(-1)
    return logps_NV.gather(1, targets_N[:, None])[:, 0], -(logps_NV.exp() * logps_NV).sum(-1)


def gradients(model: Stub, hidden_ND: Tensor, logps_N: Tensor, entropy_N: Tensor, use: str) -> list[Tensor]:
    weights_N = torch.linspace(-1, 2, len(logps_N))
    parts = {"logps": weights_N * logps_N, "entropy": weights_N.flip(0) * entropy_N}
    sum(part.sum() for name, part in parts.items() if name in use).backward()  # pyright: ignore
    grads = [hidden_ND.grad, *(parameter.grad for parameter in model.parameters())]
    return [grad.clone() for grad in grads if grad is not None]


@pytest.mark.parametrize("rows", [1, 3, 100])
@pytest.mark.parametrize("kind", [{}, {"bias": True}, {"cap": 2.0}])
@pytest.mark.parametrize("use", ["logps", "entropy", "logps and entropy"])
def test_values_and_gradients_are_those_of_all_logits(
    monkeypatch: pytest.MonkeyPatch, rows: int, kind: dict[str, Any], use: str
) -> None:
    monkeypatch.setattr(head, "LOGITS_PER_CHUNK", rows * VOCABULARY)
    model, targets_N = Stub(**kind), torch.tensor([0, 10, 3, 3, 7])
    hidden_ND = (torch.randn(5, WIDTH) * 3).requires_grad_()
    expected = plain(model, hidden_ND, targets_N, 0.7)
    expected_grads = gradients(model, hidden_ND, *expected, use)
    hidden_ND.grad = None
    model.zero_grad()
    logps_N, entropy_N = head.target_logprobs(model, hidden_ND, targets_N, 0.7, entropy=True)
    assert entropy_N is not None
    torch.testing.assert_close((logps_N, entropy_N), expected, atol=1e-6, rtol=1e-5)
    for grad, wanted in zip(
        gradients(model, hidden_ND, logps_N, entropy_N, use), expected_grads, strict=True
    ):
        torch.testing.assert_close(grad, wanted, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        without = head.target_logprobs(model, hidden_ND, targets_N, 0.7, entropy=True)
    torch.testing.assert_close(without, expected, atol=1e-6, rtol=1e-5)


def test_entropy_comes_only_when_asked_for_and_its_metric_costs_no_gradient() -> None:
    model, hidden_ND, targets_N = Stub(), torch.randn(2, WIDTH, requires_grad=True), torch.tensor([1, 2])
    assert head.target_logprobs(model, hidden_ND, targets_N, 1.0)[1] is None
    logps_N, entropy_N = head.target_logprobs(model, hidden_ND, targets_N, 1.0, entropy=True)
    assert entropy_N is not None
    logps_N.sum().backward()
    with_entropy = hidden_ND.grad
    hidden_ND.grad = None
    head.target_logprobs(model, hidden_ND, targets_N, 1.0)[0].sum().backward()
    torch.testing.assert_close(hidden_ND.grad, with_entropy, atol=0, rtol=0)


def test_a_frozen_head_gets_no_gradient_and_passes_one_on() -> None:
    model, hidden_ND = Stub(), torch.randn(3, WIDTH, requires_grad=True)
    model.requires_grad_(False)
    head.target_logprobs(model, hidden_ND, torch.tensor([1, 2, 3]), 1.0)[0].sum().backward()
    assert model.lm_head.weight.grad is None
    assert hidden_ND.grad is not None
    assert float(hidden_ND.grad.norm()) > 0


def test_bf16_states_give_fp32_log_probs_and_bf16_gradients() -> None:
    model = Stub().to(torch.bfloat16)
    hidden_ND = torch.randn(4, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    targets_N = torch.tensor([1, 2, 3, 4])
    logps_N, _ = head.target_logprobs(model, hidden_ND, targets_N, 1.0)
    exact = torch.nn.functional.linear(hidden_ND.float(), model.lm_head.weight.float()).log_softmax(-1)
    torch.testing.assert_close(logps_N, exact.gather(1, targets_N[:, None])[:, 0], atol=1e-6, rtol=0)
    logps_N.sum().backward()
    assert hidden_ND.grad is not None
    assert (hidden_ND.grad.dtype, model.lm_head.weight.grad.dtype) == (torch.bfloat16, torch.bfloat16)  # pyright: ignore
