"""SIGKILL in the middle of an update leaves the old version, or the new one with its answer."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from guerdon.types import Sample, Status, UpdateRequest, UpdateResponse
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardSettings

#: Applies two updates; the second kills its own process just before, or just after, the named call number.
_LEARNER = """
import os, signal, sys
from pathlib import Path
from guerdon.types import UpdateRequest
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardSettings

settings, requests, call, when = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]
scorer = ProcessRewardScorer(ProcessRewardSettings.model_validate_json(settings))
scorer.open()
first, second = [UpdateRequest.model_validate_json(line) for line in Path(requests).read_text().splitlines()]
scorer.update(first)
owner, name = {"save": (__import__("torch"), "save"), "rename": (os, "rename"), "replace": (os, "replace")}[call]
original = getattr(owner, name)

def fatal(*args, **kwargs):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    original(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, name, fatal)
scorer.update(second)
"""


def request(name: str) -> UpdateRequest:
    samples = [
        Sample(prompt="1+1=", response="2", outcome=1.0),
        Sample(prompt="1+1=", response="3", outcome=0.0),
    ]
    return UpdateRequest(request_id=name, samples=samples, order="before")


def settings(model: Path, weights_dir: Path) -> ProcessRewardSettings:
    return ProcessRewardSettings(model=model, weights_dir=weights_dir, lr=1e-3)


Undisturbed = tuple[list[UpdateResponse], list[list[torch.Tensor]]]


@pytest.fixture(scope="module")
def undisturbed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """Answers and weights of the same two updates without a kill."""
    scorer = ProcessRewardScorer(settings(tiny_llama, tmp_path_factory.mktemp("undisturbed")))
    scorer.open()
    answers, states = [], []
    for name in ("first", "second"):
        answers.append(scorer.update(request(name)))
        states.append([p.detach().clone() for p in scorer._trained.model.parameters()])
    yield answers, states
    scorer.close()


@pytest.mark.parametrize(
    ("call", "when", "version"),
    [
        ("save", "before", 1),  # half a version under a temporary name
        ("rename", "before", 1),  # all of it, still under that name
        ("rename", "after", 1),  # complete, but not the latest
        ("replace", "after", 2),  # the latest, but never answered
    ],
)
def test_a_kill_leaves_one_version_or_the_other(
    tiny_llama: Path, tmp_path: Path, undisturbed: Undisturbed, call: str, when: str, version: int
) -> None:
    chosen = settings(tiny_llama, tmp_path / "prm")
    requests = tmp_path / "requests.jsonl"
    requests.write_text("\n".join(request(name).model_dump_json() for name in ("first", "second")))
    learner = subprocess.run(
        [sys.executable, "-c", _LEARNER, chosen.model_dump_json(), str(requests), call, when], timeout=600
    )
    assert learner.returncode == -signal.SIGKILL
    answers, states = undisturbed
    scorer = ProcessRewardScorer(chosen)
    scorer.open()
    try:
        assert scorer.model_version == version
        survived = list(scorer._trained.model.parameters())
        assert all(torch.equal(a, b) for a, b in zip(survived, states[version - 1], strict=True))
        # The trainer asks again: whatever survived, it gets the same answer and the same version.
        again = scorer.update(request("second"))
        assert again.status is Status.OK
        assert again == answers[1]
        assert all(torch.equal(a, b) for a, b in zip(survived, states[1], strict=True))
        assert not list((tmp_path / "prm").glob(".tmp-*"))
    finally:
        scorer.close()
