"""SIGKILL in the middle of an update leaves the old version, or the new one with its answer."""

import os
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
from tests.waiting import PATIENCE_S

#: A learner for every five lines of stdin, each in a process of its own: applies two updates, and the second kills the
#: process just before, or just after, the named call.
_LEARNERS = """
import os, signal, sys
from pathlib import Path
import torch
from guerdon.types import UpdateRequest
from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardSettings

OWNERS = {"save": torch, "rename": os, "replace": os}

def learn(when, call, settings, first, second):
    scorer = ProcessRewardScorer(ProcessRewardSettings.model_validate_json(settings))
    scorer.open()
    scorer.update(UpdateRequest.model_validate_json(first))
    original = getattr(OWNERS[call], call)

    def fatal(*args, **kwargs):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(OWNERS[call], call, fatal)
    scorer.update(UpdateRequest.model_validate_json(second))

lines = sys.stdin.read().splitlines()
for start in range(0, len(lines), 5):
    child = os.fork()
    if child == 0:
        try:
            learn(*lines[start : start + 5])
        finally:
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
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


#: When each learner was killed, and which version it left.
KILLS = {
    ("before", "save"): 1,  # half a version under a temporary name
    ("before", "rename"): 1,  # all of it, still under that name
    ("after", "rename"): 1,  # complete, but not the latest
    ("after", "replace"): 2,  # the latest, but never answered
}


@pytest.fixture(scope="module")
def killed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The weights folder that each killed learner left."""
    folders = {kill: tmp_path_factory.mktemp("killed") / "prm" for kill in KILLS}
    requests = [request(name).model_dump_json() for name in ("first", "second")]
    words = [
        word
        for kill, folder in folders.items()
        for word in (*kill, settings(tiny_llama, folder).model_dump_json(), *requests)
    ]
    learners = subprocess.run(
        [sys.executable, "-c", _LEARNERS],
        input="\n".join(words),
        stdout=subprocess.PIPE,
        text=True,
        # Bits are compared: with as many threads as here.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=PATIENCE_S,
    )
    assert learners.stdout.split() == [str(-signal.SIGKILL)] * len(KILLS)
    return folders


@pytest.mark.parametrize(("kill", "version"), KILLS.items(), ids=[" ".join(kill) for kill in KILLS])
def test_a_kill_leaves_one_version_or_the_other(
    tiny_llama: Path,
    undisturbed: Undisturbed,
    killed: dict[tuple[str, str], Path],
    kill: tuple[str, str],
    version: int,
) -> None:
    answers, states = undisturbed
    scorer = ProcessRewardScorer(settings(tiny_llama, killed[kill]))
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
        assert not list(killed[kill].glob(".tmp-*"))
    finally:
        scorer.close()
