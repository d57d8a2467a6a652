"""Starts the service class on one weights folder, and a base of samples to score and learn from."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from guerdon_services.process_reward.service import ProcessRewardScorer
from guerdon_services.process_reward.settings import ProcessRewardSettings

Start = Callable[..., ProcessRewardScorer]


@pytest.fixture
def start(tiny_llama: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts the service on one weights folder; a second start first closes the one before."""
    opened: list[ProcessRewardScorer] = []

    def start(**settings: Any) -> ProcessRewardScorer:
        while opened:
            opened.pop().close()
        given = {"model": tiny_llama, "weights_dir": tmp_path / "prm", "lr": 1e-3} | settings
        scorer = ProcessRewardScorer(ProcessRewardSettings(**given))
        scorer.open()
        opened.append(scorer)
        return scorer

    yield start
    while opened:
        opened.pop().close()
