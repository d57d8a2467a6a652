"""What counts as waiting, and for what."""

import pytest

from guerdon_trainer import service_stats
from guerdon_trainer.service_stats import ServiceStats


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(service_stats, "time", clock)
    return clock


def test_waiting_is_for_rewards_once_the_rest_of_the_batch_is_being_scored(clock: Clock) -> None:
    stats = ServiceStats()
    with stats.waiting(2):
        clock.now += 3  # nothing is being scored: both are being sampled
        with stats.scoring():
            clock.now += 5  # one of the two is
            with stats.scoring():
                clock.now += 7  # both are
    assert stats.take_waits() == {"wait_rollouts_s": 8.0, "wait_rewards_s": 7.0}


def test_what_services_do_while_the_policy_learns_is_no_waiting(clock: Clock) -> None:
    stats = ServiceStats()
    with stats.scoring():
        clock.now += 11
        with stats.waiting(1):
            clock.now += 2
        clock.now += 13
    assert stats.take_waits() == {"wait_rollouts_s": 0.0, "wait_rewards_s": 2.0}
    assert stats.take_waits() == {"wait_rollouts_s": 0.0, "wait_rewards_s": 0.0}
