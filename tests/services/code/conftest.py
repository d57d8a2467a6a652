"""One opened code verifier for the folder, and short ways to ask it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from guerdon.types import CodeTask, CodeTest, Compare, Limits, Result, Sample
from guerdon_services.code.service import CodeOptions, CodeScorer, CodeSettings
from guerdon_services.runtime.scorer import ScoreJob

#: Where a test is not about time: no machine is so slow or so busy that a small program needs as much.
GENEROUS = Limits(cpu_s=20, wall_s=60, memory_mb=256)


@dataclass(frozen=True)
class Ask:
    """Scores programs with one scorer."""

    scorer: CodeScorer

    def task(self, program: str | None, task: CodeTask | None, **options: Any) -> Result:
        """Score one sample; the response is the whole program unless options say otherwise."""
        chosen = CodeOptions.model_validate({"extraction": "whole"} | options)
        return self.scorer.score([ScoreJob(Sample(response=program, code=task), chosen)])[0]

    def stdio(
        self, program: str, stdin: str = "", output: str = "6\n", mode: str = "tokens", **more: Any
    ) -> str:
        """The verdict of one stdio test."""
        limits = more.pop("limits", GENEROUS)
        task = CodeTask(
            kind="stdio",
            tests=[CodeTest(input=stdin, output=output, outputs=more.pop("outputs", []))],
            compare=Compare(mode=mode, **more),  # type: ignore[arg-type]
            limits=limits,
        )
        return verdict(self.task(program, task))

    def call(self, program: str, args: list[Any], expected: Any, function: str = "f", **compare: Any) -> str:
        """The verdict of one call test."""
        task = CodeTask(
            kind="call",
            function=function,
            tests=[CodeTest(args=args, expected=expected)],
            compare=Compare.model_validate({"mode": "value"} | compare),
            limits=GENEROUS,
        )
        return verdict(self.task(program, task))

    def in_place(
        self, program: str, args: list[Any], after: list[Any], mode: str = "value", **expected: Any
    ) -> str:
        """The verdict of one call test that says what its arguments are afterwards."""
        task = CodeTask(
            kind="call",
            function="f",
            tests=[CodeTest(args=args, expected_args=after, **expected)],
            compare=Compare(mode=mode),  # type: ignore[arg-type]
            limits=GENEROUS,
        )
        return verdict(self.task(program, task))

    def asserts(self, program: str, test: str, kind: str = "assert", **more: Any) -> str:
        """The verdict of one assert or unittest test."""
        task = CodeTask(
            kind=kind,  # type: ignore[arg-type]
            tests=[CodeTest(test=test)],
            limits=more.pop("limits", GENEROUS),
            **more,
        )
        return verdict(self.task(program, task))


def verdict(result: Result) -> str:
    """The verdict of a result with one test, or its status with the reason."""
    if result.verdict is None:
        return f"{result.status}: {result.reason}"
    assert result.verdict.profile == "host"
    return result.verdict.tests[0].verdict


@pytest.fixture(scope="session")
def scorer() -> Iterator[CodeScorer]:
    """An open code verifier with two fork servers."""
    scorer = CodeScorer(CodeSettings(workers=2))
    scorer.open()
    yield scorer
    scorer.close()


@pytest.fixture
def ask(scorer: CodeScorer) -> Ask:
    """Short ways to score a program."""
    return Ask(scorer)


@pytest.fixture
def still_works(ask: Ask) -> Iterator[Callable[[], None]]:
    """After the test a right program still passes on every worker."""

    def check() -> None:
        for _ in ask.scorer.workers:
            assert ask.stdio("print(sum(map(int, input().split())))", "1 2 3\n") == "AC"

    yield check
    check()
