"""Reads a YAML recipe and `key=value` overrides.

A recipe is found by name in `guerdon_trainer/recipes` or by the path of a file. An override names a key by its
dotted path (`loss.clip_low=1e-3`, `rewards.0.weight=2`, `seed=1`); its value is YAML. In any string `${run}` stands
for the absolute path of the run folder, which is how services find the weights this run publishes.

`extends: RECIPE` takes what is not said from another recipe. Sections are merged key by key, but for one that says
its `name`, `kind` or `source`: it is taken as it is, and so is a list.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from guerdon_trainer.config.errors import RecipeError, explain
from guerdon_trainer.config.run import RunConfig

RECIPES = Path(__file__).parents[1] / "recipes"
RUN_VARIABLE = "${run}"
#: Keys that choose what a section is: whatever else it holds belongs to that choice.
_CHOICES = {"name", "kind", "source"}


def load_recipe(recipe: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a recipe by name or path, apply `key=value` overrides and check the whole.

    Raises:
        RecipeError: no such recipe, or a key or value that does not fit; the message names it.
    """
    raw = read_recipe(recipe, overrides, RECIPES)
    # Where the run lies must be known before `${run}` can be replaced in the rest.
    run_folder = _validated(raw).run_folder
    return _validated(_substituted(raw, str(run_folder)))


def recipe_names(folder: Path = RECIPES) -> list[str]:
    """The recipes of a folder, by default those that come with the trainer."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_recipe(recipe: str, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """A YAML file, or one of `folder` by its name, with its overrides applied; nothing is checked yet.

    Raises:
        RecipeError: no such recipe, no YAML, or an override that does not fit.
    """
    raw = _extended(_find(recipe, folder), folder, ())
    raw.setdefault("name", Path(recipe).stem)
    for override in overrides:
        _apply(raw, override)
    return raw


def _find(recipe: str, folder: Path) -> Path:
    named = folder / f"{recipe}.yaml"
    if named.is_file():
        return named
    path = Path(recipe)
    if path.is_file():
        return path
    raise RecipeError(
        f"no recipe {recipe!r}: it is no file, and the named ones are {', '.join(recipe_names(folder))}"
    )


def _extended(path: Path, folder: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """The recipe at `path` over the one that it extends, if any."""
    if path in extending:
        raise RecipeError(f"{path} extends itself by way of {', '.join(map(str, extending))}")
    raw = _read(path)
    base = raw.pop("extends", None)
    if base is None:
        return raw
    below = _extended(_find(str(base), folder), folder, (*extending, path))
    below.pop("name", None)
    return _merged(below, raw)


def _merged(base: dict[str, Any], raw: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in raw.items():
        below = merged.get(key)
        if isinstance(value, dict) and isinstance(below, dict) and not _CHOICES & value.keys():
            merged[key] = _merged(below, value)
        else:
            merged[key] = value
    return merged


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not YAML: {error}") from error
    if not isinstance(raw, dict):
        raise RecipeError(f"{path} must hold keys and values, not {type(raw).__name__}")
    return raw


def _apply(raw: dict[str, Any], override: str) -> None:
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise RecipeError(f"override {override!r} must look like key=value, for example seed=1")
    *parents, last = dotted.split(".")
    node: Any = raw
    for depth, part in enumerate(parents):
        if isinstance(node, list):
            node = node[_list_index(node, part, dotted)]
            continue
        if node.get(part) is None:
            node[part] = {}
        node = node[part]
        if not isinstance(node, (dict, list)):
            raise RecipeError(
                f"override {dotted!r}: {'.'.join(parents[: depth + 1])} is a value, not a section"
            )
    key: Any = _list_index(node, last, dotted) if isinstance(node, list) else last
    try:
        node[key] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {dotted!r}: {text!r} is not YAML: {_one_line(error)}") from error


def _one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())


def _list_index(node: list[Any], part: str, dotted: str) -> int:
    if not part.isdecimal() or int(part) >= len(node):
        raise RecipeError(f"override {dotted!r}: {part!r} must be a number from 0 to {len(node) - 1}")
    return int(part)


def _substituted(value: Any, run_folder: str) -> Any:
    if isinstance(value, str):
        return value.replace(RUN_VARIABLE, run_folder)
    if isinstance(value, list):
        return [_substituted(item, run_folder) for item in value]
    if isinstance(value, dict):
        return {key: _substituted(item, run_folder) for key, item in value.items()}
    return value


def _validated(raw: dict[str, Any]) -> RunConfig:
    try:
        return RunConfig.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(explain(error, RunConfig)) from None
