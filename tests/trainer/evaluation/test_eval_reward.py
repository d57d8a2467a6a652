"""`guerdon eval-reward` on labelled responses: several services side by side, failures counted, wrong rows named."""

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from guerdon.testing import Failure, StubService
from guerdon.types import Sample, ScoreRequest, Status, failed
from guerdon_trainer.data import DataError
from guerdon_trainer.evaluation import cli
from guerdon_trainer.evaluation.labelled import read_labelled

Run = Callable[..., Result]

#: The response says what the first service makes of it; the second only knows right and wrong, and is once mistaken.
ROWS = [
    {"response": "0.1", "label": False},
    {"response": "0.2", "label": False},
    {"response": "0.7", "label": False},
    {"response": "0.6", "label": True},
    {"response": "0.8", "label": 1},
    {"response": "0.9", "label": True},
]


def _file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "labelled.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(rows: list[dict[str, Any]], services: dict[str, StubService], *words: str) -> Result:
        app = typer.Typer()
        app.command("eval-reward")(cli.evaluate_reward)
        named = [
            word for name, service in services.items() for word in ("--service", f"{name}={service.url}")
        ]
        return CliRunner().invoke(
            app, [str(_file(tmp_path, rows)), *named, "--folder", str(tmp_path / "out"), *words]
        )

    return call


def _graded(sample: Sample) -> float:
    return float(str(sample.response))


def _binary(sample: Sample) -> float:
    return float(sample.response in ("0.2", "0.6", "0.8", "0.9"))


def _services(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "out" / "summary.json").read_text())["services"]


def test_two_rewards_side_by_side_by_hand(run: Run, tmp_path: Path) -> None:
    with StubService(_graded) as graded, StubService(_binary) as binary:
        result = run(ROWS, {"graded": graded, "binary": binary})
    assert result.exit_code == 0, result.output
    first, second = _services(tmp_path)
    assert (first["service"], first["statuses"]) == ("graded", {"ok": 6})
    # Of nine pairs only 0.6 against 0.7 is lost; of the binary one, three are ties.
    assert first["quality"]["auc"]["value"] == pytest.approx(8 / 9)
    assert second["quality"]["auc"]["value"] == pytest.approx((6 + 3 / 2) / 9)
    assert second["auc_difference"]["value"] == pytest.approx(7.5 / 9 - 8 / 9)
    assert first["auc_difference"] is None
    # At 0.5 each calls one wrong response right.
    for service in (first, second):
        assert service["quality"]["accuracy"]["value"] == pytest.approx(5 / 6)
        assert service["quality"]["false_positives"]["value"] == pytest.approx(1 / 3)
        assert service["quality"]["false_negatives"]["value"] == 0
    # Each value is a bin of its own: distances 0.1, 0.2, 0.7, 0.4, 0.2, 0.1.
    assert first["quality"]["calibration_error"] == pytest.approx(1.7 / 6)
    # Four rows of value 1, three of them right; two of value 0, both wrong.
    assert second["quality"]["calibration_error"] == pytest.approx(1 / 6)
    assert "0.889" in result.output
    lines = [json.loads(line) for line in (tmp_path / "out" / "scored.jsonl").read_text().splitlines()]
    assert lines[2]["label"] is False
    assert {name: said["value"] for name, said in lines[2]["scores"].items()} == {
        "graded": 0.7,
        "binary": 0.0,
    }


def test_the_calibration_plot_names_every_service(run: Run, tmp_path: Path) -> None:
    with StubService(_graded) as graded, StubService(_binary) as binary:
        run(ROWS, {"graded": graded, "binary": binary})
    plot = ElementTree.parse(tmp_path / "out" / "calibration.svg")
    words = {text for element in plot.iter() if (text := (element.text or "").strip())}
    assert {"graded", "binary", "calibrated", "share of right responses"} <= words


def test_the_label_never_reaches_the_service(run: Run) -> None:
    rows = [{**row, "outcome": 1.0, "references": ["4"], "extra": {"anything": 1}} for row in ROWS]
    with StubService(_graded) as graded:
        assert run(rows, {"graded": graded}).exit_code == 0
        [request] = graded.requests
    assert isinstance(request, ScoreRequest)
    assert {sample.outcome for sample in request.samples} == {None}
    assert [sample.references for sample in request.samples] == [["4"]] * 6


def test_rows_without_a_value_are_counted_and_left_out(run: Run, tmp_path: Path) -> None:
    def failing(sample: Sample) -> Any:
        if sample.response == "0.7":
            return failed(Status.INVALID_INPUT, "no")
        return _graded(sample)

    with StubService(failing) as graded, StubService(_binary) as binary:
        result = run(ROWS, {"graded": graded, "binary": binary})
    assert result.exit_code == 1
    first, second = _services(tmp_path)
    assert first["statuses"] == {"ok": 5, "invalid_input": 1}
    assert first["quality"]["rows"] == 5
    assert first["quality"]["auc"]["value"] == 1.0
    # The difference is over the five rows that both judged: 4.5 / 6 pairs + 1.5 ties' halves.
    assert second["auc_difference"]["value"] == pytest.approx((3 + 3 / 2) / 6 - 1)
    assert "1 invalid_input" in result.output


def test_a_passing_failure_is_tried_again(run: Run, tmp_path: Path) -> None:
    with StubService(_graded) as graded:
        graded.fail_next(Failure(), Failure(status=503))
        assert run(ROWS, {"graded": graded}).exit_code == 0
    assert _services(tmp_path)[0]["statuses"] == {"ok": 6}


def test_a_service_that_judges_nothing_has_no_figures(run: Run, tmp_path: Path) -> None:
    with (
        StubService(lambda sample: failed(Status.INVALID_INPUT, "no")) as broken,
        StubService(_graded) as graded,
    ):
        result = run(ROWS, {"broken": broken, "graded": graded})
    assert result.exit_code == 1
    first, second = _services(tmp_path)
    assert first["quality"] is None
    assert second["auc_difference"] is None
    assert second["quality"]["auc"]["value"] == pytest.approx(8 / 9)


def test_many_rows_keep_their_order(run: Run, tmp_path: Path) -> None:
    rows = [{"response": str(number / 1000), "label": number >= 600} for number in range(1000)]
    with StubService(_graded) as graded:
        assert run(rows, {"graded": graded}, "--threshold", "0.6").exit_code == 0
    [service] = _services(tmp_path)
    assert service["quality"]["auc"]["value"] == 1.0
    assert service["quality"]["accuracy"]["value"] == 1.0
    lines = [json.loads(line) for line in (tmp_path / "out" / "scored.jsonl").read_text().splitlines()]
    assert [line["scores"]["graded"]["value"] for line in lines] == [number / 1000 for number in range(1000)]


def test_responses_to_one_prompt_are_drawn_together(run: Run, tmp_path: Path) -> None:
    rows = [{**row, "group": f"q{number % 3}"} for number, row in enumerate(ROWS)]
    with StubService(_graded) as graded:
        assert run(rows, {"graded": graded}).exit_code == 0
    assert _services(tmp_path)[0]["quality"]["accuracy"]["method"] == "bootstrap"


def test_options_and_thresholds_belong_to_a_service(run: Run, tmp_path: Path) -> None:
    with StubService(_graded) as one, StubService(_graded) as two:
        words = [
            "--options",
            'one={"extraction": "lenient"}',
            "--threshold",
            "0.15",
            "--threshold",
            "two=0.75",
        ]
        assert run(ROWS, {"one": one, "two": two}, *words).exit_code == 0
        assert [request.options for request in one.requests if isinstance(request, ScoreRequest)] == [
            {"extraction": "lenient"}
        ]
        assert [request.options for request in two.requests if isinstance(request, ScoreRequest)] == [{}]
    first, second = _services(tmp_path)
    assert first["quality"]["accuracy"]["value"] == pytest.approx(4 / 6)
    assert second["quality"]["false_negatives"]["value"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--options", "other={}"], "--options other: no --service has that name; there are graded"),
        (["--options", "graded={"], "--options graded: no JSON"),
        (["--options", "graded=[]"], "--options graded: a JSON object was expected"),
        (["--threshold", "high"], "--threshold high: 'high' is no number"),
        (["--threshold", "other=1"], "--threshold other: no --service has that name"),
        (["--field", "response"], "--field response: must look like NAME=VALUE"),
        (["--field", "reponse=a"], "--field reponse: a sample has no such field; did you mean 'response'?"),
        (["--label", "lable"], "labelled.jsonl:1: no field 'lable' (--label); did you mean 'label'?"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(run: Run, words: list[str], sentence: str) -> None:
    with StubService(_graded) as graded:
        result = run(ROWS, {"graded": graded}, *words)
    assert result.exit_code == 2
    assert sentence in result.output


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    rows = [{"output": "a", "gold": 3, "question": "q?", "correct": 0, "id": 7}]
    fields = {"response": "output", "references": "gold", "prompt": "question"}
    [row] = read_labelled(_file(tmp_path, rows), "correct", fields)
    assert row.sample == Sample(id="1", response="a", references=["3"], prompt="q?")
    assert (row.right, row.group) == (False, "row 1")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (
            '{"response": "a", "label": 0.5}',
            r"rows.jsonl:2: the field 'label' is 0.5: a label is true or false, 1 or 0",
        ),
        ('{"response": "a"}', r"rows.jsonl:2: no field 'label' \(--label\); there are response"),
        ('{"reponse": "a", "label": 1}', r"rows.jsonl:2: no field 'response' .*; did you mean 'reponse'\?"),
        ('{"response": 3, "label": 1}', r"rows.jsonl:2: response: Input should be a valid string"),
        (
            '{"response": "a", "label": 1, "group": []}',
            r"rows.jsonl:2: group: Input should be a valid string",
        ),
        ('{"response": "a", "label" 1}', r"rows.jsonl:2: no JSON: Expecting ':' delimiter at column 27"),
        ("[1]", r"rows.jsonl:2: an object was expected, not list"),
    ],
)
def test_a_wrong_row_is_named_with_its_line_and_field(line: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"response": "a", "label": true}\n' + line + "\n")
    with pytest.raises(DataError, match=sentence):
        read_labelled(path, "label", {})


def test_no_file_and_no_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*rows.jsonl"):
        read_labelled(tmp_path / "rows.jsonl", "label", {})
    (tmp_path / "rows.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"rows.jsonl has no rows"):
        read_labelled(tmp_path / "rows.jsonl", "label", {})


def test_real_verifiers_side_by_side(run: Run, verifiers: dict[str, str], tmp_path: Path) -> None:
    """An exact match is stricter than the math service: it misses another form of the answer."""
    right = ["\\boxed{1/2}", "\\boxed{0.5}", "\\boxed{\\frac{2}{4}}", "\\boxed{1/2}"]
    wrong = ["\\boxed{1/3}", "\\boxed{2}", "1/2"]
    rows = [
        {"response": text, "references": "1/2", "label": label}
        for label, texts in ((1, right), (0, wrong))
        for text in texts
    ]
    app = typer.Typer()
    app.command("eval-reward")(cli.evaluate_reward)
    exact = 'rules={"rules": [{"rule": "exact", "answer_from": "last_box"}]}'
    services = ["--service", f"math={verifiers['math']}", "--service", f"rules={verifiers['rules']}"]
    words = [str(_file(tmp_path, rows)), *services, "--options", exact, "--folder", str(tmp_path / "out")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    math, rules = _services(tmp_path)
    assert (math["quality"]["auc"]["value"], math["quality"]["accuracy"]["value"]) == (1.0, 1.0)
    assert rules["quality"]["false_negatives"]["value"] == 0.5
    assert rules["quality"]["false_positives"]["value"] == 0.0
    assert rules["quality"]["auc"]["value"] == 0.75
