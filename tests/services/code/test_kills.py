"""Whoever is killed in the middle of a run, no request is lost and none is paid that should not be.

Fork servers and programs die under a service that lives (`test_recovery.py` has stdio programs); then the whole service
dies under work that came through the queue, which a service started afterwards takes over.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from guerdon import codec
from guerdon.queue import Producer
from guerdon.types import CodeTask, CodeTest, Limits, Result, ScoreRequest, Status

RIGHT = "import time\ndef f(a, b):\n    time.sleep(0.4)\n    return a + b"
WRONG = "import time\ndef f(a, b):\n    time.sleep(0.4)\n    return 0"
ASSERTS = CodeTask(
    kind="assert",
    # Not pure, which gives the tests a sandbox of their own.
    tests=[CodeTest(test="import os\nassert f(1, 2) == 3\nassert f(2, 2) == 4")],
    limits=Limits(cpu_s=20, wall_s=60),
)


def wait_for(condition: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """What `condition` gives once it gives something true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)
    return found


def both_run(ask: Any) -> tuple[psutil.Process, psutil.Process] | None:
    """The program and its tests, once both run in the same slot."""
    for slot in ask.scorer.slots:
        with contextlib.suppress(psutil.NoSuchProcess):
            if slot.program.server_pid and slot.tests.server_pid:
                servers = (slot.program.server_pid, slot.tests.server_pid)
                sides = [psutil.Process(pid).children() for pid in servers]
                if all(sides):
                    return sides[0][0], sides[1][0]
    return None


@pytest.mark.parametrize(("program", "value"), [(RIGHT, 1.0), (WRONG, 0.0)])
@pytest.mark.parametrize("side", [0, 1], ids=["of the program", "of the tests"])
@pytest.mark.parametrize("victim", ["server", "child"])
def test_a_side_killed_under_asserts_costs_a_retry(
    ask: Any, side: int, victim: str, program: str, value: float
) -> None:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(ask.task(program, ASSERTS)))
    thread.start()
    process = wait_for(lambda: both_run(ask))[side]
    with contextlib.suppress(psutil.NoSuchProcess):
        os.kill(process.ppid() if victim == "server" else process.pid, signal.SIGKILL)
    thread.join(120)
    [result] = results
    assert (result.status, result.value) == (Status.OK, value)
    wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)


class Service:
    """`guerdon serve code` on a queue, as a process that can be killed."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        command = [sys.executable, "-m", "guerdon", "serve", "code", "workers=2", f"scratch={folder}"]
        self.process = subprocess.Popen(
            [*command, "--queue", redis_url, "--lease-s", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.descendants: list[psutil.Process] = []

    def kill(self) -> None:
        """SIGKILL, with no chance to clear up."""
        self.descendants = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def services(redis_url: str) -> Iterator[Callable[[], Service]]:
    """Starts services one after another; all are gone after the test, and so is what they started."""
    started: list[Service] = []
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)

        def start() -> Service:
            started.append(Service(redis_url, Path(folder)))
            return started[-1]

        yield start
        for service in started:
            if service.process.poll() is None:
                service.kill()
        gone = [process for service in started for process in service.descendants]
        wait_for(lambda: not any(process.is_running() for process in gone))
        # The fork servers clear up after a killed service.
        wait_for(lambda: not os.listdir(folder))


@pytest.mark.timeout(900)  # three services start, one after the other
async def test_a_killed_service_loses_no_request_and_pays_no_reward(
    redis_url: str, services: Callable[[], Service]
) -> None:
    producer = Producer(redis_url, "code")
    programs = [
        (f"import time; time.sleep(0.2); print({number % 3})", number % 3 == 1) for number in range(24)
    ]
    task = CodeTask(
        kind="stdio", tests=[CodeTest(input="", output="1\n")], limits=Limits(cpu_s=20, wall_s=60)
    )
    futures: list[asyncio.Future[Any]] = []
    for number, (program, _) in enumerate(programs):
        sample = {"id": str(number), "response": program, "code": task}
        request = ScoreRequest.model_validate({"samples": [sample], "options": {"extraction": "whole"}})
        futures.append(await producer.submit("score", codec.encode(request)))
    for killed in range(2):
        service = services()
        deadline = time.monotonic() + 240
        while sum(future.done() for future in futures) < 4 * (killed + 1):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await asyncio.to_thread(service.kill)
    services()
    replies = await asyncio.wait_for(asyncio.gather(*futures), 240)
    await producer.close()
    results = [codec.decode(Result, reply.body) for reply in replies]
    assert [result.id for result in results] == [str(number) for number in range(len(programs))]
    assert {result.status for result in results} == {Status.OK}
    assert [result.value for result in results] == [float(right) for _, right in programs]
