"""The blocking client: the same answers, threads, early exits, and an interpreter that ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from guerdon.blocking import Client
from guerdon.errors import Unavailable
from guerdon.testing import Failure, StubService
from guerdon.types import (
    GenerateResult,
    GenerateSample,
    Result,
    Rollout,
    Sample,
    Sampling,
    Status,
    UpdateRequest,
    UpdateResponse,
)
from tests.waiting import PATIENCE_S

SAMPLES = [Sample(id=f"s{i}", response=text) for i, text in enumerate(["4", "5", "boom", "4"])]


def judge(sample: Sample) -> Result | float:
    if sample.response == "boom":
        raise RuntimeError("judge broke")
    return float(sample.response == "4")


def continue_(sample: GenerateSample, sampling: Sampling) -> GenerateResult:
    rollout = Rollout(
        response=f"{sample.prompt}!", token_ids=[1], logprobs=[-0.5], finish_reason="stop", model_version=7
    )
    return GenerateResult(status=Status.OK, rollouts=[rollout] * sampling.n)


def learn(request: UpdateRequest) -> UpdateResponse:
    return UpdateResponse(request_id=request.request_id, status=Status.OK, version_before=0, version_after=1)


@pytest.fixture
def stub() -> Iterator[StubService]:
    with StubService(judge, generate=continue_, update=learn) as service:
        yield service


def test_the_blocking_client_does_what_the_other_does(stub: StubService) -> None:
    with Client(stub.url) as client:
        assert [result.value for result in client.score(SAMPLES)] == [1.0, 0.0, None, 1.0]
        assert {index for index, _ in client.score_stream(SAMPLES)} == {0, 1, 2, 3}
        prompts, sampling = [GenerateSample(prompt="a")], Sampling(n=2)
        assert client.generate(prompts, sampling)[0].rollouts[1].response == "a!"
        assert [index for index, _ in client.generate_stream(prompts, sampling)] == [0]
        ahead = [
            type(one).__name__ for _, one in client.generate_stream(prompts, sampling, each_rollout=True)
        ]
        assert ahead == ["RolloutPiece", "RolloutPiece", "GenerateResult"]
        request = UpdateRequest(request_id="u", samples=[], order="before")
        assert client.update(request) == learn(request)
        assert client.versions().current == 1
        assert client.info() == stub.info()
        assert client.ping() > 0


def test_a_blocking_stream_may_be_left_early(stub: StubService) -> None:
    with Client(stub.url) as client:
        for _ in client.score_stream(SAMPLES):
            break
        assert len(client.score(SAMPLES)) == 4


def test_a_blocking_stream_raises_what_broke_it(stub: StubService) -> None:
    stub.fail_next(Failure(drop_after_items=2))
    came: list[int] = []
    with Client(stub.url) as client:
        with pytest.raises(Unavailable):
            came.extend(index for index, _ in client.score_stream(SAMPLES))
        assert came == [0, 1]
        assert [index for index, _ in client.score_stream(SAMPLES)] == [0, 1, 2, 3]


def test_an_interrupt_cancels_what_it_interrupts(stub: StubService) -> None:
    interrupted, released = threading.Event(), threading.Event()

    def interrupting(sample: Sample) -> float:
        if not interrupted.is_set():
            interrupted.set()
            os.kill(os.getpid(), signal.SIGINT)
            assert released.wait(PATIENCE_S)
        return 1.0

    stub.score = interrupting
    with Client(stub.url) as client:
        for call in (client.score, lambda samples: list(client.score_stream(samples))):
            interrupted.clear()
            requests = len(stub.requests)
            with pytest.raises(KeyboardInterrupt):
                call(SAMPLES)
            assert [result.value for result in client.score(SAMPLES)] == [1.0] * 4
            # Nobody tries the interrupted call again.
            assert len(stub.requests) == requests + 2
        released.set()


def test_a_stream_may_outlive_its_blocking_client(stub: StubService) -> None:
    with Client(stub.url) as client:
        stream = client.score_stream(SAMPLES)
        next(stream)
    # Warnings are errors: an exception in a destructor would fail this test.
    stream.close()


def test_threads_share_a_blocking_client(stub: StubService) -> None:
    barrier = threading.Barrier(4)

    def score(number: int) -> list[float | None]:
        barrier.wait(PATIENCE_S)
        return [result.value for result in client.score([Sample(response=str(number))])]

    with Client(stub.url) as client, ThreadPoolExecutor(4) as threads:
        assert list(threads.map(score, range(3, 7))) == [[0.0], [1.0], [0.0], [0.0]]


def test_a_blocking_client_that_nobody_closed_does_not_keep_the_process(stub: StubService) -> None:
    program = (
        "from guerdon import Client, Sample\n"
        f"client = Client({stub.url!r})\n"
        "print(client.score([Sample(response='4')])[0].value)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "1.0\n"


async def test_the_blocking_client_works_inside_a_running_loop(stub: StubService) -> None:
    # Notebooks and some trainers call reward functions from one.
    with Client(stub.url) as client:
        assert client.score(SAMPLES)[0].value == 1.0
