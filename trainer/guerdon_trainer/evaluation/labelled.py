"""Labelled responses from a JSONL file: samples as services take them, and whether each is right."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from guerdon.codec import describe
from guerdon.types import Sample
from guerdon_trainer.data import DataError, did_you_mean

#: The label must not reach who is judged.
_TAKEN = tuple(name for name in Sample.model_fields if name not in ("id", "outcome"))


@dataclass(frozen=True)
class Labelled:
    """A row of the file; rows without a group are a group of their own."""

    place: str
    sample: Sample
    right: bool
    group: str


def read_labelled(path: Path, label: str, fields: Mapping[str, str]) -> list[Labelled]:
    """Every row. `fields` names the field of the file for a field of `Sample` where the two differ.

    Raises:
        DataError: a row is not as it should be; names line and field.
    """
    unknown = [name for name in fields if name not in _TAKEN]
    if unknown:
        raise DataError(
            f"--field {unknown[0]}: a sample has no such field{did_you_mean(unknown[0], list(_TAKEN))}"
        )
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    rows: list[Labelled] = []
    # `splitlines` also splits at characters that JSON strings may hold (U+2028 and others).
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if line.strip():
            rows.append(_row(line, f"{path}:{number}", str(number), label, fields))
    if not rows:
        raise DataError(f"{path} has no rows")
    return rows


def _row(line: str, place: str, number: str, label: str, fields: Mapping[str, str]) -> Labelled:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as problem:
        raise DataError(f"{place}: no JSON: {problem.msg} at column {problem.colno}") from problem
    if not isinstance(row, dict):
        raise DataError(f"{place}: an object was expected, not {type(row).__name__}")
    content = cast("dict[str, Any]", row)
    for name, option in {
        label: "--label",
        **{source: f"--field {to}" for to, source in fields.items()},
    }.items():
        if name not in content:
            raise DataError(f"{place}: no field {name!r} ({option}){did_you_mean(name, list(content))}")
    right = content[label]
    if right not in (0, 1):
        raise DataError(f"{place}: the field {label!r} is {right!r}: a label is true or false, 1 or 0")
    found = {
        name: content[fields.get(name, name)]
        for name in _TAKEN
        if content.get(fields.get(name, name)) is not None
    }
    if "response" not in found and "response_token_ids" not in found:
        raise DataError(
            f"{place}: no field 'response' (--field response=NAME names another)"
            f"{did_you_mean('response', list(content))}"
        )
    if not isinstance(found.get("references", []), list):
        found["references"] = [found["references"]]
    if "references" in found:
        found["references"] = [
            item if isinstance(item, str) else json.dumps(item) for item in found["references"]
        ]
    try:
        # As JSON: strict models take a list for a tuple, or text for an enum, only there.
        sample = Sample.model_validate_json(json.dumps({**found, "id": number}))
    except ValidationError as error:
        raise DataError(f"{place}: {describe(error)}") from error
    return Labelled(place, sample, bool(right), sample.group or f"row {number}")
