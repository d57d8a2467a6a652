"""Killed servers and programs cost a retry; what cannot be retried is a status, never a reward."""

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from guerdon.types import CodeTask, CodeTest, Limits, Sample, Status
from guerdon_services.code import selftest, supervision, worker
from guerdon_services.code.service import CodeOptions, CodeScorer, CodeSettings
from guerdon_services.code.supervision import Infrastructure, Starved
from guerdon_services.runtime.scorer import ScoreJob

SLOW = "import time\ntime.sleep(0.5)\nprint(6)"


def wait_for(condition: Callable[[], Any], timeout_s: float = 120.0) -> Any:
    """What `condition` gives once it gives something true."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)
    return found


def running_program(scorer: CodeScorer) -> psutil.Process | None:
    """A program that runs now: a child of a fork server."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.ppid() in {each.server_pid for each in scorer.workers}:
                return child
    return None


def task(count: int = 1) -> CodeTask:
    return CodeTask(kind="stdio", tests=[CodeTest(output="6")] * count, limits=Limits(cpu_s=20, wall_s=60))


def in_background(action: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Start `action` in a thread; its result is appended to the list."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    return thread, results


@pytest.mark.parametrize("victim", ["server", "program"])
def test_sigkill_costs_a_retry(ask: Any, victim: str) -> None:
    thread, results = in_background(lambda: ask.task(SLOW, task(5)))

    def killed() -> psutil.Process | None:
        """One that was found may have ended before it could be killed; others follow."""
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if program := running_program(ask.scorer):
                os.kill(program.ppid() if victim == "server" else program.pid, signal.SIGKILL)
                return program
        return None

    program = wait_for(killed)
    thread.join(120)
    assert (results[0].status, results[0].value) == (Status.OK, 1.0)
    wait_for(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE)


def test_killed_while_idle_is_not_noticed_by_anyone(ask: Any) -> None:
    for each in ask.scorer.workers:
        if each.server_pid:
            os.kill(each.server_pid, signal.SIGKILL)
    assert ask.task(SLOW, task()).value == 1.0


def test_killed_again_and_again_is_an_internal_error(ask: Any) -> None:
    stop = threading.Event()

    def murder() -> None:
        while not stop.wait(0.01):
            program = running_program(ask.scorer)
            if program:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(program.pid, signal.SIGKILL)

    killer, _ = in_background(murder)
    result = ask.task("import time\ntime.sleep(5)\nprint(6)", task())
    stop.set()
    killer.join(10)
    assert (result.status, result.value) == (Status.INTERNAL_ERROR, None)
    assert ask.task(SLOW, task()).value == 1.0


def test_a_stopped_server_is_replaced(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_PATIENCE_S", 4.0)
    stopped = [each.server_pid for each in ask.scorer.workers if each.server_pid]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert ask.task(SLOW, task()).value == 1.0
    assert ask.task(SLOW, task()).value == 1.0
    for pid in stopped:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("scarce", ["pipe2", "memfd_create", "lseek"])
def test_a_service_that_is_out_of_descriptors_loses_none(
    ask: Any, monkeypatch: pytest.MonkeyPatch, scarce: str
) -> None:
    assert ask.task(SLOW, task()).value == 1.0
    before = len(os.listdir("/proc/self/fd"))
    real, calls = getattr(os, scarce), itertools.count(1)

    def fails(*arguments: Any) -> Any:
        if next(calls) > 1:  # the first of several succeeds
            raise OSError(errno.EMFILE, "too many open files")
        return real(*arguments)

    monkeypatch.setattr(worker.os, scarce, fails)
    result = ask.task(SLOW, task())
    monkeypatch.undo()
    assert (result.status, result.value) == (Status.INTERNAL_ERROR, None)
    assert ask.task(SLOW, task()).value == 1.0
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("module", "name", "problem"),
    [("tempfile", "mkdtemp", errno.ENOSPC), ("subprocess", "Popen", errno.EAGAIN)],
    ids=["no space for a folder", "no process to be had"],
)
def test_a_server_that_cannot_be_replaced_is_no_verdict(
    ask: Any, monkeypatch: pytest.MonkeyPatch, module: str, name: str, problem: int
) -> None:
    def fails(*arguments: Any, **keywords: Any) -> Any:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(getattr(worker, module), name, fails)
    for each in ask.scorer.workers:
        if each.server_pid:
            os.kill(each.server_pid, signal.SIGKILL)
    for _ in ask.scorer.workers:
        result = ask.task(SLOW, task())
        assert (result.status, result.value) == (Status.INTERNAL_ERROR, None)
        assert os.strerror(problem) in (result.reason or "")
    monkeypatch.undo()
    assert ask.task(SLOW, task()).value == 1.0


def test_a_full_disk_is_no_verdict(tmp_path: Path) -> None:
    """A program that cannot write its file has not failed; none runs where that could happen."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system of our own: {mounted.stderr.decode().strip()}")
    writes = "open('x', 'w').write('6')\nprint(open('x').read())"
    scorer = CodeScorer(CodeSettings(workers=1, scratch=str(tmp_path)))
    try:
        scorer.open()
        job = ScoreJob(Sample(response=writes, code=task()), CodeOptions(extraction="whole"))
        assert scorer.score([job])[0].value == 1.0
        full = tmp_path / "full"
        with contextlib.suppress(OSError):
            full.write_bytes(bytes(30 * 2**20))
        [result] = scorer.score([job])
        assert (result.status, result.value) == (Status.INTERNAL_ERROR, None)
        assert "no space" in (result.reason or "")
        full.unlink()
        assert scorer.score([job])[0].value == 1.0
    finally:
        scorer.close()
        subprocess.run(["umount", str(tmp_path)], check=True)


FILLS = """
import os
try:
    for i in range(20_000):
        os.close(os.open(f"{i}", os.O_CREAT | os.O_WRONLY))
except OSError:
    pass
try:
    for i in range(20):
        open(f"b{i}", "wb").write(bytes(6 * 2**20))
except OSError:
    pass
print(6)
"""


def test_a_program_that_fills_the_disk_gains_nothing_by_it(tmp_path: Path) -> None:
    """Neither does it spare itself its next test nor does it cost the next program its verdict."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m,nr_inodes=20000", "tmpfs", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system of our own: {mounted.stderr.decode().strip()}")
    scorer = CodeScorer(CodeSettings(workers=1, scratch=str(tmp_path)))
    try:
        scorer.open()
        tests = [CodeTest(input="", output="6\n"), CodeTest(input="", output="7\n")]
        options = CodeOptions(extraction="whole")
        samples = [
            Sample(response=FILLS, code=CodeTask(kind="stdio", tests=tests, limits=task().limits)),
            Sample(response="print(6)", code=task()),
        ]
        values = [scorer.score([ScoreJob(sample, options)])[0].value for sample in samples]
        assert values == [0.5, 1.0]
    finally:
        scorer.close()
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_starved_program_is_a_timeout_not_a_verdict(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says that the program never got a core: tried twice, then a status."""
    asked: list[int] = []

    def never_on_a_core(pid: int, wall_s: float) -> float:
        asked.append(pid)
        return wall_s

    monkeypatch.setattr(supervision, "_waited_for_a_core_s", never_on_a_core)
    monkeypatch.setattr(supervision, "_STARVED_S", 1.5)
    monkeypatch.setattr(supervision, "_STRETCH", 1.5)
    limits = Limits(cpu_s=5, wall_s=1)
    result = ask.task("import time\ntime.sleep(60)", task().model_copy(update={"limits": limits}))
    assert (result.status, result.value) == (Status.TIMEOUT, None)
    assert len(set(asked)) == 2


def test_time_that_the_tests_had_no_core_is_not_the_programs(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests wait for a core, the program for the tests: its wall limit must not strike."""
    asked: dict[int, bool] = {}

    def only_the_program_gets_a_core(pid: int, wall_s: float) -> float:
        with contextlib.suppress(psutil.NoSuchProcess):
            servers = {slot.program.server_pid for slot in ask.scorer.slots}
            asked.setdefault(pid, psutil.Process(pid).ppid() in servers)
        return 0.0 if asked.get(pid) else 2 * wall_s

    monkeypatch.setattr(supervision, "_waited_for_a_core_s", only_the_program_gets_a_core)
    test = "import time\ntime.sleep(2.5)\nassert f(1) == 2"
    assert ask.asserts("def f(x): return x + 1", test, limits=Limits(cpu_s=20, wall_s=2)) == "AC"
    assert sorted(asked.values()) == [False, True]


def test_no_clock_runs_while_a_server_starts(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' server is gone and takes longer to start than the program may take."""
    start = worker.Worker.start

    def slow_start(self: worker.Worker) -> Any:
        time.sleep(4)
        return start(self)

    monkeypatch.setattr(worker.Worker, "start", slow_start)
    for slot in ask.scorer.slots:
        slot.tests.stop()
    limits = Limits(cpu_s=20, wall_s=3)
    assert ask.asserts("def f(x): return x + 1", "assert f(1) == 2", limits=limits) == "AC"


def test_a_busy_machine_stretches_the_wall_limit(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "_waited_for_a_core_s", lambda pid, wall_s: 0.9 * wall_s)
    limits = Limits(cpu_s=5, wall_s=1)
    result = ask.task("import time\ntime.sleep(1.2)\nprint(6)", task().model_copy(update={"limits": limits}))
    assert result.value == 1.0
    assert issubclass(Starved, Infrastructure)


def test_servers_are_recycled() -> None:
    scorer = CodeScorer(CodeSettings(workers=1, recycle_after=3, packages=()))
    scorer.open()
    try:
        starts = scorer.workers[0].starts
        from guerdon.types import Sample
        from guerdon_services.code.service import CodeOptions
        from guerdon_services.runtime.scorer import ScoreJob

        sample = Sample(response="print(6)", code=task(9))
        result = scorer.score([ScoreJob(sample, CodeOptions(extraction="whole"))])[0]
        assert result.value == 1.0
        assert scorer.workers[0].starts - starts == 3
    finally:
        scorer.close()


def test_close_leaves_nothing(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o711)
    scorer = CodeScorer(CodeSettings(workers=2, packages=(), scratch=str(tmp_path)))
    scorer.open()
    pids = [each.server_pid for each in scorer.workers]
    assert len(os.listdir(tmp_path)) == 2
    scorer.close()
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)
    assert os.listdir(tmp_path) == []


SERVICE = """
import sys, time
from guerdon_services.code.service import CodeOptions, CodeScorer, CodeSettings
scorer = CodeScorer(CodeSettings(workers=1, packages=(), scratch=sys.argv[1]))
scorer.open()
print(scorer.workers[0].server_pid, flush=True)
time.sleep(600)
"""


def test_a_killed_service_takes_its_servers_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SERVICE, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout
        server = psutil.Process(int(service.stdout.readline()))
        service.kill()
    wait_for(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
    wait_for(lambda: os.listdir(tmp_path) == [])


def test_folders_of_the_dead_are_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / f"{worker.SCRATCH_PREFIX}{gone.pid}-x").mkdir()
    (tmp_path / f"{worker.SCRATCH_PREFIX}{os.getpid()}-x").mkdir()
    worker.remove_stale_scratch(str(tmp_path))
    assert os.listdir(tmp_path) == [f"{worker.SCRATCH_PREFIX}{os.getpid()}-x"]


def test_a_missing_layer_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started = worker.Worker.start

    def without_landlock(self: worker.Worker) -> Any:
        hello = started(self)
        return type(hello)(0, hello.network_namespace, hello.missing)

    monkeypatch.setattr(worker.Worker, "start", without_landlock)
    scorer = CodeScorer(CodeSettings(workers=1, packages=()))
    with pytest.raises(selftest.NotIsolated, match="profile=gvisor"):
        scorer.open()
    assert scorer.workers[0].server_pid is None


def test_a_missing_package_refuses_to_start() -> None:
    with pytest.raises(selftest.NotIsolated, match="no_such_package"):
        CodeScorer(CodeSettings(workers=1, packages=("no_such_package",))).open()


def test_a_wall_that_gives_way_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_PROBE", "def probe(walled, marker): return ['seccomp: fork']")
    with pytest.raises(selftest.NotIsolated, match="seccomp: fork"):
        CodeScorer(CodeSettings(workers=1, packages=())).open()
