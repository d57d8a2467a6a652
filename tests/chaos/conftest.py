"""Tests under fire: short by themselves, in full with GUERDON_CHAOS=full (`make chaos`)."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from queue_fire import Fleet, Server

from tests.nurseries import Nursery

#: Seconds that a test in full may take.
FULL_TIMEOUT_S = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here, and give it time when it runs in full."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.chaos)
            if _full():
                item.add_marker(pytest.mark.timeout(FULL_TIMEOUT_S))


def _full() -> bool:
    return os.environ.get("GUERDON_CHAOS") == "full"


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether to run in full."""
    return _full()


@pytest.fixture
def figures(
    full: bool, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> Callable[..., None]:
    """Print what was counted, where the test runs in full."""

    def show(**counted: Any) -> None:
        if full:
            with capsys.disabled():
                print(
                    f"\n{request.node.name}: "
                    + ", ".join(f"{name} {value}" for name, value in counted.items())
                )

    return show


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that forks workers."""
    made = Nursery("tests.chaos.queue_nursery")
    yield made
    made.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A Redis server of this test alone, which has not been started."""
    made = Server(tmp_path / "redis")
    yield made
    made.close()


@pytest.fixture
def fleet(nursery: Nursery, server: Server, tmp_path: Path) -> Iterator[Callable[..., Fleet]]:
    """Makes a fleet without workers for `server`."""
    fleets: list[Fleet] = []

    def make(**settings: Any) -> Fleet:
        fleets.append(Fleet(nursery, tmp_path, server.url, **settings))
        return fleets[-1]

    yield make
    for one in fleets:
        one.close()
