"""Which published adapters fit a model: those that peft writes for it, whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from guerdon import weights
from guerdon.fingerprint import BASE, fingerprint
from guerdon_services import models
from guerdon_services.models import WeightsMismatch
from guerdon_services.rollout.engines import adapters, open_engine
from guerdon_services.rollout.engines.vllm_weights import tensor_shapes
from guerdon_services.rollout.settings import RolloutSettings
from tests.services.rollout.lora import TARGETS, write_adapter


@pytest.fixture
def adapter(tiny_llama: Path, tmp_path: Path) -> Path:
    write_adapter(tmp_path / "adapter", tiny_llama, seed=1, rank=4)
    return tmp_path / "adapter"


def check(adapter: Path, base: Path, max_rank: int = 4) -> None:
    adapters.check(adapter, base, tensor_shapes(base), max_rank)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own
def test_what_peft_writes_fits_and_is_what_these_tests_write(
    adapter: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_llama)
    settings = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "peft")
    check(tmp_path / "peft", tiny_llama)
    theirs, ours = (load_file(path / adapters.TENSORS) for path in (tmp_path / "peft", adapter))
    assert {name: one.shape for name, one in theirs.items()} == {
        name: one.shape for name, one in ours.items()
    }
    config = json.loads((tmp_path / "peft" / adapters.CONFIG).read_text())
    assert (config["peft_type"], config["r"], config["lora_alpha"], config["bias"]) == ("LORA", 4, 8, "none")
    assert all(name.endswith(TARGETS) for name in config["target_modules"])


def tensors(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def spoil(adapter: Path) -> None:
        found = load_file(adapter / adapters.TENSORS)
        change(found)
        save_file(found, adapter / adapters.TENSORS)

    return spoil


def config(**changed: Any) -> Callable[[Path], None]:
    def spoil(adapter: Path) -> None:
        found = json.loads((adapter / adapters.CONFIG).read_text())
        (adapter / adapters.CONFIG).write_text(json.dumps(found | changed))

    return spoil


def tear(adapter: Path) -> None:
    file = adapter / adapters.TENSORS
    file.write_bytes(file.read_bytes()[:-10])


_Q = "base_model.model.model.layers.0.self_attn.q_proj"


def rename(found: dict[str, Any]) -> None:
    found["base_model.model.lm_head.weight"] = found.pop(f"{_Q}.lora_A.weight")


@pytest.mark.parametrize(
    ("spoil", "error", "why"),
    [
        (tear, SafetensorError, "incomplete|MetadataIncompleteBuffer"),
        (lambda adapter: (adapter / adapters.TENSORS).unlink(), FileNotFoundError, "No such file"),
        (lambda adapter: (adapter / adapters.CONFIG).write_text("{"), ValueError, "property name"),
        (config(peft_type="IA3"), ValueError, "does not describe a LoRA adapter"),
        (config(r=None), ValueError, "lacks r or lora_alpha"),
        (config(r=2), WeightsMismatch, "rank 4 where adapter_config.json says 2"),
        (tensors(lambda found: found.clear()), WeightsMismatch, "holds no tensor"),
        (tensors(lambda found: found.pop(f"{_Q}.lora_B.weight")), WeightsMismatch, "no 'model.layers.0"),
        (tensors(lambda found: found.pop(f"{_Q}.lora_A.weight")), WeightsMismatch, "no 'model.layers.0"),
        (tensors(rename), WeightsMismatch, "'base_model.model.lm_head.weight' is no part of a LoRA adapter"),
    ],
)
def test_what_is_not_whole_is_refused(
    adapter: Path, tiny_llama: Path, spoil: Callable[[Path], None], error: type[Exception], why: str
) -> None:
    check(adapter, tiny_llama)
    spoil(adapter)
    with pytest.raises(error, match=why):
        check(adapter, tiny_llama)


def test_another_models_and_one_of_too_large_a_rank_are_refused(adapter: Path, tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="its rank is 4, and the service was started with max_lora_rank=3"):
        check(adapter, tiny_llama, max_rank=3)
    wider = {name: tuple(2 * length for length in shape) for name, shape in tensor_shapes(tiny_llama).items()}
    with pytest.raises(WeightsMismatch, match=r"the model has no 'model\.layers\.0"):
        adapters.check(adapter, tiny_llama, wider, 4)


def test_an_adapter_of_the_same_shapes_but_other_weights_is_refused(
    adapter: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    (adapter / BASE).write_text(f"{fingerprint(tiny_llama)}\n")
    check(adapter, tiny_llama)
    loaded = models.load(tiny_llama)
    # The same in other files, and one step of training away.
    loaded.model.save_pretrained(tmp_path / "split", max_shard_size="20KB")
    assert len(list((tmp_path / "split").glob("*.safetensors"))) > 1
    check(adapter, tmp_path / "split")
    with torch.no_grad():
        next(loaded.model.parameters()).mul_(1.001)
    loaded.model.save_pretrained(tmp_path / "trained")
    with pytest.raises(WeightsMismatch, match="was trained on other weights than those in"):
        check(adapter, tmp_path / "trained")


def test_the_transformers_engine_says_that_it_takes_no_adapters(tiny_llama: Path, tmp_path: Path) -> None:
    followed = tmp_path / "followed"
    settings = RolloutSettings(model=tiny_llama, weights_dir=followed, engine="transformers")
    engine = open_engine(settings)
    assert engine.state == "version 0 serves"
    weights.publish(followed, 1, lambda path: write_adapter(path, tiny_llama, seed=1))
    engine.refresh()
    why = "version 0 serves; version 1 was refused: WeightsMismatch: it holds a LoRA adapter, and only"
    assert engine.state.startswith(why)
    with pytest.raises(FileNotFoundError, match="it holds a LoRA adapter"):
        open_engine(settings)
    weights.publish(followed, 2, models.load(tiny_llama).model.save_pretrained)
    engine.refresh()
    assert engine.state == "version 2 serves"
    engine.close()
