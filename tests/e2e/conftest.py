"""Model services as processes of their own, forked from one that has imported torch."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.replicas import Replicas
from tests.nurseries import Nursery


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks services, each of one thread: those who share the cores do not wait for each other."""
    made = Nursery("tests.e2e.nursery", OMP_NUM_THREADS="1")
    yield made
    made.close()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report of a run has empty pictures: drawing its many takes longer than the run."""
    monkeypatch.setattr(
        "guerdon_trainer.plots._svg", lambda figure, label: f"<svg><title>{label}</title></svg>"
    )


@pytest.fixture
def replicas(nursery: Nursery, redis_url: str, tmp_path: Path) -> Iterator[Replicas]:
    """No service yet."""
    made = Replicas(nursery, redis_url, tmp_path)
    yield made
    made.close()
