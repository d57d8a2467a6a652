"""Is the response, or the last fenced block in it, JSON that satisfies a schema?

References to other documents are not fetched. A worker process validates: a schema and a text that suit each other
badly take for ever.
"""

import re
from typing import Literal, Self

from jsonschema import Draft202012Validator, SchemaError
from pydantic import Field, JsonValue, model_validator

from guerdon.types import Sample
from guerdon_services.rules.answers import AnswerFrom, answer_in
from guerdon_services.rules.base import Outcome, RuleOptions, ask, response_of
from guerdon_services.workers import WorkerPool

_FENCE = re.compile(r"```[\w+-]*[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL)
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


def judge(options: JsonSchemaOptions, sample: Sample, pool: WorkerPool) -> Outcome:
    """Have a worker parse the response's JSON and validate it; raises as `ask` does."""
    text = answer_in(response_of(sample), options.answer_from)
    if text is None:
        return Outcome(0.0, f"no answer at {options.answer_from}")
    blocks = _FENCE.findall(text)
    text = blocks[-1] if blocks else text
    if len(text) > _MAX_CHARS:
        return Outcome(0.0, f"{len(text)} characters are too many for JSON")
    return ask(pool, {"schema": options.json_schema, "text": text}, "validating")
