"""The policy's versions at a URL: services that share no folder get them; a store that is away stops nothing."""

import io
import math
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from guerdon import mirrors, weights
from guerdon.stores import Store, StoreError
from guerdon_trainer import weights_mirror
from guerdon_trainer.config import RecipeError, RunConfig
from guerdon_trainer.dry_run import Checks, Failed, _check_mirror
from guerdon_trainer.launch import ensure_policy
from guerdon_trainer.live import LiveView
from guerdon_trainer.run_folder import open_folder, read_lines
from guerdon_trainer.train import Run, train
from tests.waiting import until

Make = Callable[..., RunConfig]
#: Every group is trained on, so that a run of few steps has all of them.
STEPS = ("filter=null", "training.checkpoint_every=2")


class View(LiveView):
    """Keeps what is said, and does something after a step."""

    def __init__(self, after: Callable[[int], None] = lambda step: None) -> None:
        self.said = io.StringIO()
        super().__init__("test", 1, Console(file=self.said, width=500))
        self._after = after

    def step(self, row: dict[str, Any]) -> None:
        self._after(row["step"])


def attempt(config: RunConfig, make_services: Any, view: View) -> Run:
    """One attempt of a run, with services that follow its folder."""
    folder = open_folder(config)
    ensure_policy(config, folder, lambda text: None)
    run = Run(config, view)
    finish(run, make_services, view)
    return run


def finish(run: Run, make_services: Any, view: View) -> None:
    services = make_services(run.folder.weights)
    services.process_reward.version = run.state.prm_version
    train(run, services.clients, view)


def pulled(url: str, folder: Path) -> weights.Published | None:
    """What a service on another machine has then."""
    Store(url).pull(folder)
    return weights.latest(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."
    }


def _one_file(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store"


def test_a_finished_run_has_its_newest_version_at_the_url_whole(
    make_config: Make, make_services: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, nothing is said of waiting.
    monkeypatch.setattr(weights_mirror, "_SILENT_S", math.inf)
    config = make_config(*STEPS, "training.steps=3", f"weights.mirror_url={url}")
    view = View()
    run = attempt(config, make_services, view)
    last = pulled(url, tmp_path / "there")
    assert last is not None
    assert last.version == 3
    # Configuration and tokenizer too: a service needs nothing else.
    assert files(last.path) == files(weights.version_path(run.folder.weights, 3))
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files(last.path).keys()
    assert not list(run.folder.weights.glob(".outgoing-*"))
    assert "mirror" not in view.said.getvalue()


def test_a_store_that_is_away_for_some_versions_stops_nothing(
    make_config: Make,
    make_services: Any,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mirrors, "_FIRST_PAUSE_S", 0.01)
    store = tmp_path / "store"

    def taken_away(store: Path) -> bool:
        try:
            shutil.rmtree(store, ignore_errors=True)
            store.write_text("")
        except IsADirectoryError:  # a version was on its way
            return False
        return True

    def after(step: int) -> None:
        if step == 1:  # from now on a file lies where the folder should be
            until(lambda: taken_away(store))
        elif step == 4:
            store.unlink()

    config = make_config(*STEPS, "training.steps=5", f"weights.mirror_url={url}")
    run = attempt(config, make_services, View(after))
    rows = read_lines(run.folder.metrics)
    assert [row["policy_version"] for row in rows] == [1, 2, 3, 4, 5]
    behind = [row["mirror_behind"] for row in rows]
    # One version may have been on its way when the store went, and as the next one came.
    assert behind[0] <= 1
    assert behind[3] >= 1
    assert behind[3] > behind[2] > behind[1]
    assert "is behind and will be tried again" in caplog.text
    last = pulled(url, tmp_path / "there")
    assert last is not None
    assert last.version == 5
    assert [one.version for one in weights.published(run.folder.weights)] == [4, 5]


def test_a_store_that_never_comes_back_costs_a_run_nothing_but_a_sentence(
    make_config: Make, make_services: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_mirror, "_AWAY_S", 0.2)
    monkeypatch.setattr(mirrors, "_FIRST_PAUSE_S", 0.01)
    config = make_config(*STEPS, "training.steps=2", f"weights.mirror_url={url}")
    view = View()
    folder = open_folder(config)
    ensure_policy(config, folder, lambda text: None)
    run = Run(config, view)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("")
    finish(run, make_services, view)
    said = view.said.getvalue()
    assert f"the run ends before its mirror is complete: {url} has version 0, behind version 2: " in said
    assert [row["mirror_behind"] for row in read_lines(run.folder.metrics)] == [0, 1]
    assert (run.folder.model / "model.safetensors").is_file()
    assert [one.version for one in weights.published(run.folder.weights)] == [1, 2]


def test_what_a_killed_attempt_left_at_the_url_is_gone_before_the_next_one_asks_anybody(
    make_config: Make, make_services: Any, url: str, tmp_path: Path
) -> None:
    config = make_config(*STEPS, "training.steps=4", f"weights.mirror_url={url}")

    def stop(step: int) -> None:
        if step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(config, make_services, View(stop))
    there = tmp_path / "there"
    left = pulled(url, there)
    assert left is not None
    assert left.version == 3
    run = Run(config, View())
    assert run.state.policy_version == 2
    went_back = pulled(url, there)
    assert went_back is not None
    assert went_back.version == 2
    assert files(went_back.path) == files(weights.version_path(run.folder.weights, 2))
    finish(run, make_services, View())
    last = pulled(url, there)
    assert last is not None
    assert last.version == 4
    assert files(last.path) == files(weights.version_path(run.folder.weights, 4))


def test_no_attempt_begins_beside_a_url_that_may_hold_its_numbers(
    make_config: Make, make_services: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_mirror, "_AWAY_S", 0.2)
    attempt(make_config(*STEPS, "training.steps=1", f"weights.mirror_url={url}"), make_services, View())
    config = make_config(*STEPS, "training.steps=2", f"weights.mirror_url={url}")
    monkeypatch.setattr(Store, "push", _away)
    monkeypatch.setattr(weights_mirror, "_SILENT_S", 0.1)
    view = View()
    with pytest.raises(
        StoreError, match=rf"weights\.mirror_url: {url} has nothing yet, behind version 1: OSError: away"
    ):
        Run(config, view)
    assert f"waiting for the mirror: {url} has nothing yet, behind version 1" in view.said.getvalue()
    until(lambda: not any(thread.name == "weights mirror" for thread in threading.enumerate()))


def _away(*_: Any, **__: Any) -> None:
    raise OSError("away")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("weights.mirror_url='file://${run}/weights/policy'",), "weights.mirror_url lies in "),
        (
            (
                "weights.mirror_url=file:///x",
                "services.process_reward.settings={model: /m, weights_dir: /w, mirror_url: 'file:///x/'}",
            ),
            "weights.mirror_url is services.process_reward.settings.mirror_url as well",
        ),
    ],
)
def test_a_url_with_two_writers_is_refused(
    make_config: Make, overrides: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(RecipeError) as error:
        make_config(*overrides)
    assert str(error.value).startswith(sentence)


def test_a_run_may_go_on_with_another_mirror(
    make_config: Make, make_services: Any, url: str, tmp_path: Path
) -> None:
    attempt(make_config(*STEPS, "training.steps=1"), make_services, View())
    attempt(make_config(*STEPS, "training.steps=2", f"weights.mirror_url={url}"), make_services, View())
    last = pulled(url, tmp_path / "there")
    assert last is not None
    assert last.version == 2


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("/shared/policy", "'weights.mirror_url': string should match"),
        ("s3://", "'weights.mirror_url': string should match"),
        (
            "nosuch://bucket/policy",
            "'weights.mirror_url': nosuch://bucket/policy: Protocol not known: nosuch",
        ),
        ("memory://policy", "'weights.mirror_url': memory:// is the memory of the trainer"),
        ("https://bucket.example.com/policy", "'weights.mirror_url': nothing can be uploaded there"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_by_name(make_config: Make, given: str, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        make_config(f"weights.mirror_url={given}")


def test_a_dry_run_asks_the_store_and_leaves_it_as_it_is(url: str, tmp_path: Path) -> None:
    checks = Checks(lambda text: None)
    _check_mirror(checks, url)
    Store(url).push(weights.publish(tmp_path / "here", 7, _one_file).path, 7)
    before = sorted((tmp_path / "store").rglob("*"))
    _check_mirror(checks, url)
    nothing, something = (check.detail for check in checks.made)
    assert nothing == f"{url} has no version yet"
    assert something.startswith(f"{url} has v000000007-")
    assert sorted((tmp_path / "store").rglob("*")) == before
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "store").write_text("")
    with pytest.raises(Failed):
        _check_mirror(checks, url)
    assert f"{url} cannot be read: " in checks.made[-1].detail


def test_adapters_at_the_url_are_for_whom_they_are_enough(make_config: Make, url: str) -> None:
    adapters = ("optimizer.lora={rank: 2, publish: adapter}", f"weights.mirror_url={url}")
    rollout = f"services.rollout.settings={{model: /m, weights_dir: '{url}', engine: vllm, max_lora_rank: 2}}"
    make_config(*adapters, rollout)
    with pytest.raises(RecipeError, match="service 'rollout' needs engine vllm and max_lora_rank 2"):
        make_config(*adapters, rollout.replace("rank: 2", "rank: 1"))
    with pytest.raises(RecipeError, match="service 'process_reward' needs whole models in file://"):
        make_config(*adapters, f"services.process_reward.settings.policy_weights_dir={url}")
