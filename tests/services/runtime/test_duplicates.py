"""Of the same samples in one request a deterministic service scores one; real services, counted from inside."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from guerdon.types import CodeTask, CodeTest, Limits, Result, Sample, ScoreRequest, Status, failed
from guerdon_services.code.service import CodeScorer, CodeSettings
from guerdon_services.math.service import MathScorer
from guerdon_services.rules.service import RulesScorer
from guerdon_services.runtime import duplicates
from guerdon_services.runtime.dispatch import Dispatcher
from guerdon_services.runtime.metrics import Metrics
from guerdon_services.runtime.scorer import Batching, ScoreJob, Scorer, ScorerOptions, ScorerSettings
from guerdon_services.runtime.settings import Address, RuntimeSettings
from guerdon_services.runtime.validation import BadItem, Parsed


class Counting(Scorer[ScorerSettings, ScorerOptions]):
    """Remembers what it was given; fails when told to."""

    name = "counting"
    version = "1"
    deterministic = True

    def __init__(self) -> None:
        super().__init__(ScorerSettings())
        self.batching = Batching(max_items=3, max_wait_ms=0)
        self.seen: list[str | None] = []
        self.fault: Status | Exception | None = None

    def score(self, batch: Sequence[ScoreJob[ScorerOptions]]) -> list[Result]:
        self.seen += [job.sample.response for job in batch]
        if isinstance(self.fault, Exception):
            raise self.fault
        if self.fault:
            return [failed(self.fault, "told to")] * len(batch)
        return [Result(status=Status.OK, value=float(len(job.sample.response or ""))) for job in batch]


class Always(Counting):
    """Scores whatever it is given, however often."""

    deterministic = False


def dispatcher(scorer: Scorer[Any, Any], **settings: Any) -> Dispatcher:
    made = Dispatcher(
        scorer, RuntimeSettings.model_validate({"http": Address("127.0.0.1", 0), **settings}), Metrics()
    )
    made.accept()
    return made


async def scored(scorer: Scorer[Any, Any], *samples: Sample, **settings: Any) -> list[Result]:
    made = dispatcher(scorer, **settings)
    try:
        return await made.score(ScoreRequest(samples=list(samples)))
    finally:
        made.lane.stop()


async def test_the_same_samples_are_scored_once_and_answered_one_by_one() -> None:
    scorer = Counting()
    samples = [
        Sample(id=str(index), response=letter * (1 + (letter == "b")))
        for index, letter in enumerate("abaabc")
    ]
    results = await scored(scorer, *samples)
    assert sorted(map(str, scorer.seen)) == ["a", "bb", "c"]
    assert [result.id for result in results] == ["0", "1", "2", "3", "4", "5"]
    assert [result.value for result in results] == [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]
    assert len({id(result) for result in results}) == 6


async def test_a_service_that_does_not_say_so_scores_every_sample() -> None:
    scorer = Always()
    await scored(scorer, *[Sample(response="a")] * 3)
    assert scorer.seen == ["a"] * 3


async def test_requests_share_nothing() -> None:
    scorer = Counting()
    made = dispatcher(scorer)
    request = ScoreRequest(samples=[Sample(response="a")] * 2)
    await asyncio.gather(made.score(request), made.score(request))
    await made.score(request)
    made.lane.stop()
    assert scorer.seen == ["a"] * 3


@pytest.mark.parametrize("fault", [Status.TIMEOUT, Status.INTERNAL_ERROR, ValueError("no")])
async def test_a_failure_is_shared_and_is_no_reward(fault: Status | Exception) -> None:
    scorer = Counting()
    scorer.fault = fault
    results = await scored(scorer, *[Sample(response="a")] * 4)
    assert scorer.seen == ["a"]
    status = fault if isinstance(fault, Status) else Status.INTERNAL_ERROR
    assert [(result.status, result.value) for result in results] == [(status, None)] * 4


async def test_a_sample_that_is_wrong_stands_alone() -> None:
    scorer = Counting()
    made = dispatcher(scorer)
    samples: list[Sample | BadItem] = [
        Sample(response="a"),
        BadItem("x", "bad"),
        Sample(response="a"),
        BadItem("y", "bad"),
    ]
    envelope = ScoreRequest(samples=[])
    results = await (await made.begin_score(Parsed(envelope, samples))).all()
    made.lane.stop()
    assert [result.status for result in results] == [Status.OK, Status.INVALID_INPUT] * 2
    assert [result.id for result in results] == [None, "x", None, "y"]
    assert scorer.seen == ["a"]


async def test_a_deadline_and_a_stream_reach_every_copy() -> None:
    scorer = Counting()
    made = dispatcher(scorer)
    parsed = Parsed(ScoreRequest(samples=[]), [Sample(id=name, response="a") for name in "xyz"])
    submission = await made.begin_score(parsed)
    got = [one async for chunk in submission.chunks() for one in chunk]
    named = sorted((index, result.id) for index, result in got if isinstance(result, Result))
    assert named == [(0, "x"), (1, "y"), (2, "z")]
    late = await (await made.begin_score(parsed, timeout_s=0.0)).all()
    assert {result.status for result in late} <= {Status.TIMEOUT, Status.OK}
    assert len(late) == 3
    made.abandon("the end")
    made.lane.stop()


def code(**more: Any) -> CodeTask:
    fields = {"kind": "call", "function": "f", "tests": [CodeTest(args=[1], expected=1)]}
    return CodeTask.model_validate(fields | more)


DIFFERENT = {
    "the type of an argument": code(tests=[CodeTest(args=[1.0], expected=1)]),
    "a truth for a number": code(tests=[CodeTest(args=[True], expected=1)]),
    "the type of what is expected": code(tests=[CodeTest(args=[1], expected=1.0)]),
    "null for nothing": code(tests=[CodeTest(args=[1], expected=None)]),
    "nothing for null": code(tests=[CodeTest(args=[1])]),
    "limits": code(limits=Limits(cpu_s=1)),
    "one test more": code(tests=[CodeTest(args=[1], expected=1)] * 2),
    "the function": code(function="g"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_whatever_differs_counts_but_the_id(name: str) -> None:
    one, same = (Sample(id=id, response="p", code=code()) for id in ("x", "y"))
    other = Sample(id="x", response="p", code=DIFFERENT[name])
    samples = [one, other, same]
    alike = duplicates.by_response(samples)
    assert alike is not None
    assert alike == [[0, 1, 2]]
    assert duplicates.by_all(samples, alike) == [[0, 2], [1]]


def test_a_lone_surrogate_is_like_nothing_else() -> None:
    samples = [Sample(response="\ud800"), Sample(response="\ud800"), Sample(response="x")]
    alike = duplicates.by_response(samples)
    assert alike is not None
    assert duplicates.by_all(samples, alike) == [[0], [1], [2]]
    assert duplicates.by_response(samples[1:]) is None


async def test_the_code_service_runs_the_same_program_once() -> None:
    scorer = CodeScorer(CodeSettings(workers=2, packages=(), languages=()))
    scorer.open()
    try:
        runs = sum(worker._runs for worker in scorer.workers)
        right, wrong = "```python\nprint(input())\n```", "```python\nprint(0)\n```"
        task = CodeTask(
            kind="stdio", tests=[CodeTest(input="1", output="1"), CodeTest(input="2", output="2")]
        )
        samples = [Sample(id=str(n), response=[right, wrong][n % 2], code=task) for n in range(8)]
        results = await scored(scorer, *samples)
        assert [result.value for result in results] == [1.0, 0.0] * 4
        assert [result.id for result in results] == [str(n) for n in range(8)]
        assert sum(worker._runs for worker in scorer.workers) - runs == 4
    finally:
        scorer.close()


def test_verifiers_say_that_they_are_deterministic() -> None:
    assert [kind.deterministic for kind in (CodeScorer, MathScorer, RulesScorer)] == [True] * 3
