"""Rows of public benchmarks as questions: problems with an answer, multiple choice, and programs with tests.

Each kind says in which fields of a row its parts lie. A row that lacks one, or holds something else there, is a
`DataError` that names file, line and field.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, JsonValue, model_validator

from guerdon.code_tasks import RowError, code_task
from guerdon_trainer.config.base import Section
from guerdon_trainer.data import DataConfig, DataError, ReadRow, Row, did_you_mean
from guerdon_trainer.questions import Question


class Where(Section):
    """Keeps the rows whose `field` equals something, lies between `min` and `max` (both included), or is empty."""

    field: str
    equals: JsonValue = None
    min: float | str | None = None
    max: float | str | None = None
    empty: bool | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if all(part is None for part in (self.equals, self.min, self.max, self.empty)):
            raise ValueError(f"where {self.field!r} needs equals, min, max or empty")
        return self


class _Rows(Section):
    #: The field of the question's text.
    question: str = "question"
    #: A field whose text stands before the question; it may be empty.
    context: str | None = None
    #: A field that tells the rows apart; by default they are numbered.
    id: str | None = None
    #: A field by which accuracy is also shown in parts.
    category: str | None = None
    where: list[Where] = []


class MathRows(_Rows):
    """A problem with its final answer. A list of answers is one answer of several parts."""

    kind: Literal["math"] = "math"
    answer: str = "answer"
    #: The answer is what follows the last of these marks ("####" of GSM8K).
    answer_after: str | None = None


class ChoiceRows(_Rows):
    """A multiple-choice question. `options` is a field with the list of them, or a list of fields with one each."""

    kind: Literal["choice"] = "choice"
    options: str | list[str] = "options"
    answer: str = "answer"
    #: What the answer's field holds: a letter, the number of an option from 0, or the option's text.
    answer_is: Literal["letter", "index", "text"] = "letter"
    #: Put the options into an order that this seed and the row's id decide; None keeps theirs.
    shuffle_seed: int | None = None


class CodeRows(_Rows):
    """A program to write, with its tests in any shape that `guerdon.code_tasks` knows."""

    kind: Literal["code"] = "code"
    #: A field with tests that the prompt shows.
    shown_tests: str | None = None
    #: A field with code to begin with. Where it is empty, the program reads standard input.
    starter: str | None = None


RowsConfig = Annotated[MathRows | ChoiceRows | CodeRows, Field(discriminator="kind")]

#: Where a question's metadata holds its category.
CATEGORY = "category"

_STARTER = (
    "You will use the following starter code to write the solution to the problem.\n```python\n{code}\n```"
)
_STDIN = "Read the inputs from standard input, solve the problem and write the answer to standard output."
_TESTS = "Your code should pass these tests:\n\n{tests}"


def reader(rows: MathRows | ChoiceRows | CodeRows, data: DataConfig) -> ReadRow:
    """A function that makes a question of a row, or None where `rows.where` leaves the row out."""
    stem = Path(str(data.path or data.name)).stem

    def read(row: Row, place: str, index: int) -> Question | None:
        if not all(_kept(row, where, place) for where in rows.where):
            return None
        id = f"{stem}-{index}" if rows.id is None else str(_field(row, rows.id, "id", place))
        text = _text(row, rows.question, "question", place)
        context = row.get(rows.context) if rows.context else None
        question = f"{context}\n\n{text}" if context else text
        metadata: dict[str, JsonValue] | None = None
        if rows.category is not None:
            metadata = {CATEGORY: str(_field(row, rows.category, "category", place))}
        match rows:
            case MathRows():
                return Question(id, question, [_answer(row, rows, place)], metadata)
            case ChoiceRows():
                question, letter = _choice(row, rows, place, id, question)
                return Question(id, question, [letter], metadata)
            case CodeRows():
                try:
                    task = code_task(row)
                except RowError as problem:
                    raise DataError(f"{place}: {problem}") from problem
                return Question(id, _program(row, rows, place, question), [], metadata, task)

    return read


def _kept(row: Row, where: Where, place: str) -> bool:
    if where.field not in row:
        raise DataError(
            f"{place}: no field {where.field!r} (rows.where){did_you_mean(where.field, list(row))}"
        )
    value = row[where.field]
    if where.empty is not None and where.empty is not (value in (None, "", [], {})):
        return False
    if where.equals is not None and value != where.equals:
        return False
    try:
        return not (
            (where.min is not None and value < where.min) or (where.max is not None and value > where.max)
        )
    except TypeError as problem:
        bound = where.max if where.min is None else where.min
        raise DataError(
            f"{place}: the field {where.field!r} is {value!r}, not to be compared with {bound!r}"
        ) from problem


def _field(row: Row, name: str, role: str, place: str) -> Any:
    if name not in row:
        raise DataError(f"{place}: no field {name!r} (rows.{role}){did_you_mean(name, list(row))}")
    if row[name] is None:
        raise DataError(f"{place}: the field {name!r} is null")
    return row[name]


def _text(row: Row, name: str, role: str, place: str) -> str:
    value = _field(row, name, role, place)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{place}: the field {name!r} should hold text, not {value!r}")
    return value.strip()


def _answer(row: Row, rows: MathRows, place: str) -> str:
    value = _field(row, rows.answer, "answer", place)
    parts = cast("list[Any]", value) if isinstance(value, list) else [value]
    answer = ", ".join(str(part).strip() for part in parts)
    if rows.answer_after is not None:
        _, mark, answer = answer.rpartition(rows.answer_after)
        if not mark:
            raise DataError(
                f"{place}: the field {rows.answer!r} has no {rows.answer_after!r} (rows.answer_after)"
            )
    if not answer.strip():
        raise DataError(f"{place}: the field {rows.answer!r} holds no answer")
    return answer.strip()


def _choice(row: Row, rows: ChoiceRows, place: str, id: str, question: str) -> tuple[str, str]:
    """The question with its options as lettered lines, and the letter of the right one."""
    options = _options(row, rows, place)
    right = _right(row, rows, place, options)
    order = list(range(len(options)))
    if rows.shuffle_seed is not None:
        random.Random(f"{rows.shuffle_seed}-{id}").shuffle(order)
    lines = [f"{letter}) {options[at]}" for letter, at in zip(ascii_uppercase, order, strict=False)]
    return "\n".join([question, "", *lines]), ascii_uppercase[order.index(right)]


def _options(row: Row, rows: ChoiceRows, place: str) -> list[str]:
    if isinstance(rows.options, str):
        options = _field(row, rows.options, "options", place)
    else:
        options = [_field(row, name, "options", place) for name in rows.options]
    if (
        not isinstance(options, Sequence)
        or isinstance(options, str)
        or not 2 <= len(options) <= len(ascii_uppercase)
    ):
        raise DataError(f"{place}: {rows.options!r} should hold a list of 2 to 26 options, not {options!r}")
    return [str(option).strip() for option in cast("Sequence[Any]", options)]


def _right(row: Row, rows: ChoiceRows, place: str, options: list[str]) -> int:
    value = _field(row, rows.answer, "answer", place)
    known: Sequence[Any] = {
        "letter": ascii_uppercase[: len(options)],
        "index": range(len(options)),
        "text": options,
    }[rows.answer_is]
    said = value if rows.answer_is == "index" else str(value).strip()
    found = [at for at, option in enumerate(known) if option == said]
    if len(found) != 1:
        raise DataError(
            f"{place}: the field {rows.answer!r} is {value!r}, which is not the {rows.answer_is} of "
            f"one of {len(options)} options"
        )
    return found[0]


def _program(row: Row, rows: CodeRows, place: str, question: str) -> str:
    parts = [question]
    if rows.shown_tests is not None:
        tests = _field(row, rows.shown_tests, "shown_tests", place)
        lines = [str(test) for test in cast("list[Any]", tests)] if isinstance(tests, list) else [str(tests)]
        parts.append(_TESTS.format(tests="\n".join(lines)))
    if rows.starter is not None:
        code = str(_field(row, rows.starter, "starter", place)).rstrip()
        parts.append(_STARTER.format(code=code) if code else _STDIN)
    return "\n\n".join(parts)
