"""What a LoRA run publishes where it publishes adapters alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from rich.console import Console
from torch import Tensor
from transformers import AutoModelForCausalLM

from guerdon import weights
from guerdon_services.rollout.engines import adapters
from guerdon_services.rollout.engines.vllm_weights import tensor_shapes
from guerdon_trainer.config import RecipeError, RunConfig
from guerdon_trainer.launch import ensure_policy
from guerdon_trainer.live import LiveView
from guerdon_trainer.model import load_policy
from guerdon_trainer.run_folder import open_folder, read_lines
from guerdon_trainer.train import Run, train

ADAPTERS = "optimizer.lora={rank: 2, alpha: 6, publish: adapter}"
IDS = torch.tensor([[3, 4, 5, 6, 7]])


@torch.no_grad()
def _logits(model: Any) -> Tensor:
    return model(input_ids=IDS).logits


# peft's own, with the newest transformers.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_a_run_publishes_adapters_that_peft_and_the_rollout_service_read(
    make_config: Any, make_services: Any
) -> None:
    config: RunConfig = make_config(ADAPTERS, "training.steps=2", "filter=null")
    folder = open_folder(config)
    initial = ensure_policy(config, folder, lambda text: None)
    view = LiveView("test", 2, Console(quiet=True))
    train(Run(config, view), make_services(folder.weights).clients, view)
    versions = weights.published(folder.weights)
    assert [one.version for one in versions] == [1, 2]
    for one in versions:
        names = {path.name for path in one.path.iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors"} <= names
        assert "model.safetensors" not in names
        # As the rollout service looks at what it is given: whole, of this base, of no larger rank.
        adapters.check(one.path, initial, tensor_shapes(initial), 2)
    settings = json.loads((versions[-1].path / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["peft_type"]) == (2, 6, "LORA")
    # The trained policy is left whole; put on the initial one, the last adapters give the same.
    base = load_policy(initial, torch.device("cpu"))
    before = _logits(base)
    adapted = PeftModel.from_pretrained(base, str(versions[-1].path)).eval()
    trained = AutoModelForCausalLM.from_pretrained(folder.model)
    torch.testing.assert_close(_logits(adapted), _logits(trained), atol=1e-5, rtol=0)
    assert (_logits(adapted) - before).abs().max() > 1e-3
    # What sampled, by transformers' own reading of such a folder, is what the trainer learned from.
    rows = read_lines(folder.metrics)
    assert max(row["engine_mismatch_max"] for row in rows) < 1e-4


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("rollout.push={urls: ['http://a'], master_address: b}",), "goes without rollout.push"),
        (("rewards.0.follows_policy=true",), "reward 'math' follows the policy, as a whole model"),
        (
            ("services.rollout.settings.model=${run}/weights/policy",),
            "service 'rollout' needs whole models in",
        ),
        (
            ("services.process_reward.settings.policy_weights_dir=${run}/weights/policy",),
            "service 'process_reward' needs whole models in",
        ),
        (
            ("services.rollout.settings={weights_dir: '${run}/weights/policy', engine: vllm}",),
            "service 'rollout' needs engine vllm and max_lora_rank 2",
        ),
        (
            ("services.rollout.settings={weights_dir: '${run}/weights/policy', max_lora_rank: 2}",),
            "service 'rollout' needs engine vllm and max_lora_rank 2",
        ),
    ],
)
def test_adapters_are_for_whom_they_are_enough(
    make_config: Any, overrides: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        make_config(ADAPTERS, *overrides)


def test_a_rollout_service_with_vllm_takes_adapters(make_config: Any, tmp_path: Path) -> None:
    settings = (
        "{model: '${run}/policy', weights_dir: '${run}/weights/policy', engine: vllm, max_lora_rank: 8}"
    )
    config: RunConfig = make_config(ADAPTERS, f"services.rollout.settings={settings}")
    assert config.services["rollout"].settings["weights_dir"] == f"{tmp_path}/run/weights/policy"
