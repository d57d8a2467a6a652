"""Every recipe that comes with the trainer, and what a recipe takes from another one."""

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from guerdon_trainer.config import RunConfig, load_recipe, recipe_names
from guerdon_trainer.config.errors import RecipeError

SERVICES = {entry.name: entry for entry in entry_points(group="guerdon.services")}
SMALL = [name for name in recipe_names() if name.endswith("_small")]
PAPERS = ["dapo", "dr_grpo", "gspo", "grpo", "nft", "prime", "prime_gspo", "rft", "rlpr", "verifree"]


def test_each_paper_has_its_recipe_and_a_small_one() -> None:
    assert set(PAPERS) | {f"{paper}_small" for paper in PAPERS} <= set(recipe_names())


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_starts_what_it_uses(recipe: str) -> None:
    config = load_recipe(recipe)
    used = {source.service for source in config.sources.values()}
    assert used <= set(config.services)
    for reward in config.rewards:
        if reward.follows_policy:
            assert config.services[reward.name].settings["model"] == str(
                config.run_folder / "weights" / "policy"
            )


@pytest.mark.parametrize("recipe", recipe_names())
def test_services_know_their_settings_and_options(recipe: str) -> None:
    config = load_recipe(recipe)
    for name, service in config.services.items():
        scorer = SERVICES[service.service or name].load()
        scorer.settings_type.model_validate(service.settings)
    for reward in config.rewards:
        SERVICES[reward.source.service or ""].load().options_type.model_validate(reward.options)


@pytest.mark.parametrize("recipe", SMALL)
def test_small_recipes_differ_in_their_algorithm_alone(recipe: str) -> None:
    config, base = load_recipe(recipe), load_recipe("grpo_small")
    for same in ("policy", "data", "eval_data", "rollout"):
        assert getattr(config, same) == getattr(base, same), same
    assert config.training == base.training
    assert config.rewards[0].service == "math", "the first reward measures accuracy"


def of(recipe: str) -> dict[str, Any]:
    """Some settings of a recipe, flat."""
    config: RunConfig = load_recipe(recipe)
    return {
        "prompts": config.rollout.prompts_per_step,
        "group": config.rollout.group_size,
        "length": config.rollout.max_new_tokens,
        "mini_batches": config.optimizer.mini_batches,
        "lr": config.optimizer.lr,
        "warmup": config.optimizer.warmup_steps / config.optimizer.mini_batches,
        "decay": config.optimizer.weight_decay,
        "loss": config.loss.model_dump(),
        "advantage": config.advantage.model_dump() if config.advantage else None,
        "filters": {one.kind: one.model_dump() for one in config.filter},
        "rewards": {reward.name: (reward.weight, reward.options) for reward in config.rewards},
    }


def test_published_numbers() -> None:
    """Those that the papers and their released scripts give; docs/papers says where each stands."""
    gspo = of("gspo")
    assert (gspo["loss"]["clip_low"], gspo["loss"]["clip_high"]) == (3e-4, 4e-4)
    assert (gspo["mini_batches"], gspo["group"], gspo["lr"]) == (4, 16, 1e-6)
    assert (gspo["prompts"], gspo["length"], gspo["warmup"], gspo["decay"]) == (512, 8192, 25, 0.1)
    grpo = of("grpo")
    assert (grpo["loss"]["kl_coefficient"], grpo["loss"]["kl_estimator"]) == (0.04, "k3")
    assert (grpo["prompts"] * grpo["group"], grpo["group"], grpo["mini_batches"]) == (1024, 64, 1)
    dr_grpo = of("dr_grpo")
    assert (dr_grpo["advantage"]["scale"], dr_grpo["loss"]["norm"]) == ("none", dr_grpo["length"])
    assert (dr_grpo["prompts"], dr_grpo["group"], dr_grpo["mini_batches"], dr_grpo["length"]) == (
        128,
        8,
        8,
        3000,
    )
    dapo = of("dapo")
    assert (dapo["loss"]["clip_low"], dapo["loss"]["clip_high"]) == (0.2, 0.28)
    assert dapo["loss"]["aggregation"] == "token-mean"
    overlong = dapo["rewards"]["rules"][1]["rules"][0]
    assert (dapo["length"], overlong["max_length"], overlong["buffer"]) == (20480, 20480, 4096)
    assert (dapo["prompts"], dapo["group"], dapo["mini_batches"]) == (512, 16, 16)
    # Schedules of the public code count batches, ours updates.
    assert (dapo["warmup"], dapo["decay"]) == (20, 0.1)
    prime = of("prime")
    assert (prime["prompts"], prime["group"], prime["lr"], prime["length"]) == (256, 4, 5e-7, 3072)
    assert (prime["filters"]["accuracy"]["lower"], prime["filters"]["accuracy"]["upper"]) == (0.2, 0.8)
    assert prime["rewards"]["process_reward"][1]["beta"] == 0.05
    nft = of("nft")
    assert (nft["prompts"], nft["group"], nft["mini_batches"], nft["lr"]) == (512, 16, 16, 1e-6)
    assert (nft["warmup"], nft["decay"]) == (10, 0.1)
    assert (nft["loss"]["omega"], nft["loss"]["eps"], nft["loss"]["neg_weight"]) == ("drgrpo", 1.0, 1.0)
    assert of("rft")["loss"] == {**nft["loss"], "neg_weight": 0.0}
    verifree = of("verifree")
    assert (verifree["prompts"], verifree["group"], verifree["length"]) == (16, 8, 3000)
    assert (verifree["loss"]["aggregation"], verifree["advantage"]["name"]) == ("seq-mean-token-sum", "rloo")
    rlpr = of("rlpr")
    assert (rlpr["prompts"], rlpr["group"], rlpr["mini_batches"], rlpr["length"]) == (768, 8, 4, 3072)
    assert (rlpr["loss"]["clip_high"], rlpr["filters"]["std_threshold"]["beta"]) == (0.27, 0.5)
    assert {name: weight for name, (weight, _) in rlpr["rewards"].items()} == {
        "math": 0.0, "reference_reward": 0.9, "rules": 0.1,
    }  # fmt: skip


def written(folder: Path, name: str, content: dict[str, Any]) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_recipe_that_extends_another_says_what_it_changes(
    tmp_path: Path, unit_recipe: dict[str, Any]
) -> None:
    base = written(tmp_path, "base", {**unit_recipe, "name": "the base", "seed": 5})
    changed = {
        "extends": str(base),
        "optimizer": {"lr": 0.5},
        "loss": {"name": "ppo_clip", "clip_high": 0.3},
        "rewards": [{"service": "math"}],
        "process_reward": None,
        "advantage": {"name": "grpo"},
    }
    config = load_recipe(str(written(tmp_path, "top", changed)), ["seed=6"])
    assert (config.name, config.seed) == ("top", 6)
    assert (config.optimizer.lr, config.optimizer.warmup_steps) == (0.5, 2)
    assert config.loss.model_dump(exclude_defaults=True) == {"clip_high": 0.3}
    assert [reward.service for reward in config.rewards] == ["math"]
    assert config.data == load_recipe(str(base)).data
    twice = written(tmp_path, "twice", {"extends": str(tmp_path / "top.yaml"), "loss": {"clip_low": 0.1}})
    assert load_recipe(str(twice)).loss.model_dump(exclude_defaults=True) == {
        "clip_low": 0.1,
        "clip_high": 0.3,
    }


def test_a_recipe_cannot_extend_itself_nor_what_is_not_there(tmp_path: Path) -> None:
    one, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    one.write_text(f"extends: {other}")
    other.write_text(f"extends: {one}")
    with pytest.raises(RecipeError, match="extends itself"):
        load_recipe(str(one))
    one.write_text("extends: nowhere")
    with pytest.raises(RecipeError, match="no recipe 'nowhere'"):
        load_recipe(str(one))
