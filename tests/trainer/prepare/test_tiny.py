"""The tiny policy: vocabulary, size, reproducible weights, and what the warm-up teaches."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from guerdon_trainer import arithmetic
from guerdon_trainer.prepare import TinyPolicy, tiny


def quiet(_: str) -> None:
    """A progress callback that says nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    tiny.write(TinyPolicy(warmup_steps=60, warmup_batch=64), path, seed=0, progress=quiet)
    return path


def test_one_token_per_symbol_and_back(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = r"6+0+4=06;\boxed{10}"
    ids = tokenizer(text).input_ids
    assert len(ids) == len("6+0+4=06;") + len(["\\boxed{", "1", "0", "}"])
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_tokens_to_ids("\\boxed{") in ids
    assert len(tokenizer) == 18
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    messages = [{"role": "user", "content": "6+0+4="}]
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == "6+0+4="


def test_each_character_outside_the_alphabet_is_one_unknown_token(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer("a 1\n\\", return_offsets_mapping=True)
    assert tokenizer.convert_ids_to_tokens(encoded.input_ids) == ["<unk>", "<unk>", "1", "<unk>", "<unk>"]
    assert encoded.offset_mapping == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert tokenizer.decode(encoded.input_ids, skip_special_tokens=True) == "1"


def test_saved_folder_loads_as_a_small_llama(folder: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "llama"
    assert sum(parameter.numel() for parameter in model.parameters()) == 99_776
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id


def test_same_seed_same_weights(tmp_path: Path) -> None:
    config = TinyPolicy(warmup_steps=3, warmup_batch=8)
    state = torch.random.get_rng_state()
    for name, seed in (("a", 4), ("b", 4), ("c", 5)):
        tiny.write(config, tmp_path / name, seed=seed, progress=quiet)
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random state was touched"
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert files[0] == files[1] != files[2]


def test_warm_up_teaches_the_format(folder: Path) -> None:
    model: Any = LlamaForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = arithmetic.questions(1, 0, split="held_out")[0]
    prompt = torch.tensor([tokenizer(question.prompt).input_ids])
    text = tokenizer.decode(model.generate(prompt, max_new_tokens=12, do_sample=False)[0, prompt.shape[1] :])
    assert text.count(";") == 1
    assert "\\boxed{" in text
    assert text.rstrip().endswith("}" + tiny.EOS)


def test_loss_is_on_the_response_only() -> None:
    ids_BT, labels_BT = next(
        tiny._batches(TinyPolicy(terms=(2, 4), warmup_batch=32), tiny.build_tokenizer(), 0)
    )
    equals = tiny.build_tokenizer().convert_tokens_to_ids("=")
    for ids, labels in zip(ids_BT.tolist(), labels_BT.tolist(), strict=True):
        start = ids.index(equals) + 1
        end = ids.index(tiny.EOS_ID) + 1
        assert labels == [-100] * start + ids[start:end] + [-100] * (len(ids) - end)
        assert ids[end:] == [tiny.PAD_ID] * (len(ids) - end)


def test_warm_up_never_sees_a_held_out_question() -> None:
    rng = random.Random(0)
    held_out = {str(q.prompt) for q in arithmetic.questions(300, 0, split="held_out")}
    prompts = {tiny._example(TinyPolicy(), rng)[0] for _ in range(3000)}
    assert len(prompts) > 500
    assert not prompts & held_out


def test_several_experts_make_a_mixture(tmp_path: Path) -> None:
    config = TinyPolicy(experts=4, intermediate_size=96, warmup_steps=2, warmup_batch=4)
    tiny.write(config, tmp_path, seed=0, progress=quiet)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.model_type == "mixtral"
    assert (model.config.num_local_experts, model.config.num_experts_per_tok) == (4, 2)
    assert model.config.sliding_window is None
    # The tokenizer stays ours beside it.
    assert (
        AutoTokenizer.from_pretrained(tmp_path)("6+0=").input_ids == tiny.build_tokenizer()("6+0=").input_ids
    )
