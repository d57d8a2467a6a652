"""Loading, encoding, and following published weights."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerFast

from guerdon import weights
from guerdon.types import ChatMessage, Sample
from guerdon_services import models
from guerdon_services.models import FollowedModel, following
from guerdon_services.runtime.scorer import NotReady, Unscorable


def publish(folder: Path, version: int, source: Path, *, add: float = 0.0) -> None:
    """Publish `source` with `add` on every parameter."""
    loaded = models.load(source)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter += add
    weights.publish(folder, version, lambda path: loaded.model.save_pretrained(path))
    shutil.copy(source / "tokenizer.json", weights.version_path(folder, version))
    shutil.copy(source / "tokenizer_config.json", weights.version_path(folder, version))


def snapshot(followed: FollowedModel) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in followed.model.parameters()]


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path)):
        models.load(tmp_path)


def test_loads_in_fp32_and_evaluation_mode(tiny_llama: Path) -> None:
    loaded = models.load(tiny_llama)
    assert not loaded.model.training
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.vocabulary_size == 259
    assert loaded.context_length == 128


def test_the_tokenizer_is_the_one_in_the_folder(tiny_qwen2: Path) -> None:
    """AutoTokenizer would split ` 7` in two: it puts Qwen's pre-tokeniser into whatever lies beside a Qwen2."""
    tokenizer = models.load(tiny_qwen2).tokenizer
    assert tokenizer.tokenize("is 7") == ["i", "s", "Ġ7"]


def test_a_plain_folder_is_version_0_until_something_is_published(tmp_path: Path, tiny_qwen2: Path) -> None:
    followed = FollowedModel(tiny_qwen2, tmp_path / "weights")
    assert followed.version == 0
    assert not followed.refresh()
    publish(tmp_path / "weights", 3, tiny_qwen2, add=0.5)
    before, module = snapshot(followed), followed.model
    assert followed.refresh()
    assert (followed.version, followed.model) == (3, module)
    for old, new in zip(before, snapshot(followed), strict=True):
        torch.testing.assert_close(new, old + 0.5)
    assert not followed.refresh()


@pytest.fixture
def tiny_mixtral(tmp_path: Path, tiny_llama: Path) -> Path:
    """A mixture of experts, whose files name each expert while its modules hold all of a layer's in one tensor."""
    folder = tmp_path / "mixtral"
    config = MixtralConfig(
        vocab_size=259,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=3,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=1,
    )
    MixtralForCausalLM(config).save_pretrained(folder)
    for path in tiny_llama.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def test_a_mixture_of_experts_is_followed(tmp_path: Path, tiny_mixtral: Path) -> None:
    followed = FollowedModel(tiny_mixtral, tmp_path / "weights")
    publish(tmp_path / "weights", 1, tiny_mixtral, add=0.5)
    before, module = snapshot(followed), followed.model
    assert followed.refresh()
    assert (followed.version, followed.model) == (1, module)
    for old, new in zip(before, snapshot(followed), strict=True):
        torch.testing.assert_close(new, old + 0.5)


def test_weights_of_another_mixture_leave_the_old_ones_serving(
    tmp_path: Path, tiny_mixtral: Path, tiny_llama: Path
) -> None:
    followed = FollowedModel(tiny_mixtral, tmp_path / "weights")
    before = snapshot(followed)
    publish(tmp_path / "weights", 1, tiny_llama)
    assert not followed.refresh()
    assert followed.version == 0
    for old, new in zip(before, snapshot(followed), strict=True):
        assert torch.equal(old, new)


def test_starts_with_the_latest_version_of_a_weights_folder(tmp_path: Path, tiny_llama: Path) -> None:
    publish(tmp_path, 7, tiny_llama, add=0.25)
    assert FollowedModel(tmp_path).version == 7


def test_follows_back_to_an_older_version(tmp_path: Path, tiny_llama: Path) -> None:
    publish(tmp_path, 1, tiny_llama)
    publish(tmp_path, 2, tiny_llama, add=1.0)
    followed = FollowedModel(tmp_path)
    weights.set_latest(tmp_path, 1)
    assert followed.refresh()
    assert followed.version == 1


def test_a_version_published_anew_is_taken_up_again(tmp_path: Path, tiny_llama: Path) -> None:
    publish(tmp_path, 1, tiny_llama)
    followed = FollowedModel(tmp_path)
    before = snapshot(followed)
    publish(tmp_path, 1, tiny_llama, add=1.0)
    assert followed.refresh()
    torch.testing.assert_close(snapshot(followed)[0], before[0] + 1.0)


def _truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _empty(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _other_model(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("damage", [_truncate, _empty, _other_model])
def test_a_damaged_version_leaves_the_old_one_serving(
    tmp_path: Path, tiny_llama: Path, damage: Callable[[Path], None]
) -> None:
    publish(tmp_path, 1, tiny_llama)
    followed = FollowedModel(tmp_path)
    before = snapshot(followed)
    publish(tmp_path, 2, tiny_llama, add=1.0)
    damage(weights.version_path(tmp_path, 2))
    assert not followed.refresh()
    assert followed.version == 1
    for old, new in zip(before, snapshot(followed), strict=True):
        assert torch.equal(old, new)
    publish(tmp_path, 2, tiny_llama, add=1.0)
    assert followed.refresh()
    assert followed.version == 2


def test_a_version_published_anew_while_it_is_read_scores_nothing_before_it_is_read_again(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = FollowedModel(tiny_llama, tmp_path)
    before, read = snapshot(followed), following.read_weights
    publish(tmp_path, 1, tiny_llama, add=0.5)

    def meanwhile(model: Any, folder: Path) -> None:
        read(model, folder)
        publish(tmp_path, 1, tiny_llama, add=1.0)

    with monkeypatch.context() as patch:
        patch.setattr(following, "read_weights", meanwhile)
        with pytest.raises(NotReady, match="half read"):
            followed.refresh()
    assert followed.refresh()
    for old, new in zip(before, snapshot(followed), strict=True):
        torch.testing.assert_close(new, old + 1.0)


def test_a_version_published_anew_while_it_is_loaded_is_taken_up(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(tmp_path, 1, tiny_llama)
    load = models.load

    def overtaken(folder: Path, *, device: str = "cpu") -> models.LanguageModel:
        loaded = load(folder, device=device)
        monkeypatch.setattr(following, "load", load)
        publish(tmp_path, 1, tiny_llama, add=0.5)
        return loaded

    monkeypatch.setattr(following, "load", overtaken)
    followed = FollowedModel(tmp_path)
    before = snapshot(followed)
    assert followed.refresh()
    assert all(torch.equal(new, old + 0.5) for new, old in zip(snapshot(followed), before, strict=True))


@pytest.mark.parametrize("text", [b"", b"rubbish", b"\xff\xfe", b"-1", "\u0663".encode(), b"1_0", b"9" * 40])
def test_a_latest_that_names_no_version_leaves_the_old_one_serving(
    tmp_path: Path, tiny_llama: Path, text: bytes
) -> None:
    publish(tmp_path, 1, tiny_llama)
    followed = FollowedModel(tmp_path)
    (tmp_path / "LATEST").write_bytes(text)
    assert not followed.refresh()
    assert [one.version for one in followed.versions().versions] == [1]
    publish(tmp_path, 2, tiny_llama, add=0.5)
    assert followed.refresh()
    assert followed.version == 2


def test_a_latest_that_cannot_be_read_leaves_the_old_one_serving(tmp_path: Path, tiny_llama: Path) -> None:
    publish(tmp_path, 1, tiny_llama)
    followed = FollowedModel(tmp_path)
    (tmp_path / "LATEST").unlink()
    (tmp_path / "LATEST").mkdir()
    assert not followed.refresh()
    assert followed.version == 1


def test_text_prompts_and_chat_prompts(tiny_llama: Path) -> None:
    tokenizer = models.load(tiny_llama).tokenizer
    text = models.encode_prompt(tokenizer, "1+1=")
    chat = models.encode_prompt(tokenizer, [ChatMessage(role="user", content="1+1=")])
    own = models.encode_prompt(
        tokenizer, [ChatMessage(role="user", content="1+1=")], chat_template="{{ messages[0].content }}"
    )
    assert tokenizer.decode(text) == "1+1="
    assert tokenizer.decode(chat) == "<user>1+1=\n<assistant>"
    assert own == text


def test_prompt_token_ids_win(tiny_llama: Path) -> None:
    assert models.encode_prompt(models.load(tiny_llama).tokenizer, "abc", [5, 6]) == [5, 6]


@pytest.mark.parametrize("prompt", [None, "", []])
def test_prompts_that_cannot_be_scored(tiny_llama: Path, prompt: str | list[ChatMessage] | None) -> None:
    tokenizer = models.load(tiny_llama).tokenizer
    tokenizer.chat_template = None
    with pytest.raises(Unscorable, match="prompt"):
        models.encode_prompt(tokenizer, prompt)


def test_text_that_a_tokenizer_or_a_template_refuses_is_the_samples_fault(tiny_llama: Path) -> None:
    digits = Tokenizer(WordLevel({"1": 0}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=digits)
    assert models.encode_prompt(tokenizer, "1") == [0]
    with pytest.raises(Unscorable, match=r"^prompt: the tokenizer refuses it: "):
        models.encode_prompt(tokenizer, "one")
    with pytest.raises(Unscorable, match=r"^response: the tokenizer refuses it: "):
        models.encode_response(tokenizer, Sample(response="one"))
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(Unscorable, match=r"^prompt: the tokenizer refuses it: roles must alternate"):
        models.encode_prompt(
            models.load_tokenizer(tiny_llama), [ChatMessage(role="user", content="1")], chat_template=template
        )


def test_text_that_cannot_fit_the_context_is_not_tokenised(tiny_llama: Path) -> None:
    tokenizer = models.load_tokenizer(tiny_llama)
    long = "x" * 100_001
    assert len(models.encode_prompt(tokenizer, long)) == len(long)
    with pytest.raises(
        Unscorable, match=r"^prompt: 100001 characters are more than the model's context of 128"
    ):
        models.encode_prompt(tokenizer, long, context=128)
    with pytest.raises(Unscorable, match=r"^prompt: 100005 characters"):
        models.encode_prompt(tokenizer, [ChatMessage(role="user", content=long)], context=128)
    with pytest.raises(Unscorable, match=r"^prompt: 100002 characters"):
        models.encode_prompt(tokenizer, [ChatMessage(role=long, content="1")], context=128)
    with pytest.raises(Unscorable, match=r"^response: 100001 characters"):
        models.encode_response(tokenizer, Sample(response=long), context=128)
    assert len(models.encode_response(tokenizer, Sample(response=long), context=100_001)) == len(long)


def test_sampled_ids_win_over_the_text_of_a_response(tiny_llama: Path) -> None:
    tokenizer = models.load(tiny_llama).tokenizer
    assert models.encode_response(tokenizer, Sample(response="abc", response_token_ids=[9])) == [9]
    assert models.encode_response(tokenizer, Sample(response="")) == []
    with pytest.raises(Unscorable, match="response: missing"):
        models.encode_response(tokenizer, Sample())


def test_ids_outside_the_vocabulary_are_named(tiny_llama: Path) -> None:
    loaded = models.load(tiny_llama)
    models.check_ids(loaded, "response_token_ids", [0, 258])
    with pytest.raises(Unscorable, match=r"response_token_ids\[1\]: token id 259 .* vocabulary of 259"):
        models.check_ids(loaded, "response_token_ids", [0, 259])


def test_sequences_longer_than_the_context_are_named(tiny_llama: Path) -> None:
    loaded = models.load(tiny_llama)
    models.check_length(loaded, "response", 28, 100)
    with pytest.raises(Unscorable, match=r"response: 28 prompt and 101 response tokens .* context of 128"):
        models.check_length(loaded, "response", 28, 101)
    with pytest.raises(Unscorable, match=r"^prompt: 129 tokens .* context of 128"):
        models.check_length(loaded, "response", 129, 1)


def test_device_memory_is_asked_of_a_gpu_in_use_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(device: str) -> int:
        raise RuntimeError(f"{device} fell off the bus")

    used = {"is_initialized": True, "mem_get_info": (5, 9), "memory_allocated": 2, "memory_reserved": 3}
    assert models.device_memory("cpu") == {}
    assert models.device_memory("cuda:0") == {}, "nothing runs there yet"
    for name, value in used.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    assert models.device_memory("cuda:0") == {"allocated": 2, "reserved": 3, "free": 5}
    monkeypatch.setattr(torch.cuda, "memory_allocated", lost)
    assert models.device_memory("cuda:0") == {}
