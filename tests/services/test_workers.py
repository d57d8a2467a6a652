"""Workers that hang, die, grow and recycle: each costs its one call, and the pool stays whole."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from guerdon_services.workers import CallFailed, NoWorker, WorkerCrashed, WorkerPool, WorkerTimeout
from tests.waiting import PATIENCE_S, gone, until

MODULE = """
import os, subprocess, sys, time
from guerdon_services.workers import serve

def prepare():
    def handle(request):
        do = request["do"]
        if "begun" in request:
            open(request["begun"], "x").close()
        if do == "echo":
            return {"value": request["value"], "pid": os.getpid()}
        if do == "hang":
            while True:
                pass
        if do == "sleep":
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


def test_a_hang_costs_its_own_call_and_its_worker_is_replaced(make: Make) -> None:
    pool = make(2, time_limit_s=2.0)
    first = set(pool.pids())
    with ThreadPoolExecutor(2) as threads:
        hung = threads.submit(pool.run, {"do": "hang"})
        assert [pool.run({"do": "echo", "value": n})["value"] for n in range(50)] == list(range(50))
        with pytest.raises(WorkerTimeout):
            hung.result()
    assert pool.run({"do": "echo", "value": 1})["value"] == 1
    until(lambda: len(pool.pids()) == 2 and len(set(pool.pids()) & first) == 1)
    [replaced] = first - set(pool.pids())
    until(lambda: not psutil.pid_exists(replaced))


def test_death_is_a_crash_and_an_idle_death_costs_nothing(make: Make) -> None:
    pool = make()
    with pytest.raises(WorkerCrashed):
        pool.run({"do": "die"})
    assert pool.run({"do": "echo", "value": 1})["value"] == 1
    [idle] = pool.pids()
    os.kill(idle, signal.SIGKILL)
    until(lambda: gone(idle))
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
    until(lambda: gone(child))


def test_a_worker_is_recycled_after_its_number_of_calls(make: Make) -> None:
    pool = make(recycle_after=3)
    pids = [pool.run({"do": "echo", "value": n})["pid"] for n in range(9)]
    assert [len(set(pids[start : start + 3])) for start in (0, 3, 6)] == [1, 1, 1]
    assert len(set(pids)) == 3


def test_the_time_limit_does_not_count_the_wait_for_a_worker(make: Make) -> None:
    pool = make(time_limit_s=3.0)
    with ThreadPoolExecutor(5) as threads:
        calls = [threads.submit(pool.run, {"do": "sleep", "s": 0.8}) for _ in range(5)]
        assert [call.result() for call in calls] == [{}] * 5


def test_a_worker_inherits_no_secrets(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUERDON_TOKEN", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert "hush" not in make().run({"do": "environment"}).values()


def test_close_wakes_callers_and_leaves_no_process(make: Make, tmp_path: Path) -> None:
    pool = make(2, time_limit_s=PATIENCE_S)
    pids = pool.pids()
    failures: list[BaseException] = []
    begun = [tmp_path / f"begun {number}" for number in range(3)]

    def call(file: Path) -> None:
        try:
            pool.run({"do": "hang", "begun": str(file)})
        except (WorkerCrashed, NoWorker) as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(file,)) for file in begun]
    for thread in threads:
        thread.start()
    until(lambda: sum(file.exists() for file in begun) == 2)
    pool.close()
    for thread in threads:
        thread.join(PATIENCE_S)
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
import sys, threading
from guerdon_services.workers import WorkerPool
pool = WorkerPool("antics", 2, time_limit_s=1.0, memory_mb=512, recycle_after=9)
pool.open()
print(*pool.pids(), flush=True)
threading.Thread(target=pool.run, args=({"do": "hang", "begun": sys.argv[1]},), daemon=True).start()
input()
"""


@pytest.mark.usefixtures("make")
def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """The pipe ends an idle worker, the kernel's timer a busy one."""
    begun = tmp_path / "begun"
    words = [sys.executable, "-c", PARENT, str(begun)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        until(begun.exists)
        parent.kill()
    until(lambda: all(gone(worker) for worker in workers))


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
