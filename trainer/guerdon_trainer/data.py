"""Questions to train on: generated arithmetic, reasoning-gym, JSONL, JSON, Parquet, Hugging Face datasets.

`load_questions` gives the same list for the same configuration. A mistake in the configuration or in a file is a
`DataError` that names the key, or the file and line, and what was probably meant.
"""

import difflib
import gzip
import json
import random
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from guerdon.types import ChatMessage, CodeTask
from guerdon_trainer import arithmetic
from guerdon_trainer.questions import Question

Source = Literal["arithmetic", "reasoning_gym", "jsonl", "json", "parquet", "huggingface"]
Row = Mapping[str, Any]
#: Makes a question of a row, the place it stands at and its number; None leaves the row out.
ReadRow = Callable[[Row, str, int], Question | None]

#: What a file does that is cut short, is of another kind than its name says, or is nested without end.
_UNREADABLE = (UnicodeDecodeError, EOFError, OSError, zlib.error, RecursionError)

_INSTALL = "install guerdon-trainer[data]"
_NAMED = re.compile(r"\{(\w+)\}")
#: Questions of a generator when `size` is not given.
_DEFAULT_SIZE = 1000


class DataError(ValueError):
    """The data cannot be loaded; the message names the configuration key, or the file, line and field."""


class Fields(BaseModel):
    """Which column holds what; `metadata` names further columns to carry along."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: str = "prompt"
    references: str | None = "references"
    id: str | None = None
    metadata: list[str] = []
    code: str | None = None


class DataConfig(BaseModel):
    """Where questions come from and how their prompts are written.

    `name` is a reasoning-gym dataset, or a hub id or folder; `path` a JSONL (also `.gz`), JSON or Parquet file.
    `size` takes that many after shuffling with `seed`; generators make that many. `settings` go to the generator, or
    for Hugging Face to `load_dataset`. In `prompt_template`, "{prompt}" stands for the prompt and "{{" for a brace.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: Source
    name: str | None = None
    path: Path | None = None
    split: str = "train"
    size: Annotated[int, Field(ge=1)] | None = None
    seed: int = 0
    settings: dict[str, JsonValue] = {}
    fields: Fields = Fields()
    prompt_template: str | None = None
    system: str | None = None
    chat: bool = False

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.source in ("jsonl", "json", "parquet") and self.path is None:
            raise ValueError(f"path is missing: the {self.source} file")
        if self.source in ("reasoning_gym", "huggingface") and self.name is None:
            what = "a reasoning-gym dataset" if self.source == "reasoning_gym" else "a hub id or a folder"
            raise ValueError(f"name is missing: {what}")
        if self.system is not None and not self.chat:
            raise ValueError("system needs chat: true")
        if self.prompt_template is not None:
            _check_template(self.prompt_template)
        return self


def load_questions(config: DataConfig, read_row: ReadRow | None = None) -> list[Question]:
    """All questions of a source, in an order that only the configuration decides.

    `read_row` stands for `fields` where rows need more than a mapping of fields.

    Raises:
        DataError: see the message.
    """
    if config.source == "arithmetic":
        questions = _arithmetic(config)
    elif config.source == "reasoning_gym":
        questions = _reasoning_gym(config)
    else:
        questions = _from_rows(config, read_row)
    if not questions:
        raise DataError(f"{_where(config)} has no rows")
    return [_written(question, config) for question in questions]


def _check_template(template: str) -> None:
    bare = template.replace("{{", "").replace("}}", "")
    names = _NAMED.findall(bare)
    wrong = [name for name in names if name != "prompt"]
    if wrong:
        raise ValueError(
            f"prompt_template: {{{wrong[0]}}} is unknown; only {{prompt}} is, and braces are doubled"
        )
    if names != ["prompt"]:
        raise ValueError("prompt_template must contain {prompt} exactly once")
    if re.search(r"[{}]", bare.replace("{prompt}", "")):
        raise ValueError("prompt_template: write a brace that is part of the text as {{ or }}")


def _written(question: Question, config: DataConfig) -> Question:
    """The question with the template around its last turn, as chat messages if asked for."""
    prompt = question.prompt
    if config.prompt_template is not None:
        if isinstance(prompt, str):
            prompt = config.prompt_template.format(prompt=prompt)
        else:
            last = ChatMessage(
                role=prompt[-1].role, content=config.prompt_template.format(prompt=prompt[-1].content)
            )
            prompt = [*prompt[:-1], last]
    if config.chat and isinstance(prompt, str):
        prompt = [ChatMessage(role="user", content=prompt)]
    if config.system is not None and not isinstance(prompt, str):
        prompt = [ChatMessage(role="system", content=config.system), *prompt]
    return Question(question.id, prompt, question.references, question.metadata, question.code)


def _arithmetic(config: DataConfig) -> list[Question]:
    try:
        return arithmetic.questions(
            config.size or _DEFAULT_SIZE, config.seed, **cast("dict[str, Any]", config.settings)
        )
    except (TypeError, ValueError) as problem:
        raise DataError(f"settings of arithmetic: {problem}") from problem


def _reasoning_gym(config: DataConfig) -> list[Question]:
    """Generated questions, with what the rule `reasoning_gym` of the rules service needs in the metadata."""
    import reasoning_gym

    name, known = str(config.name), list(vars(reasoning_gym.factory)["DATASETS"])
    if name not in known:
        raise DataError(f"name: reasoning-gym has no dataset {name!r}{did_you_mean(name, known)}")
    try:
        dataset = reasoning_gym.create_dataset(
            name,
            size=config.size or _DEFAULT_SIZE,
            seed=config.seed,
            **cast("dict[str, Any]", config.settings),
        )
    except (TypeError, AssertionError) as problem:
        raise DataError(f"settings of {name}: {problem}") from problem
    questions: list[Question] = []
    for index, item in enumerate(dataset):
        entry = cast("dict[str, JsonValue]", json.loads(json.dumps(item, default=str)))
        answer = entry["answer"]
        references = [answer] if isinstance(answer, str) and answer else []
        metadata: dict[str, JsonValue] = {"dataset": name, "entry": entry}
        questions.append(
            Question(f"{name}-{config.seed}-{index}", str(entry["question"]), references, metadata)
        )
    return questions


def _from_rows(config: DataConfig, read_row: ReadRow | None) -> list[Question]:
    readers = {"jsonl": _jsonl, "json": _json_array, "parquet": _parquet, "huggingface": _huggingface}
    read = read_row or (lambda row, place, index: _question(row, place, index, config))
    found = (read(row, place, index) for index, (place, row) in enumerate(readers[config.source](config)))
    try:
        questions = [question for question in found if question is not None]
    except _UNREADABLE as problem:
        raise DataError(f"path: {_where(config)} cannot be read: {problem}") from problem
    _check_ids(questions, config)
    if config.size is not None:
        if config.size > len(questions):
            raise DataError(f"size: {_where(config)} has {len(questions)} rows, not {config.size}")
        questions = random.Random(config.seed).sample(questions, config.size)
    return questions


def _check_ids(questions: Iterable[Question], config: DataConfig) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise DataError(f"fields.id: {_where(config)} has the id {question.id!r} twice")
        seen.add(question.id)


def _jsonl(config: DataConfig) -> Iterator[tuple[str, Row]]:
    path = cast(Path, config.path)
    if not path.is_file():
        raise DataError(f"path: there is no file {path}")
    with (
        gzip.open(path, "rt", encoding="utf-8-sig")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8-sig") as lines
    ):
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as problem:
                raise DataError(
                    f"{path}:{number}: no JSON: {problem.msg} at column {problem.colno}"
                ) from problem
            if not isinstance(row, dict):
                raise DataError(f"{path}:{number}: an object was expected, not {type(row).__name__}")
            yield f"{path}:{number}", cast(Row, row)


def _json_array(config: DataConfig) -> Iterator[tuple[str, Row]]:
    path = cast(Path, config.path)
    if not path.is_file():
        raise DataError(f"path: there is no file {path}")
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as problem:
        raise DataError(
            f"{path}:{problem.lineno}: no JSON: {problem.msg} at column {problem.colno}"
        ) from problem
    if not isinstance(rows, list):
        raise DataError(f"{path}: a list of objects was expected, not {type(rows).__name__}")
    for number, row in enumerate(cast("list[Any]", rows)):
        if not isinstance(row, dict):
            raise DataError(f"{path}: row {number}: an object was expected, not {type(row).__name__}")
        yield f"{path}: row {number}", cast(Row, row)


def _parquet(config: DataConfig) -> Iterator[tuple[str, Row]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError as problem:
        raise DataError(f"source parquet needs pyarrow: {_INSTALL}") from problem
    path = cast(Path, config.path)
    if not path.exists():
        raise DataError(f"path: there is no file {path}")
    try:
        rows = parquet.read_table(path).to_pylist()
    except ValueError as problem:  # pyarrow's own are
        raise DataError(f"path: {path} is no Parquet: {problem}") from problem
    for number, row in enumerate(rows):
        yield f"{path}: row {number}", row


def _huggingface(config: DataConfig) -> Iterator[tuple[str, Row]]:
    try:
        import datasets
    except ImportError as problem:
        raise DataError(f"source huggingface needs datasets: {_INSTALL}") from problem
    try:
        loaded = datasets.load_dataset(
            str(config.name), split=config.split, **cast("dict[str, Any]", config.settings)
        )
    except (ValueError, TypeError, OSError) as problem:
        raise DataError(f"name {config.name!r}, split {config.split!r}: {problem}") from problem
    for number, row in enumerate(cast("Iterable[Row]", loaded)):
        yield f"{config.name} [{config.split}]: row {number}", row


def _question(row: Row, place: str, index: int, config: DataConfig) -> Question:
    fields = config.fields
    prompt = _prompt(_field(row, fields.prompt, "prompt", place), place)
    references: list[str] = []
    if fields.references is not None:
        references = _references(
            _field(row, fields.references, "references", place), fields.references, place
        )
    code = _code(_field(row, fields.code, "code", place), fields.code, place) if fields.code else None
    metadata = {name: _json(_field(row, name, "metadata", place)) for name in fields.metadata} or None
    identity = (
        str(_field(row, fields.id, "id", place)) if fields.id else f"{Path(_where(config)).stem}-{index}"
    )
    return Question(identity, prompt, references, metadata, code)


def _field(row: Row, name: str, role: str, place: str) -> Any:
    if name not in row:
        raise DataError(f"{place}: no field {name!r} (fields.{role}){did_you_mean(name, list(row))}")
    value = row[name]
    if value is None:
        raise DataError(f"{place}: the field {name!r} is null")
    return value


def _prompt(value: Any, place: str) -> str | list[ChatMessage]:
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{place}: the prompt is empty")
        return _unicode(value, place)
    if isinstance(value, list) and value:
        return [_turn(turn, place) for turn in cast("list[Any]", value)]
    raise DataError(f"{place}: the prompt is neither text nor a list of messages")


def _turn(value: Any, place: str) -> ChatMessage:
    if isinstance(value, dict):
        turn = cast("dict[str, Any]", value)
        role, content = turn.get("role"), turn.get("content")
        if isinstance(role, str) and isinstance(content, str):
            return ChatMessage(role=_unicode(role, place), content=_unicode(content, place))
    raise DataError(f"{place}: a message of the prompt is no object whose role and content are text")


def _unicode(text: str, place: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise DataError(f"{place}: half of a surrogate pair is no text: {problem}") from problem
    return text


def _references(value: Any, name: str, place: str) -> list[str]:
    values = cast("list[Any]", value) if isinstance(value, list) else [value]
    # What a table has in place of a missing value is no answer.
    missing = any(item is None or item != item for item in values)
    references = [item if isinstance(item, str) else json.dumps(item) for item in values]
    if missing or not references or not all(reference.strip() for reference in references):
        raise DataError(f"{place}: the field {name!r} holds an empty reference")
    return [_unicode(reference, place) for reference in references]


def _code(value: Any, name: str, place: str) -> CodeTask:
    """A task given as an object, or as JSON text (columnar files have no unions)."""
    try:
        return CodeTask.model_validate_json(value if isinstance(value, str) else json.dumps(value))
    except ValidationError as problem:
        first = problem.errors(include_url=False)[0]
        where = ".".join(str(part) for part in (name, *first["loc"]))
        raise DataError(f"{place}: {where}: {first['msg']}") from problem


def _json(value: Any) -> JsonValue:
    return cast(JsonValue, json.loads(json.dumps(value, default=str)))


def _where(config: DataConfig) -> str:
    return str(config.path or config.name or config.source)


def did_you_mean(name: str, known: list[str]) -> str:
    """The end of a sentence on an unknown name: the likely one, or those there are."""
    close = difflib.get_close_matches(name, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    shown = ", ".join(sorted(known)[:12])
    return f"; there are {shown}" if known else ""
