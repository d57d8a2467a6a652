"""The learner's folder and its mirror: an update is done when it is in the folder, whatever the mirror says."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from guerdon import mirrors, weights
from guerdon.stores import Store
from guerdon.types import Sample, Status, UpdateRequest
from guerdon_services.models import FollowedModel
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardOptions, ProcessRewardSettings
from guerdon_services.runtime.scorer import NotReady, ScoreJob
from tests.waiting import until

Start = Callable[..., ProcessRewardScorer]


def request(name: str, **given: Any) -> UpdateRequest:
    samples = [
        Sample(prompt="1+1=", response="2", outcome=1.0),
        Sample(prompt="1+1=", response="3", outcome=0.0),
    ]
    return UpdateRequest(request_id=name, samples=samples, order="before", **given)


def test_weights_that_cannot_be_read_back_do_not_answer(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a step that could not be published, those in memory are of no version."""
    scorer = start()
    scorer.update(request("u1"))
    job = ScoreJob(Sample(prompt="1+1=", response="2"), ProcessRewardOptions())
    before = scorer.score([job])
    latest = tmp_path / "prm" / "LATEST"

    def fail(folder: Path, *_: object, **__: object) -> None:
        latest.write_text("rubbish")
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(weights, "publish", fail)
        with pytest.raises(OSError, match="gone"):
            scorer.update(request("u2"))
    for attempt in (lambda: scorer.score([job]), lambda: scorer.update(request("u2")), scorer.refresh):
        with pytest.raises(NotReady, match="cannot be read back"):
            attempt()
    latest.write_text("1")
    assert scorer.score([job]) == before
    assert scorer.update(request("u2")).version_after == 2


def test_an_optimizer_short_of_memory_is_unavailable_and_changes_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = start()
    job = ScoreJob(Sample(prompt="1+1=", response="2"), ProcessRewardOptions())
    before = scorer.score([job])

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr("torch.optim.AdamW.step", fail)
        with pytest.raises(NotReady, match="memory"):
            scorer.update(request("u1"))
    assert scorer.score([job]) == before
    assert scorer.update(request("u1")).version_after == 1


def test_a_version_remembers_so_many_updates_and_no_more(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guerdon_services.process_reward.store._REMEMBERED", 2)
    scorer = start()
    first = scorer.update(request("u1"))
    assert scorer.update(request("u2")).version_after == 2
    assert scorer.update(request("u1")) == first
    assert scorer.update(request("u3")).version_after == 3
    assert scorer.update(request("u1")).version_after == 4  # forgotten: made once more


@pytest.mark.parametrize("left", [None, "77"])
def test_a_learner_does_not_begin_anew_where_versions_lie(
    start: Start, tmp_path: Path, left: str | None
) -> None:
    scorer = start()
    for name in ("u1", "u2"):
        scorer.update(request(name))
    latest = tmp_path / "prm" / "LATEST"
    latest.unlink() if left is None else latest.write_text(left)
    for _ in range(2):  # the folder is free again after a refusal
        with pytest.raises(ValueError, match=r"LATEST names none of the versions \[1, 2\]"):
            start()
    latest.write_text("2")
    assert start().model_version == 2


def test_a_first_version_that_a_kill_left_without_latest_is_made_anew(start: Start, tmp_path: Path) -> None:
    start()
    (tmp_path / "prm" / "LATEST").unlink()
    assert start().model_version == 0


def test_a_folder_that_was_replaced_has_one_learner(start: Start, tmp_path: Path) -> None:
    scorer = start()
    (tmp_path / "prm").rename(tmp_path / "away")
    assert scorer.update(request("u1")).version_after == 1
    with pytest.raises(NotReady, match="another learner"):
        ProcessRewardScorer(scorer.settings).open()
    (tmp_path / "prm").rename(tmp_path / "away too")
    (tmp_path / "prm").mkdir()
    other = ProcessRewardScorer(scorer.settings)
    other.open()
    with pytest.raises(NotReady, match="another learner"):
        scorer.update(request("u2"))
    other.close()


def test_versions_reach_the_mirror_without_what_only_the_learner_needs(start: Start, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    scorer = start(mirror_url=url)
    for name in ("u1", "u2"):
        assert scorer.update(request(name)).status is Status.OK
    until(lambda: scorer.details()["mirror"] == f"{url} has version 2")
    store = Store(url)
    pulled = store.pull(tmp_path / "there")
    own = weights.latest(tmp_path / "prm")
    assert pulled is not None
    assert own is not None
    assert pulled.version == 2
    there = {path.name for path in pulled.path.iterdir()} - {".publication"}
    assert {path.name for path in own.path.iterdir()} - there == {
        "optimizer.pt",
        "updates.json",
        "response.json",
    }
    model = "model.safetensors"
    assert (pulled.path / model).read_bytes() == (own.path / model).read_bytes()
    # A trainer that returns takes the mirror along.
    assert scorer.update(request("other", base_version=1)).version_after == 2
    until(lambda: store.pull(tmp_path / "there") is not None)


def test_updates_do_not_wait_for_a_mirror_that_is_away(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "_FIRST_PAUSE_S", 0.01)
    (tmp_path / "store").write_text("a file where a folder should be")
    scorer = start(mirror_url=f"file://{tmp_path}/store")
    for number in range(1, 4):
        assert scorer.update(request(f"u{number}")).version_after == number
    until(lambda: "behind version 3" in scorer.details()["mirror"])
    assert "Error" in scorer.details()["mirror"]
    (tmp_path / "store").unlink()
    until(lambda: scorer.details()["mirror"].endswith("has version 3"))


def test_a_mirror_that_was_late_when_the_learner_ended_is_brought_up_to_date(
    start: Start, tmp_path: Path
) -> None:
    scorer = start()
    scorer.update(request("u1"))
    scorer = start(mirror_url=f"file://{tmp_path}/store")
    until(lambda: scorer.details()["mirror"].endswith("has version 1"))


def test_a_follower_of_the_url_takes_up_what_the_learner_uploads(
    start: Start, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUERDON_CACHE_DIR", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/store"
    scorer = start(mirror_url=url)
    until(lambda: scorer.details()["mirror"].endswith("has version 0"))
    followed = FollowedModel(tiny_llama, url)
    try:
        scorer.update(request("u1"))
        until(lambda: followed.refresh() or followed.version == 1)
        assert [one.version for one in followed.versions().versions] == [0, 1]
    finally:
        followed.close()


#: Updates for ever; is killed from outside in the middle of whatever it does.
_LEARNER = """
import sys
from guerdon.types import Sample, UpdateRequest
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardSettings

scorer = ProcessRewardScorer(ProcessRewardSettings.model_validate_json(sys.argv[1]))
scorer.open()
samples = [Sample(prompt="1+1=", response="2", outcome=1.0), Sample(prompt="1+1=", response="3", outcome=0.0)]
while True:
    number = scorer.model_version + 1
    scorer.update(UpdateRequest(request_id=f"u{number}", samples=samples, order="after"))
    print(number, flush=True)
"""


def test_a_learner_that_was_killed_while_it_uploads_leaves_a_whole_version_at_the_url(
    start: Start, tiny_llama: Path, tmp_path: Path
) -> None:
    url = f"file://{tmp_path}/store"
    settings = ProcessRewardSettings(
        model=tiny_llama, weights_dir=tmp_path / "prm", lr=1e-3, mirror_url=url
    ).model_dump_json()
    there = tmp_path / "there"
    command = [sys.executable, "-c", _LEARNER, settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as learner:
        assert learner.stdout is not None
        done = 0
        # Uploads go on beside the updates, and may be late.
        while done < 8 or Store(url).latest() is None:
            done = int(learner.stdout.readline())
        os.kill(learner.pid, signal.SIGKILL)
        done = max([done, *(int(line) for line in learner.stdout)])
    pulled = Store(url).pull(there)
    assert pulled is not None
    assert pulled.version <= done + 1
    assert FollowedModel(there).version == pulled.version
    again = start(mirror_url=url)
    assert again.model_version in (done, done + 1)
    until(lambda: again.details()["mirror"].endswith(f"has version {again.model_version}"))
    assert not list((tmp_path / "prm").glob(".outgoing-*"))
