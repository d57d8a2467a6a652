"""The service around the comparison: statuses, references, verdicts, hostile answers."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pydantic import ValidationError

from guerdon.types import Result, Sample, Status
from guerdon_services.math import worker
from guerdon_services.math.service import MathOptions, MathScorer, MathSettings
from guerdon_services.runtime.scorer import ScoreJob

Judge = Callable[..., Result]


@pytest.fixture(scope="module")
def impatient() -> Iterator[MathScorer]:
    scorer = MathScorer(MathSettings(workers=2, time_limit_s=1.5))
    scorer.open()
    yield scorer
    scorer.close()


def ask(scorer: MathScorer, answer: str, reference: str) -> Result:
    sample = Sample(response=f"\\boxed{{{answer}}}", references=[reference])
    return scorer.score([ScoreJob(sample, MathOptions())])[0]


def test_the_verdict_says_what_was_compared(judge: Judge) -> None:
    result = judge("I think \\boxed{\\dfrac34}.", "0.75")
    assert (result.status, result.value) == (Status.OK, 1.0)
    assert result.verdict is not None
    assert result.verdict.extracted == "\\dfrac34"
    assert result.verdict.normalised == "\\frac{3}{4}"
    assert result.verdict.normalised_reference == "0.75"
    assert result.verdict.method == "rational"
    assert "equals" in result.reason
    symbolic = judge("\\boxed{x+1}", "1+x").verdict
    assert symbolic is not None
    assert symbolic.method == "symbolic"
    text = judge("\\boxed{ x + 1 }", "x+1").verdict
    assert text is not None
    assert text.method == "string"


def test_a_lack_of_memory_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(worker, "decide", greedy)
    with pytest.raises(MemoryError):
        worker.compare({"answer": "\\sqrt{2}", "reference": "2^{1/2}"})


def test_any_reference_will_do(judge: Judge) -> None:
    assert judge("\\boxed{2x}", "x", "x+x").value == 1.0
    assert judge("\\boxed{2x}", "x", "3x").value == 0.0
    assert judge("\\boxed{2x}", "\\text{only a reader could judge this prose}", "x+x").value == 1.0


def test_several_boxes_answer_a_list(judge: Judge) -> None:
    response = "roots are \\boxed{2} and \\boxed{3}"
    assert judge(response, "2, 3").value == 1.0
    assert judge(response, "3").value == 1.0
    assert judge(response, "2").value == 0.0


@pytest.mark.parametrize(
    ("sample", "named"),
    [
        (Sample(response="\\boxed{1}"), "references is missing"),
        (Sample(references=["1"]), "response is missing"),
        (Sample(response="\\boxed{1}", references=[""]), "references[0] is empty"),
        (Sample(response="\\boxed{2}", references=["1", "$ $"]), "references[1] is empty"),
        (Sample(response="\\boxed{x}", references=["\\frac{1}{"]), "references[0] cannot be read"),
        (
            Sample(response="\\boxed{3}", references=["it depends on what you mean by that"]),
            "references[0] is prose",
        ),
        (Sample(response="\\boxed{3}", references=["3" * 200_001]), "references[0] has 200001 characters"),
        (Sample(response="\\boxed{3}", references=["x," * 600]), "references[0] cannot be read: 600 items"),
    ],
)
def test_a_sample_at_fault_is_invalid_and_named(impatient: MathScorer, sample: Sample, named: str) -> None:
    result = impatient.score([ScoreJob(sample, MathOptions())])[0]
    assert (result.status, result.value) == (Status.INVALID_INPUT, None), result.reason
    assert named in result.reason


def test_no_box_is_a_wrong_answer_with_a_reason(judge: Judge) -> None:
    result = judge("The answer is 5.", "5")
    assert (result.status, result.value) == (Status.OK, 0.0)
    assert "box" in result.reason
    assert judge("The answer is 5.", "5", extraction="lenient").value == 1.0


@pytest.mark.parametrize(
    "answer",
    ["9" * 30_000, "(" * 19_000, "1+" * 12_000 + "1", "\\frac{" * 3000, "\x00", "\ud800", "a" * 1_000_000],
)
def test_a_huge_or_broken_answer_is_wrong(judge: Judge, answer: str) -> None:
    result = judge(f"\\boxed{{{answer}}}", "7")
    assert (result.status, result.value) == (Status.OK, 0.0), result.reason
    assert len(result.reason) < 1000


def test_a_stuck_worker_costs_one_item_and_is_replaced(impatient: MathScorer) -> None:
    before = set(impatient.worker_pids())
    stuck = before.pop()
    os.kill(stuck, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as threads:
        asked = [
            threads.submit(ask, impatient, f"\\sin {n}", f"\\cos({n}-\\frac{{\\pi}}{{2}})")
            for n in range(2, 42)
        ]
        results = [each.result() for each in asked]
    statuses = [(result.status, result.value) for result in results]
    assert statuses.count((Status.TIMEOUT, None)) == 1
    assert statuses.count((Status.OK, 1.0)) == 39
    deadline = time.monotonic() + 20
    while stuck in impatient.worker_pids() or len(impatient.worker_pids()) < 2:
        assert time.monotonic() < deadline


def test_a_killed_worker_costs_one_item_at_most(impatient: MathScorer) -> None:
    for pid in impatient.worker_pids():
        os.kill(pid, signal.SIGKILL)
    results = [ask(impatient, f"\\sin {n}", f"\\cos({n}-\\frac{{\\pi}}{{2}})") for n in range(2, 12)]
    assert {(result.status, result.value) for result in results} <= {
        (Status.OK, 1.0),
        (Status.INTERNAL_ERROR, None),
    }
    assert [result.value for result in results[2:]] == [1.0] * 8


def test_a_failure_is_not_remembered() -> None:
    scorer = MathScorer(MathSettings(workers=1, time_limit_s=1))
    scorer.open()
    try:
        for pid in scorer.worker_pids():
            os.kill(pid, signal.SIGSTOP)
        assert ask(scorer, "\\sin 1", "\\cos(1-\\frac{\\pi}{2})").status is Status.TIMEOUT
        assert ask(scorer, "\\sin 1", "\\cos(1-\\frac{\\pi}{2})").value == 1.0
    finally:
        scorer.close()


def test_answers_do_not_run(judge: Judge, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for answer in (
        f"__import__('pathlib').Path('{mark}').touch()",
        f"[open('{mark}','w')]",
        f"2*\\pi+0*len(str(open('{mark}','w')))",
        f"\\immediate\\write18{{touch {mark}}}",
        "().__class__.__base__.__subclasses__()",
    ):
        for reference in ("7", "2\\pi", "(1, 2)"):
            assert judge(f"\\boxed{{{answer}}}", reference).value == 0.0
    assert not mark.exists()


def test_options_and_settings_are_typed() -> None:
    assert MathOptions().extraction == "last_box"
    with pytest.raises(ValidationError):
        MathOptions.model_validate({"extraction": "first_box"})
    with pytest.raises(ValidationError):
        MathSettings.model_validate({"worker": 3})
    scorer = MathScorer(MathSettings(workers=3))
    assert scorer.batching.concurrency == 3
    assert "workers" in scorer.details()
