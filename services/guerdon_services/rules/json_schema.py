"""Is the response, or the last fenced block in it, JSON that satisfies a schema?

References to other documents are not fetched, and the patterns of a schema run under a time limit.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, NoReturn, Self, cast

from jsonschema import Draft202012Validator, SchemaError, ValidationError, validators
from pydantic import Field, JsonValue, model_validator
from referencing import Registry
from referencing.exceptions import Unresolvable

from guerdon.types import Sample
from guerdon_services.rules.answers import AnswerFrom, answer_in
from guerdon_services.rules.base import Outcome, RuleOptions, response_of
from guerdon_services.rules.patterns import matches
from guerdon_services.runtime.scorer import Unscorable

_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
_PATTERN_TIME_LIMIT_S = 1.0
#: Characters of JSON that are parsed.
_MAX_CHARS = 1_000_000


class JsonSchemaOptions(RuleOptions):
    """1 when the JSON satisfies `schema` (draft 2020-12), else 0. Without a schema any JSON does."""

    rule: Literal["json_schema"]
    json_schema: dict[str, JsonValue] = Field(default={}, alias="schema")
    answer_from: AnswerFrom = "after_thinking"

    @model_validator(mode="after")
    def _schema_holds(self) -> Self:
        try:
            Draft202012Validator.check_schema(self.json_schema)
        except SchemaError as problem:
            raise ValueError(f"schema: {problem.message}") from problem
        return self


def judge(options: JsonSchemaOptions, sample: Sample) -> Outcome:
    """Parse the response's JSON and validate it."""
    text = answer_in(response_of(sample), options.answer_from)
    if text is None:
        return Outcome(0.0, f"no answer at {options.answer_from}")
    blocks = _FENCE.findall(text)
    text = blocks[-1] if blocks else text
    if len(text) > _MAX_CHARS:
        return Outcome(0.0, f"{len(text)} characters are too many for JSON")
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as problem:
        return Outcome(0.0, f"no JSON: {problem}"[:200])
    fault = _first_fault(options.json_schema, value)
    return Outcome(0.0 if fault else 1.0, fault or "satisfies the schema")


def _first_fault(schema: dict[str, JsonValue], value: Any) -> str | None:
    validator = _validator(json.dumps(schema, sort_keys=True))
    try:
        fault = next(iter(validator.iter_errors(value)), None)
    except Unresolvable as problem:
        raise Unscorable(
            f"options.rules: the schema refers to {problem.ref!r}, which is not in it"
        ) from problem
    except RecursionError:
        return "nested too deeply"
    return None if fault is None else f"{fault.json_path}: {fault.message}"[:300]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(value, str) and not matches(pattern, value, full=False, time_limit_s=_PATTERN_TIME_LIMIT_S):
        yield ValidationError(f"{value[:100]!r} does not match {pattern!r}")


@lru_cache(maxsize=128)
def _validator(schema: str) -> Any:
    extend = cast(Any, validators).extend
    return extend(Draft202012Validator, {"pattern": _pattern})(
        json.loads(schema), registry=cast(Any, Registry)()
    )
