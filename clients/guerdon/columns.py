"""Rows of data sets as samples: which column is the prompt, the response, the right answers.

    Columns().sample({"problem": "1+1", "response": "2", "answer": "2"})
    Columns(references="reward_model.ground_truth").sample(row)

Where a column is not named, the first of the usual names that the row has is taken.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from pydantic import ConfigDict, ValidationError

from guerdon.code_tasks import RowError, code_task
from guerdon.codec import describe
from guerdon.errors import InvalidRequest
from guerdon.texts import number_text, plain, present, prompt_of, text_of
from guerdon.types import CodeTask, Prompt, Sample

Row = Mapping[str, Any]

#: The usual names, the more specific first.
RESPONSES = ("response", "completion", "generation", "output", "prediction", "solution_str")
PROMPTS = ("prompt", "question", "problem", "query", "instruction", "messages")
REFERENCES = (
    "references",
    "reference",
    "ground_truth",
    "expected_answer",
    "answer",
    "label",
    "target",
    "solution",
    "reward_model.ground_truth",
)


@dataclass(frozen=True)
class Columns:
    """Which columns of a row become which field of a sample; a dot reaches into a nested object.

    `code` is a column with tests: a `CodeTask`, or a ground truth that `guerdon.code_tasks` reads. `metadata`
    names columns that the service gets as they are; `whole_row` sends all of them as `metadata.row`, from which the
    code service makes the task of many public data sets by itself.
    """

    #: A misspelt field in JSON is refused: else the usual names would be taken without a word.
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    prompt: str | None = None
    response: str | None = None
    references: str | None = None
    code: str | None = None
    metadata: tuple[str, ...] = ()
    whole_row: bool = False

    def sample(self, row: Row, *, id: str | None = None) -> Sample:
        """The sample of a row that holds the response, too.

        Raises:
            InvalidRequest: a column that was named is missing, or holds what a sample cannot.
        """
        response = self._found("response", self.response, RESPONSES, row)
        return self.judged(row, prompt=self.prompt_of(row), response=text_of(response), id=id)

    def prompt_of(self, row: Row) -> Prompt | None:
        """The row's prompt, None where it has none."""
        return prompt_of(self._found("prompt", self.prompt, PROMPTS, row))

    def judged(
        self,
        row: Row,
        *,
        prompt: Prompt | None,
        response: str | None,
        id: str | None = None,
        prompt_token_ids: Sequence[int] = (),
        response_token_ids: Sequence[int] = (),
    ) -> Sample:
        """The sample of a row and a response that comes from elsewhere; raises as `sample`."""
        task = self._found("code", self.code, (), row)
        try:
            return Sample(
                id=id,
                prompt=prompt,
                prompt_token_ids=list(prompt_token_ids),
                response=response,
                response_token_ids=list(response_token_ids),
                references=references_of(self._found("references", self.references, REFERENCES, row)),
                code=None if task is None else task_of(task),
                metadata=self._metadata(row),
            )
        except ValidationError as error:
            raise InvalidRequest(describe(error)) from error

    def _metadata(self, row: Row) -> dict[str, Any] | None:
        content = {name: plain(self._named("metadata", name, row)) for name in self.metadata}
        if self.whole_row:
            content["row"] = plain(dict(row))
        return content or None

    def _found(self, field: str, named: str | None, usual: Sequence[str], row: Row) -> Any:
        if named is not None:
            return self._named(field, named, row)
        values = (_at(row, name) for name in usual)
        return next((value for value in values if value is not None), None)

    def _named(self, field: str, name: str, row: Row) -> Any:
        value = _at(row, name)
        if value is None and name in row:
            raise InvalidRequest(f"{field}: the row's column {name!r} is empty")
        if value is None:
            raise InvalidRequest(
                f"{field}: the row has no column {name!r}; it has {', '.join(map(str, row))}"
            )
        return value


def _at(row: Row, name: str) -> Any:
    """The column's value; None where there is none."""
    if name in row:
        return present(row[name])
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = cast(Row, value)[part]
    return present(value)


def labelled(
    prompt: Prompt | None, response: str | None, label: Any, metadata: Mapping[str, Any] | None = None
) -> Sample:
    """A sample whose label is a right answer, several, or tests where it has their shape.

    Raises:
        InvalidRequest: a field is what a sample cannot hold.
    """
    tests = task_in(label)
    try:
        return Sample(
            prompt=prompt,
            response=response,
            references=[] if tests else references_of(label),
            code=tests,
            metadata=plain(metadata) or None,
        )
    except ValidationError as error:
        raise InvalidRequest(describe(error)) from error


def references_of(value: Any) -> list[str]:
    """Right answers: one, or a list of them; numbers as they are written.

    Raises:
        InvalidRequest: it is neither text nor what JSON has.
    """
    value = present(value)
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return [text for one in cast(Sequence[Any], value) for text in references_of(one)]
    if isinstance(value, (dict, bool)):
        return [json.dumps(plain(value))]
    return [value if isinstance(value, str) else number_text(value, "references")]


def task_in(value: Any) -> CodeTask | None:
    """The tests in a ground truth that has the shape of some; None where it is an answer, as most are."""
    value = plain(value)
    if isinstance(value, str) and not value.lstrip().startswith("{"):
        return None
    try:
        return task_of(value) if isinstance(value, (str, dict)) else None
    except (InvalidRequest, ValidationError):
        return None


def task_of(value: Any) -> CodeTask:
    """A column's tests.

    Raises:
        InvalidRequest: neither a `CodeTask` nor a ground truth of a known shape.
    """
    value = plain(value)
    if isinstance(value, CodeTask):
        return value
    try:
        if isinstance(value, dict) and "kind" in value:
            return CodeTask.model_validate(value)
        return code_task(cast(Row | str, value))
    except (RowError, TypeError) as error:
        raise InvalidRequest(f"code: {error}") from error
