from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from guerdon_trainer.config import RunConfig, load_recipe, recipe_names
from guerdon_trainer.config.algorithms import GspoConfig, GspoTokenConfig
from guerdon_trainer.config.errors import RecipeError

Make = Callable[..., RunConfig]


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_is_valid(recipe: str) -> None:
    config = load_recipe(recipe)
    assert config.name == recipe
    assert config.run_folder == Path.cwd() / "runs" / f"{recipe}-seed0"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("loss.clip_lo=1e-3", "unknown key 'loss.clip_lo': did you mean 'loss.clip_low'?"),
        ("trainin.steps=3", "unknown key 'trainin': did you mean 'training'?"),
        ("rollout.tempratur=1", "unknown key 'rollout.tempratur': did you mean 'rollout.temperature'?"),
        ("rewards.0.wieght=2", "unknown key 'rewards.0.wieght': did you mean 'rewards.0.weight'?"),
        (
            "advantage.gama_process=1",
            "unknown key 'advantage.gama_process': did you mean 'advantage.gamma_process'?",
        ),
        (
            "services.math.setings={}",
            "unknown key 'services.math.setings': did you mean 'services.math.settings'?",
        ),
        ("group_size=2", "unknown key 'group_size': did you mean 'rollout.group_size'?"),
        ("policy.layer=2", "unknown key 'policy.layer': did you mean 'policy.layers'?"),
        ("rollout.group_size=1", "'rollout.group_size': input should be greater than or equal to 2 (got 1)"),
        ("optimizer.lr=quick", "'optimizer.lr': input should be a valid number"),
        ("rewards.7.weight=1", "override 'rewards.7.weight': '7' must be a number from 0 to 1"),
        ("seed.x=1", "override 'seed.x': seed is a value, not a section"),
        ("seed", "override 'seed' must look like key=value, for example seed=1"),
        ("loss.name=gspo", "advantage prime is per token and loss gspo per sequence: use loss gspo_token"),
        (
            "process_reward=null",
            "an entry of rewards with role process and the section process_reward need each other",
        ),
        (
            "advantage={name: rloo}",
            "an entry of rewards with role process needs advantage prime or reinforce_pp",
        ),
        (
            "rollout.group_size=1025",
            "'rollout.group_size': input should be less than or equal to 1024 (got 1025)",
        ),
        ("evaluation.samples=1025", "'evaluation.samples': input should be less than or equal to 1024"),
        ("rollout.stop=['']", "'rollout.stop.0': string should have at least 1 character (got '')"),
        ("training.device=gpu", "'training.device': string should match pattern '^(cpu|cuda|"),
        ("loss=[", "override 'loss': '[' is not YAML: while parsing"),
        ("optimizer.betas=[1.0, 0.9]", "'optimizer.betas.0': input should be less than 1 (got 1.0)"),
        (
            "filter={kind: accuracy, lower: 0.9, upper: 0.1}",
            "'filter.0': lower must not be above upper: no group would ever pass",
        ),
        (
            "filter={kind: truncation, margin: 5}",
            "filter truncation: margin (5) must be below rollout.max_new_tokens (5)",
        ),
        ("seed=9223372036854775808", "'seed': input should be less than 9223372036854775808"),
        ("failures.timeout_s=1e30", "'failures.timeout_s': input should be less than or equal to 604800"),
        ("rewards.0.url=''", "'rewards.0.url': string should have at least 1 character"),
        ("rollout.max_policy_age=1", "rollout.max_policy_age above 0 needs optimizer.old_logprobs engine"),
        ("rollout.ahead=1", "rollout.ahead above rollout.max_policy_age: groups would be too old"),
        ("tracking=[excel]", "'tracking.0': input should be 'tensorboard', 'wandb', 'mlflow' or 'trackio'"),
        ("rewards.0.role=process", "rewards needs at least one entry with role outcome"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_path(make_config: Make, override: str, sentence: str) -> None:
    with pytest.raises(RecipeError) as error:
        make_config("seed=0", override)
    assert str(error.value).startswith(sentence)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("optimizer.old_logprobs=engine",), "importance corrects nothing where optimizer.old_logprobs is"),
        (
            (
                "loss={name: gspo}",
                "advantage={name: grpo}",
                "rewards=[{service: math}]",
                "process_reward=null",
            ),
            "loss gspo is per sequence: importance.level must be sequence",
        ),
        (
            ("loss={name: nft}", "advantage=null", "rewards=[{service: math}]", "process_reward=null"),
            "importance weights advantages, and loss nft has no use for them",
        ),
    ],
)
def test_importance_goes_with_what_it_can_weigh(
    make_config: Make, overrides: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        make_config("importance={}", *overrides)


def test_importance_makes_up_for_an_older_policy(make_config: Make) -> None:
    config = make_config("importance={}", "rollout.max_policy_age=1", "rollout.ahead=1")
    assert config.importance is not None
    assert (config.importance.level, config.importance.cap) == ("token", 2.0)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(RecipeError, match=r"no recipe 'quikstart'.*quickstart"):
        load_recipe("quikstart")


def test_overrides_reach_nested_keys_and_lists(make_config: Make) -> None:
    config = make_config(
        "seed=7", "rewards.0.weight=0.5", "loss.clip_low=1e-3", "rewards.0.options.rules=[1, 2]"
    )
    assert config.seed == 7
    assert config.rewards[0].weight == 0.5
    assert config.rewards[0].options == {"rules": [1, 2]}
    assert isinstance(config.loss, GspoConfig | GspoTokenConfig)
    assert config.loss.clip_low == 1e-3


def test_the_run_folder_is_put_in_place_of_its_variable(make_config: Make, tmp_path: Path) -> None:
    config = make_config("services.prm.settings.model=${run}/policy")
    assert config.services["prm"].settings == {"model": f"{tmp_path}/run/policy"}


def test_a_config_is_frozen_and_survives_yaml(make_config: Make) -> None:
    config = make_config()
    dumped: Any = yaml.safe_load(yaml.safe_dump(config.model_dump(mode="json")))
    assert RunConfig.model_validate(dumped) == config
    with pytest.raises(ValidationError):
        config.seed = 3  # pyright: ignore[reportAttributeAccessIssue]
