"""A reward that does not come is no reward: it leaves the baseline, gives no gradient, and is counted."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from guerdon.client import AsyncClient
from guerdon.types import Sampling, Status
from guerdon_trainer.batch import make_batch
from guerdon_trainer.config import FailureConfig, RunConfig
from guerdon_trainer.filters import GroupFilter
from guerdon_trainer.groups import Ask, Group
from guerdon_trainer.objective import advantages_of
from guerdon_trainer.questions import Question
from guerdon_trainer.rollouts import Rollouts
from guerdon_trainer.service_stats import FailureBudget, FailureBudgetExceeded, ServiceStats
from tests.waiting import PATIENCE_S

Make = Callable[..., RunConfig]
#: The batch is given up this long after it was submitted; the verifier, which waits for it, answers at once.
TIMEOUT_S = 15


@pytest.fixture
def verifier(redis_url: str) -> Iterator[subprocess.Popen[str]]:
    """A process that takes work from the queue, and will die amid its first batch."""
    command = [sys.executable, str(Path(__file__).parent / "dying_verifier.py"), redis_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_verifier_that_is_killed_amid_a_batch_leaves_no_zero(
    verifier: subprocess.Popen[str], redis_url: str, make_services: Any, make_config: Make, tmp_path: Path
) -> None:
    services = make_services(tmp_path, lambda sample: ["3", "4", "3", "4"])
    clients = {"rollout": services.rollout, "math": AsyncClient(redis_url, service="math", retries=0)}
    config = make_config(
        *("rewards=[{service: math}]", "process_reward=null", "advantage={name: grpo}", "loss={name: gspo}"),
        *("failures.attempts=1", f"failures.timeout_s={TIMEOUT_S}", "failures.window=100"),
    )
    stats = ServiceStats()
    ask = Ask(0, Question(id="q", prompt="1+2=", references=["3"]), Sampling(n=4, seed=0), 0)
    with Rollouts(clients, config, stats, key="run") as rollouts:
        [group] = rollouts.all_groups([ask])
    assert verifier.wait(PATIENCE_S) == -signal.SIGKILL

    assert [response.reward for response in group.responses] == [1.0, 0.0, None, None]
    assert [response.results["math"].status for response in group.responses[2:]] == [Status.TIMEOUT] * 2
    assert stats.failures()["math"] == {"timeout": 2}
    assert GroupFilter(config).keep(group)
    batch = make_batch([group], None)
    assert batch.learned_BT.any(-1).tolist() == [True, True, False, False]
    # The baseline is that of the two: 0.5, and their deviation.
    advantages_B = advantages_of(config, batch)
    torch.testing.assert_close(advantages_B[:2], torch.tensor([0.5, -0.5]) / 0.5**0.5, atol=1e-4, rtol=0)


def test_advantages_do_not_depend_on_who_got_no_reward(
    make_config: Make, make_group: Callable[..., Group]
) -> None:
    rewards: dict[str, float | None] = {"1": 1.0, "12": 0.0, "123": 0.5}
    for name in ("{name: grpo}", "{name: rloo}", "{name: grpo, scale: batch_std}"):
        config = make_config(
            "rewards=[{service: math}]", "process_reward=null", f"advantage={name}", "loss={name: gspo}"
        )
        whole = advantages_of(config, make_batch([make_group(0, rewards)], None))
        with_lost = advantages_of(
            config, make_batch([make_group(0, {**rewards, "7": None, "8": None})], None)
        )
        torch.testing.assert_close(with_lost[:3], whole)


@pytest.mark.parametrize(("lost", "ends"), [(25, False), (26, True)])
def test_the_budget_is_a_share_of_a_full_window(lost: int, ends: bool) -> None:
    stats = ServiceStats()
    stats.answered("math", Status.TIMEOUT, "the deadline passed")
    budget = FailureBudget(FailureConfig(window=100, max_fraction=0.25), stats)
    # Too few to judge by: the first responses of a run may all have met a service that was starting.
    budget.add([False] * lost)
    budget.add([True] * 73)
    rest = [True] * (27 - lost)
    if not ends:
        budget.add(rest)
        # What is older than the window counts no more.
        budget.add([True] * 25)
        budget.add([False] * 25)
        return
    sentence = (
        r"26 of the last 100 responses got no reward, more than the 25% that failures.max_fraction allows. "
        r"math: 1 timeout \(last: timeout: the deadline passed\)"
    )
    with pytest.raises(FailureBudgetExceeded, match=sentence):
        budget.add(rest)
