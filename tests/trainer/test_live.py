import io
from typing import Any

from rich.console import Console

from guerdon_trainer.evaluate import Evaluation
from guerdon_trainer.live import LiveView


def _row(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "reward": 0.5,
        "accuracy": 0.25 + step / 100,
        "process_reward": None,
        "entropy": 0.7,
        "clip_fraction": 0.1,
        "kl_initial": 0.01,
        "tokens_per_s": 1234.5,
        "wait_rewards_s": 0.2,
        "seconds": 3.0,
        "failures": {"math": {"timeout": 2}, "rules": {"timeout": 1, "overloaded": 4}},
    }


def _view(*, terminal: bool) -> tuple[LiveView, io.StringIO]:
    output = io.StringIO()
    console = Console(file=output, force_terminal=terminal, width=100, color_system=None)
    return LiveView("quickstart-seed0", 60, console), output


def test_without_a_terminal_each_step_is_one_line() -> None:
    view, output = _view(terminal=False)
    with view:
        view.progress("too fine")
        view.step(_row(1))
        view.step(_row(2))
    lines = output.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith(
        "step 2/60 | reward 0.500 | accuracy 27.0% | entropy 0.700 nats | clip fraction 10.0%"
    )
    assert "failures 3 timeout, 4 overloaded" in lines[1]
    assert lines[1].endswith("2:54 left")


def test_a_terminal_shows_a_panel_with_everything() -> None:
    view, output = _view(terminal=True)
    with view:
        view.evaluation(Evaluation(0, 0.24, 0.24, 256, 0, 5.0))
        for step in range(1, 5):
            view.step(_row(step))
        view.progress("step 5: 3 of 32 groups")
        view._live.refresh()
        shown = output.getvalue()
    for part in (
        "quickstart-seed0",
        "step 4/60",
        "29.0%",
        "1,234",
        "3 timeout, 4 overloaded",
        "2:48 left",
        "24.0%",
    ):
        assert part in shown, part
    assert "step 5: 3 of 32 groups" in shown
    assert "▁▃▅█" in shown


def test_an_evaluation_says_what_it_does_not_know() -> None:
    assert Evaluation(0, 0.5, 0.5, 8, 0, 3.0).summary == "held-out greedy accuracy 50.0% of 8 questions"
    assert Evaluation(0, 0.5, 0.5, 8, 2, 3.0).summary.endswith("8 questions, 2 without a verdict")
    assert "unknown" in Evaluation(0, None, None, 0, 8, 3.0).summary
