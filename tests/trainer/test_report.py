"""The report is read back as a browser would: parsed, self-contained, and with the numbers of the run in it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from guerdon_trainer import plots
from guerdon_trainer.report import write_report
from guerdon_trainer.run_folder import RunFolder


class Page(HTMLParser):
    """Text, headings, and whatever the page would fetch."""

    _VOID = ("meta", "br", "img", "link", "path", "use", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not str(value).startswith("#"):
                self.fetched.append(str(value))
        if tag not in self._VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self._VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def _row(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "reward": step / 40,
        "accuracy": step / 40,
        "process_reward": None if step == 1 else 0.1,
        "entropy": 1.0 / step,
        "prm/loss": 0.5,
        "novel_metric": 3,
        "tokens_per_s": 100.0,
        "seconds": 2.0,
        "wait_rollouts_s": 1.0,
        "learn_s": 0.5,
        "wait_rollouts_fraction": 0.5,
        "policy_age_mean": 0.75,
        "engine_kl": 1e-6,
        "unrewarded": 1 if step == 3 else 0,
        "failures": {"math": {"timeout": 1}},
    }


def _rollout(step: int, kind: str) -> dict[str, Any]:
    response = {
        "text": "<b>06;\\boxed{10}</b>",
        "finish_reason": "stop",
        "tokens": 3,
        "reward": 1.0,
        "outcome": 1.0,
        "results": {"math": {"status": "ok", "value": 1.0, "reason": "10 equals 10"}},
        "process": [0.1, -0.2, 0.0],
    }
    # The right format alone is worth something; the answer is wrong all the same.
    wrong = {**response, "reward": 0.1, "outcome": 0.0}
    lost = {
        **response,
        "reward": None,
        "outcome": None,
        "results": {"math": {"status": "timeout", "value": None, "reason": "slow"}},
    }
    return {
        "step": step,
        "kind": kind,
        "question": "q",
        "prompt": [{"role": "user", "content": "6+0+4="}],
        "references": ["10"],
        "responses": [response, wrong, lost],
    }


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return _run(tmp_path)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of `folder`."""
    return write_report(_run(tmp_path_factory.mktemp("written"))).read_text()


def _run(path: Path) -> RunFolder:
    folder = RunFolder(path / "arithmetic-seed0")
    folder.path.mkdir()
    folder.config.write_text("name: arithmetic\nseed: 0\n")
    _write(folder.metrics, [_row(step) for step in range(1, 41)])
    _write(
        folder.evaluations,
        [
            {
                "step": step,
                "accuracy": accuracy,
                "reward": accuracy,
                "judged": 250,
                "failed": 6,
                "response_length": 3,
            }
            for step, accuracy in ((0, 0.25), (20, None), (40, 0.9375))
        ],
    )
    _write(
        folder.rollouts, [_rollout(step, "training") for step in range(1, 41)] + [_rollout(40, "evaluation")]
    )
    counts = {"final": {"ok": 4000, "timeout": 1}, "retried": {"overloaded": 7}, "p50_ms": 3.2, "p99_ms": 41.0,
              "last_failure": "timeout: slow <worker>"}  # fmt: skip
    folder.services.write_text(json.dumps({"services": {"math": counts}, "restarts": {"math": 2, "code": 0}}))
    return folder


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_page_is_whole_and_fetches_nothing(written: str) -> None:
    page = Page(written)
    assert page.open == []
    assert page.fetched == []
    assert "script" not in page.tags
    # Ten metrics with a place of their own, four others, and the parts of each step's time.
    assert page.tags.count("svg") == 15


def test_the_numbers_of_the_run_are_in_it(written: str) -> None:
    text = " ".join(Page(written).text.split())
    assert "25.0 % → 93.8 %" in text
    assert "Greedy accuracy on 256 held-out questions, before the first update and after update 40." in text
    assert "6 of them got no verdict" in text
    assert "4,000" in text
    assert "7 tried again" in text
    assert "timeout: slow <worker>" in text
    assert "service restarts 2" in text
    assert "responses without reward 1" in text
    assert "<b>06;\\boxed{10}</b>" in text
    assert "no reward" in text
    assert "novel_metric" in text
    assert "share of the step spent waiting for rollouts" in text
    assert "engine against trainer, KL (k3), nats per token" in text
    assert "name: arithmetic" in text


def test_chances_among_samples_have_their_curve_and_their_intervals(folder: RunFolder) -> None:
    def row(step: int, value: float) -> dict[str, Any]:
        chance = {"low": value - 0.1, "high": value + 0.1, "questions": 250}
        passes = {"1": {"value": value, **chance}, "4": {"value": value + 0.05, **chance}}
        return {**before[0], "step": step, "accuracy": value, "pass_at": passes, "samples_failed": 0}

    before = [json.loads(line) for line in folder.evaluations.read_text().splitlines()]
    _write(folder.evaluations, [row(0, 0.25), row(40, 0.5)])
    page = Page(write_report(folder).read_text())
    text = " ".join(page.text.split())
    assert "Sampled pass@1 50.0 % (before 25.0 %) [40.0 %, 60.0 %], pass@4 55.0 % (before 30.0 %)" in text
    assert "held-out pass@4" in text
    assert page.tags.count("svg") == 16


def test_a_reward_has_the_colour_of_its_outcome(written: str) -> None:
    shown = re.findall(r'<span class="reward (\w+)">([^<]+)</span>', written)
    assert set(shown) == {("right", "1.00"), ("wrong", "0.10"), ("none", "no reward")}


def test_a_run_that_failed_at_once_has_a_report_too(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.config.write_text("name: x\n")
    page = Page(write_report(folder).read_text())
    assert "No evaluation was finished." in page.text
    assert "None were recorded." in page.text


def test_ids_of_one_plot_are_none_of_another() -> None:
    svgs = [plots.curve(label, ([1, 2, 3], [1.0, 2.0, 0.5])) for label in ("loss", "reward")]
    clips = [set(re.findall(r'clipPath id="([^"]+)"', svg)) for svg in svgs]
    assert clips[0]
    assert not clips[0] & clips[1]
    assert all(re.match(r"<svg [^>]*viewBox", svg) and "width=" not in svg.split(">")[0] for svg in svgs)


def test_the_same_numbers_give_the_same_plot() -> None:
    points = ([1, 2, 3], [1.0, 2.0, 0.5])
    assert plots.curve("loss", points) == plots.curve("loss", points)
