"""Every response of an evaluation with its verdict, one JSON line each: what a second run need not ask again."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from guerdon.types import Prompt, Status, Verdict

Key = tuple[str, int]


class EvaluationError(RuntimeError):
    """The evaluation cannot go on, or its figures would mean nothing; the message says why."""


class Answer(BaseModel):
    """Response number `number` to a question; `value` is a number exactly when `status` is ok.

    `failed_at` says which service gave no answer. Without `response` it was the rollout service.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    question: str
    number: int
    category: str | None = None
    prompt: Prompt
    references: list[str] = []
    response: str | None = None
    response_tokens: int | None = None
    finish_reason: str | None = None
    policy_version: int | None = None
    status: Status
    value: float | None = None
    failed_at: str | None = None
    reason: str = ""
    verdict: Verdict | None = None

    @property
    def key(self) -> Key:
        """What tells it apart from all others of the evaluation."""
        return self.question, self.number


class AnswerLog:
    """A JSONL file that answers are appended to as they come; a later line replaces an earlier one of its key.

    A line that a killed process left unfinished is dropped.

    Raises:
        EvaluationError: another line is no answer; names file and line.
    """

    def __init__(self, path: Path) -> None:
        self.answers: dict[Key, Answer] = {}
        if path.exists():
            self._read(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def add(self, answer: Answer) -> None:
        """Write an answer down."""
        self._file.write(answer.model_dump_json(exclude_defaults=True) + "\n")
        # One that the kernel has survives the death of this process, by SIGKILL too.
        self._file.flush()
        self.answers[answer.key] = answer

    def of(self, keys: Iterable[Key]) -> list[Answer]:
        """The answers of these keys that are there."""
        return [self.answers[key] for key in keys if key in self.answers]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        if len(complete) < len(content):
            os.truncate(path, len(complete))
        for number, line in enumerate(complete.split(b"\n")[:-1], start=1):
            try:
                answer = Answer.model_validate_json(line)
            except ValidationError as error:
                problem = error.errors(include_url=False)[0]
                where = ".".join(str(part) for part in problem["loc"])
                raise EvaluationError(f"{path}:{number}: {where or 'the line'}: {problem['msg']}") from error
            self.answers[answer.key] = answer
