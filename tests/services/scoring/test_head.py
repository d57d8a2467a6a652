"""Log-probs of targets from hidden states, as log_softmax gives them."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import PreTrainedModel

from guerdon.logprobs import head
from guerdon_services import models


@pytest.fixture
def model(tiny_llama: Path) -> PreTrainedModel:
    return models.load(tiny_llama).model


@pytest.mark.parametrize("per_chunk", [1, 3 * 259, 10**6])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_equals_log_softmax_with_and_without_gradients(
    model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch, per_chunk: int, temperature: float
) -> None:
    monkeypatch.setattr(head, "LOGITS_PER_CHUNK", per_chunk)
    hidden = torch.randn(8, model.config.hidden_size) * 5
    kept = hidden.clone()
    targets = torch.tensor([0, 1, 2, 3, 4, 258, 7, 7])
    logits = cast(Any, model).lm_head(hidden) / temperature
    expected = torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(head.target_logprobs(model, hidden, targets, temperature)[0], expected)
    with torch.no_grad():
        plain, _ = head.target_logprobs(model, hidden, targets, temperature)
    torch.testing.assert_close(plain, expected)
    assert torch.equal(hidden, kept)


def test_no_target_is_no_log_prob(model: PreTrainedModel) -> None:
    none = torch.empty(0, dtype=torch.long)
    with torch.no_grad():
        assert head.target_logprobs(model, torch.empty(0, model.config.hidden_size), none, 1.0)[0].shape == (
            0,
        )


def test_soft_capped_logits_are_honoured(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model.config, "final_logit_softcapping", 2.0, raising=False)
    function, _ = head.output_head(model)
    hidden = torch.randn(3, model.config.hidden_size) * 10
    logits = cast(Any, model).lm_head(hidden)
    torch.testing.assert_close(function(hidden), 2.0 * torch.tanh(logits / 2.0))
