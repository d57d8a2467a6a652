"""`guerdon eval` with a policy and a verifier that do what the test wants: exact counts, failures, going on."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from guerdon.testing import Failure, StubService
from guerdon.types import GenerateResult, GenerateSample, Sample, Sampling, ScoreRequest, Status, failed
from guerdon_trainer.evaluation import cli
from tests.waiting import PATIENCE_S, until

Say = Callable[..., GenerateResult]

#: Six questions; the policy's response to number n of question q is right when n < q.
RECIPE = """
data:
  source: jsonl
  path: {rows}
  fields: {{references: answer}}
verifier: {{service: math}}
sampling: {{n: 4, temperature: 1.0}}
failures: {{attempts: 2, pause_s: 0.0, timeout_s: 60, max_fraction: 1.0}}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    rows = [{"prompt": f"question {number}", "answer": str(number)} for number in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    path = tmp_path / "toy.yaml"
    path.write_text(RECIPE.format(rows=tmp_path / "rows.jsonl"))
    return path


@pytest.fixture
def policy(saying: Say) -> Iterator[StubService]:
    def generate(sample: GenerateSample, sampling: Sampling) -> GenerateResult:
        question, number = _key(sample.id)
        return saying("right" if number < question else "wrong")

    with StubService(generate=generate) as service:
        yield service


@pytest.fixture
def verifier() -> Iterator[StubService]:
    with StubService(lambda sample: float(sample.response == "right")) as service:
        yield service


def _key(id: str | None) -> tuple[int, int]:
    question, _, number = str(id).removeprefix("rows-").partition("/")
    return int(question), int(number)


def _run(recipe: Path, policy: StubService, verifier: StubService, *words: str) -> Result:
    app = typer.Typer()
    app.command("eval")(cli.evaluate)
    app.command("other")(cli.evaluate_reward)
    addresses = ["--rollout", policy.url, "--verifier", verifier.url]
    folder = f"folder={recipe.parent / 'eval'}"
    return CliRunner().invoke(app, ["eval", str(recipe), *addresses, folder, *words])


def _summary(recipe: Path) -> dict[str, Any]:
    return json.loads((recipe.parent / "eval" / "summary.json").read_text())


def _lines(recipe: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (recipe.parent / "eval" / "responses.jsonl").read_text().splitlines()
    ]


def test_avg_and_pass_at_k_by_hand(recipe: Path, policy: StubService, verifier: StubService) -> None:
    result = _run(recipe, policy, verifier)
    assert result.exit_code == 0, result.output
    summary = _summary(recipe)
    # Right of four: 0, 1, 2, 3, 4, 4.
    assert summary["accuracy"]["value"] == pytest.approx(14 / 24)
    assert (summary["accuracy"]["method"], summary["accuracy"]["count"]) == ("bootstrap", 6)
    # C(4 - c, 2) / C(4, 2): 1, 3/6, 1/6, 0, 0, 0.
    assert summary["pass_at"]["2"]["value"] == pytest.approx(1 - (1 + 1 / 2 + 1 / 6) / 6)
    assert summary["pass_at"]["4"]["value"] == pytest.approx(5 / 6)
    assert list(summary["pass_at"]) == ["2", "4"]
    assert (summary["judged"], summary["failed"], summary["not_asked"]) == (24, {}, 0)
    assert summary["if_failed"] == pytest.approx([14 / 24, 14 / 24])
    assert "avg@4" in result.output
    assert "58.3%" in result.output
    first = next(line for line in _lines(recipe) if (line["question"], line["number"]) == ("rows-3", 2))
    assert (first["response"], first["value"], first["prompt"]) == ("right", 1.0, "question 3")


def test_every_response_has_a_seed_of_its_own(
    recipe: Path, policy: StubService, verifier: StubService
) -> None:
    _run(recipe, policy, verifier)
    seeds = {request.samples[0].seed for request in policy.requests if hasattr(request, "sampling")}  # pyright: ignore
    assert len(seeds) == 24


def test_failures_are_counted_apart_and_never_as_wrong(
    recipe: Path, policy: StubService, saying: Say
) -> None:
    def generate(sample: GenerateSample, sampling: Sampling) -> GenerateResult:
        question, number = _key(sample.id)
        if (question, number) == (5, 0):
            return GenerateResult(status=Status.INVALID_INPUT, reason="too long")
        return saying(
            "right" if number < question else "wrong", finish_reason="length" if number == 3 else "stop"
        )

    def score(sample: Sample) -> Any:
        if _key(sample.id) in ((4, 0), (0, 0)):
            return failed(Status.INVALID_INPUT, "took too long")
        if _key(sample.id)[0] == 1:
            return failed(Status.TIMEOUT, "took too long")
        return float(sample.response == "right")

    policy.generate = generate
    with StubService(score) as verifier:
        result = _run(recipe, policy, verifier)
        asked = Counter(
            request.samples[0].id for request in verifier.requests if isinstance(request, ScoreRequest)
        )
    assert result.exit_code == 1
    summary = _summary(recipe)
    assert summary["failed"] == {"math": {"invalid_input": 2, "timeout": 4}, "rollout": {"invalid_input": 1}}
    # Shares of the judged: 0/3, none of question 1, 2/4, 3/4, 3/3, 3/3.
    assert summary["accuracy"]["value"] == pytest.approx((0 + 0.5 + 0.75 + 1 + 1) / 5)
    assert summary["accuracy"]["count"] == 5
    assert summary["pass_at"]["4"]["count"] == 2
    assert summary["if_failed"] == pytest.approx([11 / 24, 18 / 24])
    assert summary["truncated"] == 6
    # What may pass is tried again, what the caller did wrong is not.
    assert asked["rows-1/0"] == 2
    assert asked["rows-4/0"] == 1
    assert (
        "no verdict from math: 2 invalid_input, 4 timeout; these count neither as right nor as wrong"
        in result.output
    )
    assert "the last reason: took too long" in result.output
    assert "accuracy would be 45.8% were all of them wrong, and 75.0% were all right" in result.output
    assert all("value" not in line for line in _lines(recipe) if line["status"] != "ok")


def test_a_second_run_asks_for_nothing_but_what_has_no_verdict(
    recipe: Path, policy: StubService, verifier: StubService
) -> None:
    working = verifier.score
    verifier.score = lambda sample: (
        failed(Status.UNAVAILABLE, "starting")
        if _key(sample.id)[0] == 2
        else float(sample.response == "right")
    )
    assert _run(recipe, policy, verifier).exit_code == 1
    asked = len(policy.requests)
    verifier.score = working
    verifier.requests.clear()
    result = _run(recipe, policy, verifier)
    assert result.exit_code == 0, result.output
    # The responses were there already: only their verdicts were missing.
    assert len(policy.requests) == asked
    assert sorted(
        str(request.samples[0].id) for request in verifier.requests if isinstance(request, ScoreRequest)
    ) == [f"rows-2/{number}" for number in range(4)]
    assert _summary(recipe)["accuracy"]["value"] == pytest.approx(14 / 24)
    # A third run finds everything done.
    assert _run(recipe, policy, verifier).exit_code == 0
    assert len(policy.requests) == asked


def test_more_responses_and_questions_add_to_what_is_there(
    recipe: Path, policy: StubService, verifier: StubService
) -> None:
    assert _run(recipe, policy, verifier, "data.size=3", "sampling.n=2").exit_code == 0
    assert len(policy.requests) == 6
    assert _run(recipe, policy, verifier).exit_code == 0
    assert len(policy.requests) == 24
    assert _summary(recipe)["accuracy"]["value"] == pytest.approx(14 / 24)


def test_another_evaluation_does_not_mix_in(recipe: Path, policy: StubService, verifier: StubService) -> None:
    assert _run(recipe, policy, verifier).exit_code == 0
    result = _run(recipe, policy, verifier, "sampling.temperature=0.5")
    assert result.exit_code == 2
    assert "benchmark: sampling.temperature was 1.0 and is now 0.5" in result.output
    assert "start over with --fresh" in result.output
    assert _run(recipe, policy, verifier, "sampling.temperature=0.5", "--fresh").exit_code == 0
    assert len(policy.requests) == 48


def test_answers_to_questions_that_have_changed_are_not_taken(
    recipe: Path, policy: StubService, verifier: StubService
) -> None:
    assert _run(recipe, policy, verifier).exit_code == 0
    rows = recipe.parent / "rows.jsonl"
    rows.write_text(rows.read_text().replace("question 4", "another question"))
    assert _run(recipe, policy, verifier).exit_code == 0
    assert len(policy.requests) == 28
    assert _summary(recipe)["judged"] == 24


def test_a_policy_that_changes_on_the_way_ends_the_evaluation(
    recipe: Path, policy: StubService, verifier: StubService, saying: Say
) -> None:
    policy.generate = lambda sample, sampling: saying("right", version=int(_key(sample.id)[0] > 3))
    result = _run(recipe, policy, verifier, "in_flight=1")
    assert result.exit_code == 2
    assert "the policy changed from version 0 to 1 during the evaluation" in result.output
    assert _summary(recipe)["judged"] == 16


def test_a_dead_verifier_ends_the_evaluation_at_once(recipe: Path, policy: StubService) -> None:
    with StubService(lambda sample: 1.0) as verifier:
        pass
    verifier_url = "http://127.0.0.1:9"
    app = typer.Typer()
    app.command("eval")(cli.evaluate)
    words = [
        str(recipe),
        "--rollout",
        policy.url,
        "--verifier",
        verifier_url,
        f"folder={recipe.parent / 'eval'}",
    ]
    result = CliRunner().invoke(app, words)
    assert verifier.requests == []
    assert result.exit_code == 1
    assert "error: " in result.output
    assert policy.requests == []


def test_too_many_failures_end_the_evaluation(recipe: Path, policy: StubService) -> None:
    with StubService(lambda sample: failed(Status.INTERNAL_ERROR, "broken")) as verifier:
        result = _run(
            recipe, policy, verifier, "failures.window=8", "failures.max_fraction=0.5", "in_flight=2"
        )
    assert result.exit_code == 1
    assert "8 of the last 8 responses got no reward" in result.output
    assert "broken" in result.output
    assert _summary(recipe)["accuracy"] is None


def test_a_refused_request_ends_the_evaluation_with_its_sentence(
    recipe: Path, policy: StubService, verifier: StubService
) -> None:
    verifier.fail_next(Failure(), Failure(status=422))
    result = _run(recipe, policy, verifier, "in_flight=1")
    assert result.exit_code == 2
    assert "the test asked for this failure" in result.output


def test_an_unknown_key_and_a_wrong_file_are_one_sentence(
    recipe: Path, policy: StubService, verifier: StubService
) -> None:
    result = _run(recipe, policy, verifier, "samplng.n=2")
    assert (result.exit_code, result.output) == (
        2,
        "error: unknown key 'samplng': did you mean 'sampling'?\n",
    )
    result = _run(recipe, policy, verifier, "data.path=/no/rows.jsonl")
    assert (result.exit_code, result.output) == (2, "error: path: there is no file /no/rows.jsonl\n")


def test_a_model_brings_its_own_services(recipe: Path, policy: StubService, verifier: StubService) -> None:
    result = _run(recipe, policy, verifier, "--model", str(recipe.parent))
    assert (result.exit_code, policy.requests) == (2, [])
    assert "--model starts its own services: leave out --rollout and --verifier" in result.output
    app = typer.Typer()
    app.command("eval")(cli.evaluate)
    result = CliRunner().invoke(
        app, [str(recipe), "--redis", "redis://127.0.0.1:1/0", f"folder={recipe.parent / 'e'}"]
    )
    assert result.exit_code == 1
    assert "Redis at redis://127.0.0.1:1/0 cannot be reached" in result.output
    assert "--model FOLDER starts the services that this needs" in result.output
    result = CliRunner().invoke(app, [str(recipe), "--model", "/no/model"])
    assert (result.exit_code, result.output) == (2, "error: --model /no/model: there is no such folder\n")


def test_fresh_removes_nothing_but_an_evaluation(
    recipe: Path, policy: StubService, verifier: StubService
) -> None:
    (recipe.parent / "eval").mkdir()
    (recipe.parent / "eval" / "thesis.tex").write_text("years of work")
    result = _run(recipe, policy, verifier, "--fresh")
    assert result.exit_code == 2
    assert "holds no evaluation, so --fresh does not remove it" in result.output
    assert (recipe.parent / "eval" / "thesis.tex").exists()


def test_a_line_that_is_no_answer_is_named(recipe: Path, policy: StubService, verifier: StubService) -> None:
    assert _run(recipe, policy, verifier).exit_code == 0
    log = recipe.parent / "eval" / "responses.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join([lines[0], '{"question": "rows-0", "number": "x"}\n', *lines[1:]]))
    result = _run(recipe, policy, verifier)
    assert result.exit_code == 2
    assert "responses.jsonl:2: number: Input should be a valid integer" in result.output


def _wait_for_lines(log: Path, process: "subprocess.Popen[str]", count: int) -> None:
    def written() -> bool:
        assert process.poll() is None, process.communicate()
        return log.exists() and log.read_bytes().count(b"\n") >= count

    until(written)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130)])
def test_a_killed_evaluation_goes_on_where_it_was(
    number: int, status: int, recipe: Path, policy: StubService, verifier: StubService, saying: Say
) -> None:
    released = False

    def generate(sample: GenerateSample, sampling: Sampling) -> GenerateResult:
        question, place = _key(sample.id)
        # The second half of the questions is not answered before the first process is gone.
        while question >= 3 and not released:
            time.sleep(0.01)
        return saying("right" if place < question else "wrong")

    policy.generate = generate
    folder = recipe.parent / "eval"
    addresses = ["--rollout", policy.url, "--verifier", verifier.url]
    words = [
        sys.executable,
        "-m",
        "guerdon",
        "eval",
        str(recipe),
        *addresses,
        f"folder={folder}",
        "in_flight=4",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        _wait_for_lines(folder / "responses.jsonl", process, 12)
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == status, said
    # As if the process had died while it wrote a line.
    with (folder / "responses.jsonl").open("a") as log:
        log.write('{"question": "rows-3", "numb')
    released = True
    judged = len(verifier.requests)
    assert judged == 12
    again = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert again.returncode == 0, again.stderr
    assert len(verifier.requests) == 24
    assert len(_lines(recipe)) == 24
    assert _summary(recipe)["accuracy"]["value"] == pytest.approx(14 / 24)
    assert "avg@4" in again.stdout
