"""The learning rate follows the version, as transformers' schedules follow their step."""

from typing import Any

import pytest
import torch
from transformers import get_scheduler

from guerdon_services.process_reward.schedule import Schedule, lr_factor


@pytest.mark.parametrize("warmup", [0, 3])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_factors_equal_those_of_transformers(schedule: Schedule, warmup: int) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    name: Any = "constant_with_warmup" if schedule == "constant" else schedule
    theirs = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=10)
    for version in range(11):  # past its end their cosine rises again, and ours stays
        ours = lr_factor(version, schedule, warmup=warmup, total=10)
        assert ours == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_the_end_is_the_end(schedule: Schedule) -> None:
    assert [lr_factor(version, schedule, warmup=2, total=6) for version in (6, 7, 100)] == [0.0] * 3


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_floor_is_reached_and_kept(schedule: Schedule) -> None:
    factors = [lr_factor(version, schedule, warmup=2, total=6, floor=0.1) for version in range(9)]
    assert factors[:3] == [0.0, 0.5, 1.0]
    assert factors[4] == pytest.approx(0.55)
    assert factors[6:] == pytest.approx([0.1] * 3)
