"""Which models are packed: those that see everything, and prove it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from guerdon.logprobs import attention, packs
from guerdon_services import models, scoring
from guerdon_services.scoring import ScoredSequence

SEQUENCES = [ScoredSequence([5, 6, 7], [8, 9, 10, 11]), ScoredSequence([5, 6, 7], [8, 12])]


def tiny(kind: str, **settings: Any) -> PreTrainedModel:
    """A random model of some architecture."""
    from transformers import AutoConfig

    shape = dict(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape | settings)).eval()


def check_scores(model: PreTrainedModel, sequences: list[ScoredSequence]) -> None:
    for sequence, logps in zip(sequences, scoring.token_logprobs(model, sequences), strict=True):
        ids = torch.tensor([sequence.ids])
        logits = model(input_ids=ids).logits[0].float()
        plain = torch.log_softmax(logits, -1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(logps, plain[len(sequence.prompt_ids) - 1 :], atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gemma", "olmo2", "phi3", "gpt_neox"])
def test_models_that_see_everything_are_packed(kind: str) -> None:
    model = tiny(kind)
    with torch.no_grad():
        assert packs(model, 7)
        check_scores(model, SEQUENCES)


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "gemma3_text"])
def test_a_window_is_packed_only_where_it_hides_nothing(kind: str) -> None:
    model = tiny(kind, sliding_window=8, use_sliding_window=True, max_window_layers=0)
    with torch.no_grad():
        assert (packs(model, 8), packs(model, 9)) == (True, False)
        check_scores(model, SEQUENCES)
        check_scores(model, [ScoredSequence([5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15]), *SEQUENCES])


def test_a_soft_cap_on_attention_is_not_packed() -> None:
    model = tiny("gemma2", attn_implementation="eager")
    with torch.no_grad():
        assert not packs(model, 4)
        check_scores(model, SEQUENCES)


def test_another_kind_of_layer_is_not_packed() -> None:
    model = tiny("llama")
    model.config.layer_types = ["full_attention", "linear_attention"]
    assert not packs(model, 4)


def test_a_model_whose_packed_row_differs_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention.packed_hidden_states
    monkeypatch.setattr(
        "guerdon.logprobs.support.packed_hidden_states",
        lambda model, row: right(model, row) + torch.arange(len(row.ids))[:, None] * 0.01,
    )
    model = tiny("llama")
    assert not packs(model, 4)


def test_the_models_own_attention_is_back_after_a_failure(tiny_llama: Path) -> None:
    model = models.load(tiny_llama).model
    before = model.config._attn_implementation
    with torch.no_grad(), pytest.raises(IndexError):
        scoring.token_logprobs(model, [ScoredSequence([1], [2, 10**6, 3])])
    assert model.config._attn_implementation == before


@pytest.mark.parametrize(
    ("kind", "settings"), [("granite", {"logits_scaling": 4.0}), ("cohere", {"logit_scale": 0.5})]
)
def test_logits_that_are_made_in_another_way_are_refused(kind: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"(?i){kind}ForCausalLM"):
        scoring.check_head(tiny(kind, **settings))


def test_a_scale_under_any_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    scoring.check_head(model)
    own = model.forward

    def scaled(**given: Any) -> Any:
        output = own(**given)
        output.logits = output.logits * 0.9
        return output

    monkeypatch.setattr(model, "forward", scaled)
    with pytest.raises(ValueError, match="logits"):
        scoring.check_head(model)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_neox"])
def test_other_heads_are_as_they_should(kind: str) -> None:
    scoring.check_head(tiny(kind))


def test_a_vocabulary_of_a_few_words_is_enough() -> None:
    model = tiny("llama", vocab_size=4, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    scoring.check_head(model)
    with torch.no_grad():
        assert packs(model, 4)
        check_scores(model, [ScoredSequence([1, 2], [3, 0]), ScoredSequence([1, 2], [3, 3])])


def test_a_module_that_is_no_language_model_is_padded(table_model: Callable[[Any], nn.Module]) -> None:
    assert not packs(table_model([[0.0, 1.0], [1.0, 0.0]]), 2)
