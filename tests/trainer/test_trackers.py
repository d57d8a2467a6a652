"""Trackers besides TensorBoard, whose packages are not installed here: modules with their interface stand for them."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from guerdon_trainer.config import RunConfig
from guerdon_trainer.live import LiveView
from guerdon_trainer.trackers import Tracked, TrackerMissing, Trackers, check_trackers
from guerdon_trainer.train import Run


class Calls:
    """Everything that was called, by name."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __call__(self, name: str, result: Any = None) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.made.append((name, args, options))
            return result

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.made]

    def of(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, options) for made, args, options in self.made if made == name]


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a module that can be imported and found."""

    def make(name: str, **members: Any) -> None:
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None)
        vars(made).update(members)
        monkeypatch.setitem(sys.modules, name, made)

    return make


@pytest.fixture
def run(tmp_path: Path) -> Tracked:
    return Tracked("abc123", "unit-seed0", tmp_path, 4, {"seed": 0})


def _write(trackers: Trackers) -> None:
    trackers.numbers(5, {"train/reward": 0.5, "prm/loss": 1.0})
    trackers.text(5, "rollouts/training", "1 < 2\nresponse")
    trackers.close()


def test_wandb(
    calls: Calls, module: Callable[..., None], run: Tracked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    session = SimpleNamespace(log=calls("log"), define_metric=calls("define_metric"), finish=calls("finish"))
    module("wandb", init=calls("init", session), Html=lambda text: text, Settings=lambda **options: options)
    _write(Trackers(["wandb"], run))
    [(_, begun)] = calls.of("init")
    # The same id after a restart, and the run goes on.
    assert (begun["project"], begun["id"], begun["resume"]) == ("mine", "abc123", "allow")
    assert [args for args, _ in calls.of("log")] == [
        ({"train/reward": 0.5, "prm/loss": 1.0, "step": 5},),
        ({"rollouts/training": "<pre>1 &lt; 2\nresponse</pre>", "step": 5},),
    ]
    assert calls.names[-1] == "finish"


@pytest.mark.parametrize("known", [True, False])
def test_mlflow(calls: Calls, module: Callable[..., None], run: Tracked, known: bool) -> None:
    there = SimpleNamespace(info=SimpleNamespace(run_id="r1"), experiment_id="e1")
    client = SimpleNamespace(
        get_experiment_by_name=calls("get_experiment_by_name", there if known else None),
        create_experiment=calls("create_experiment", "e1"),
        search_runs=calls("search_runs", [there] if known else []),
        create_run=calls("create_run", there),
        **{
            name: calls(name)
            for name in ("update_run", "log_dict", "log_batch", "log_text", "set_terminated")
        },
    )
    module("mlflow", MlflowClient=lambda: client)
    module("mlflow.entities", Metric=lambda *values: values)
    _write(Trackers(["mlflow"], run))
    # A run that an earlier attempt made is found by its tag.
    assert ("create_run" in calls.names) is not known
    assert ("create_experiment" in calls.names) is not known
    assert "abc123" in calls.of("search_runs")[0][0][1]
    [(_, logged)] = calls.of("log_batch")
    assert [(tag, value, step) for tag, value, _, step in logged["metrics"]] == [
        ("train/reward", 0.5, 5),
        ("prm/loss", 1.0, 5),
    ]
    assert calls.of("log_text")[0][0] == ("r1", "1 < 2\nresponse", "rollouts/training/step-000005.txt")
    assert calls.names[-1] == "set_terminated"


def test_trackio(calls: Calls, module: Callable[..., None], run: Tracked) -> None:
    module(
        "trackio",
        init=calls("init"),
        log=calls("log"),
        finish=calls("finish"),
        Markdown=lambda text: text,
    )
    _write(Trackers(["trackio"], run))
    [(_, begun)] = calls.of("init")
    assert (begun["name"], begun["resume"]) == ("unit-seed0-abc123", "allow")
    assert calls.of("log")[0] == (({"train/reward": 0.5, "prm/loss": 1.0},), {"step": 5})
    assert calls.names[-1] == "finish"


def test_several_at_once_and_one_that_cannot_open_closes_the_others(
    calls: Calls, module: Callable[..., None], run: Tracked
) -> None:
    def refuse(**options: Any) -> None:
        raise RuntimeError("no account")

    module("trackio", init=calls("init"), finish=calls("finish"))
    module("wandb", init=refuse, Settings=lambda **options: options)
    with pytest.raises(RuntimeError, match="no account"):
        Trackers(["trackio", "wandb"], run)
    assert calls.names == ["init", "finish"]


def test_what_is_not_installed_is_said_before_anything_starts(
    make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_trackers(["tensorboard"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    sentence = "tracking names wandb, which is not installed: pip install wandb"
    with pytest.raises(TrackerMissing, match=sentence):
        check_trackers(["tensorboard", "wandb"])
    config = make_config("tracking=[wandb]")
    with pytest.raises(TrackerMissing, match=sentence):
        Run(config, LiveView("test", 1))
