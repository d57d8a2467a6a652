"""Workers that hang, die, grow and recycle: each costs its one call, and the pool stays whole."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from guerdon_services.workers import CallFailed, NoWorker, WorkerCrashed, WorkerPool, WorkerTimeout

MODULE = """
import os, subprocess, sys, time
from guerdon_services.workers import serve

def prepare():
    def handle(request):
        do = request["do"]
        if do == "echo":
            return {"value": request["value"], "pid": os.getpid()}
        if do == "hang":
            while True:
                pass
        if do == "sleep":
            if "begun" in request:
                open(request["begun"], "x").close()
            time.sleep(request["s"])
        if do == "family":
            child = subprocess.Popen(["sleep", "600"])
            return {"child": child.pid}
        if do == "die":
            os._exit(3)
        if do == "raise":
            raise RuntimeError("no such luck")
        if do == "grow":
            return {"size": len(bytearray(request["mb"] * 2**20))}
        if do == "recurse":
            return handle(request)
        if do == "print":
            print("noise")
        if do == "environment":
            return dict(os.environ)
        return {}
    return handle

if __name__ == "__main__":
    serve(prepare)
"""

Make = Callable[..., WorkerPool]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    (tmp_path / "antics.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pools: list[WorkerPool] = []

    def build(workers: int = 1, **limits: Any) -> WorkerPool:
        limits = {"time_limit_s": 10.0, "memory_mb": 512, "recycle_after": 1000, **limits}
        pool = WorkerPool("antics", workers, **limits)
        pool.open()
        pools.append(pool)
        return pool

    yield build
    for pool in pools:
        pool.close()


def until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def test_a_hang_costs_its_own_call_and_its_worker_is_replaced(make: Make) -> None:
    pool = make(2, time_limit_s=1.0)
    first = set(pool.pids())
    with ThreadPoolExecutor(2) as threads:
        hung = threads.submit(pool.run, {"do": "hang"})
        assert [pool.run({"do": "echo", "value": n})["value"] for n in range(50)] == list(range(50))
        with pytest.raises(WorkerTimeout):
            hung.result()
    assert pool.run({"do": "echo", "value": 1})["value"] == 1
    until(lambda: len(pool.pids()) == 2 and len(set(pool.pids()) & first) == 1)
    gone = first - set(pool.pids())
    assert not any(psutil.pid_exists(pid) for pid in gone)


def test_death_is_a_crash_and_an_idle_death_costs_nothing(make: Make) -> None:
    pool = make()
    with pytest.raises(WorkerCrashed):
        pool.run({"do": "die"})
    assert pool.run({"do": "echo", "value": 1})["value"] == 1
    os.kill(pool.pids()[0], signal.SIGKILL)
    until(
        lambda: not psutil.pid_exists(pool.pids()[0]) or psutil.Process(pool.pids()[0]).status() == "zombie"
    )
    assert pool.run({"do": "echo", "value": 2})["value"] == 2
    assert pool.replaced == 2


def test_sigkill_during_a_call_is_a_crash(make: Make, tmp_path: Path) -> None:
    pool = make(time_limit_s=60.0)
    begun = tmp_path / "begun"
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(pool.run, {"do": "sleep", "s": 60, "begun": str(begun)})
        process = psutil.Process(pool.pids()[0])
        until(begun.exists)  # killed earlier, it would be replaced and the call made on another
        process.kill()
        with pytest.raises(WorkerCrashed):
            running.result()


def test_an_exception_is_reported_and_the_worker_lives_on(make: Make) -> None:
    pool = make()
    pid = pool.run({"do": "echo", "value": 0})["pid"]
    with pytest.raises(CallFailed, match="RuntimeError: no such luck"):
        pool.run({"do": "raise"})
    with pytest.raises(CallFailed, match="ran out of stack"):
        pool.run({"do": "recurse"})
    with pytest.raises(CallFailed, match="ran out of memory"):
        pool.run({"do": "grow", "mb": 2000})
    assert pool.run({"do": "grow", "mb": 20})["size"] == 20 * 2**20
    assert pool.run({"do": "print"}) == {}
    assert pool.run({"do": "echo", "value": 0})["pid"] == pid


def test_the_whole_family_of_a_worker_goes_with_it(make: Make) -> None:
    pool = make(time_limit_s=1.0)
    child = psutil.Process(pool.run({"do": "family"})["child"])
    with pytest.raises(WorkerTimeout):
        pool.run({"do": "hang"})
    until(lambda: not child.is_running() or child.status() == "zombie")


def test_a_worker_is_recycled_after_its_number_of_calls(make: Make) -> None:
    pool = make(recycle_after=3)
    pids = [pool.run({"do": "echo", "value": n})["pid"] for n in range(9)]
    assert [len(set(pids[start : start + 3])) for start in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3


def test_the_time_limit_does_not_count_the_wait_for_a_worker(make: Make) -> None:
    pool = make(time_limit_s=2.0)
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(pool.run, {"do": "sleep", "s": 0.8}) for _ in range(4)]
        assert [call.result() for call in calls] == [{}] * 4


def test_a_worker_inherits_no_secrets(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUERDON_TOKEN", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert "hush" not in make().run({"do": "environment"}).values()


def test_close_wakes_callers_and_leaves_no_process(make: Make) -> None:
    pool = make(2)
    pids = pool.pids()
    failures: list[BaseException] = []

    def call() -> None:
        try:
            pool.run({"do": "hang"})
        except (WorkerCrashed, NoWorker) as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: sum(psutil.Process(pid).cpu_percent(0.05) > 5 for pid in pids) == 2)
    pool.close()
    for thread in threads:
        thread.join(20)
    assert len(failures) == 3
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids))
    with pytest.raises(NoWorker):
        pool.run({"do": "echo", "value": 1})
    pool.close()


def test_a_system_short_of_processes_delays_a_replacement_and_loses_none(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("guerdon_services.workers._RETRY_S", 0.01)
    pool, start, refused = make(), subprocess.Popen, []

    def reluctant(*args: Any, **kwargs: Any) -> Any:
        if len(refused) < 3:
            refused.append(BlockingIOError(11, "Resource temporarily unavailable"))
            raise refused[-1]
        return start(*args, **kwargs)

    monkeypatch.setattr(subprocess, "Popen", reluctant)
    with pytest.raises(WorkerCrashed):
        pool.run({"do": "die"})
    assert pool.run({"do": "echo", "value": 1})["value"] == 1
    assert len(refused) == 3


def test_a_pool_that_cannot_open_leaves_no_process(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = subprocess.Popen

    def once(*args: Any, **kwargs: Any) -> Any:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", once)
    with pytest.raises(BlockingIOError):
        make(2)
    assert started[0].poll() == -signal.SIGKILL


PARENT = """
import threading, time
from guerdon_services.workers import WorkerPool
pool = WorkerPool("antics", 2, time_limit_s=1.0, memory_mb=512, recycle_after=9)
pool.open()
print(*pool.pids(), flush=True)
threading.Thread(target=pool.run, args=({"do": "hang"},), daemon=True).start()
input()
"""


@pytest.mark.usefixtures("make")
def test_workers_end_with_a_parent_that_was_killed() -> None:
    """The pipe ends an idle worker, the kernel's timer a busy one."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        until(lambda: any(worker.cpu_percent(0.05) > 5 for worker in workers))
        parent.kill()
    until(lambda: not any(worker.is_running() and worker.status() != "zombie" for worker in workers))


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lacking.py").write_text(
        "from guerdon_services.workers import serve\n"
        "def prepare():\n    import no_such_package\n"
        "serve(prepare)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pool = WorkerPool("lacking", 2, time_limit_s=1, memory_mb=256, recycle_after=1)
    with pytest.raises(WorkerCrashed, match="no_such_package"):
        pool.open()
    assert pool.pids() == []
