"""Turns pydantic's errors into sentences that name the key and what was probably meant."""

import difflib
from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError


class RecipeError(ValueError):
    """The recipe or an override does not fit; the message is one sentence per mistake."""


def explain(error: ValidationError, model: type[BaseModel]) -> str:
    """One line per mistake, each with the dotted path of the key."""
    return "\n".join(_sentence(dict(item), model) for item in error.errors(include_url=False))


def _sentence(item: dict[str, Any], model: type[BaseModel]) -> str:
    path, siblings = _resolve(item["loc"], model)
    dotted = ".".join(path)
    if item["type"] == "extra_forbidden":
        return f"unknown key {dotted!r}{_suggestion(path, siblings, model)}"
    if item["type"] == "missing":
        return f"{dotted!r} is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    if not dotted:
        return message
    return f"{dotted!r}: {message[:1].lower()}{message[1:]} (got {item['input']!r})"


def _suggestion(path: Sequence[str], siblings: list[str], model: type[BaseModel]) -> str:
    *parents, last = path
    close = difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)
    if close:
        return f": did you mean {'.'.join([*parents, close[0]])!r}?"
    elsewhere = [known for known in _paths(model, ()) if known[-1] == last]
    if elsewhere:
        return f": did you mean {'.'.join(elsewhere[0])!r}?"
    return f": the keys here are {', '.join(siblings)}" if siblings else ""


def _resolve(loc: Sequence[str | int], model: type[BaseModel]) -> tuple[list[str], list[str]]:
    """The path without the union tags pydantic puts in it, and the keys known beside its last part."""
    path: list[str] = []
    types: list[Any] = [model]
    siblings: list[str] = []
    for part in loc:
        siblings = [name for known in types if _is_model(known) for name in known.model_fields]
        tagged = [known for known in types if _is_model(known) and part in _tags(known)]
        if tagged and part not in siblings:
            types = tagged
            continue
        path.append(str(part))
        types = [below for known in types for below in _below(known, part)]
    return path, siblings


def _below(known: Any, part: str | int) -> list[Any]:
    """The types that the value at `part` of a value of type `known` may have."""
    if _is_model(known):
        field = known.model_fields.get(str(part))
        return _alternatives(field.annotation) if field else []
    if get_origin(known) in (list, dict):
        return _alternatives(get_args(known)[-1])
    return []


def _alternatives(annotation: Any) -> list[Any]:
    if get_origin(annotation) is Annotated:
        return _alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [below for argument in get_args(annotation) for below in _alternatives(argument)]
    return [annotation]


def _is_model(known: Any) -> bool:
    return isinstance(known, type) and issubclass(known, BaseModel)


def _tags(model: type[BaseModel]) -> set[Any]:
    """The values of the fields that tell the members of a union apart, and the class name."""
    return {
        field.default for name, field in model.model_fields.items() if name in ("name", "kind", "source")
    } | {model.__name__}


def _paths(known: Any, prefix: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in known.model_fields.items():
        yield (*prefix, name)
        for below in _alternatives(field.annotation):
            if _is_model(below):
                yield from _paths(below, (*prefix, name))
