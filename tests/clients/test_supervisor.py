"""Processes started, restarted and stopped for real."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from guerdon.errors import Timeout, Unavailable
from guerdon.supervisor import ProcessSpec, Supervisor, free_ports
from tests.waiting import PATIENCE_S, gone, until

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEPER}"
#: A process with a worker of its own, which it does not take along when it is killed.
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def python(name: str, folder: Path, *arguments: str, **settings: str) -> ProcessSpec:
    return ProcessSpec(name, [sys.executable, "-c", *arguments], settings, folder / f"{name}.log")


def test_starts_and_stops(tmp_path: Path) -> None:
    specs = [python("a", tmp_path, SLEEPER), python("b", tmp_path, SLEEPER)]
    with Supervisor(specs) as supervisor:
        supervisor.wait_ready(PATIENCE_S)
        pids = supervisor.pids
        assert sorted(pids) == ["a", "b"]
        until(lambda: (tmp_path / "a.log").read_text() == "up\n")
        # Each leads a group of its own, out of reach of a Ctrl-C meant for the supervisor.
        assert os.getpgid(pids["a"]) == pids["a"] != os.getpgid(0)
    assert all(gone(pid) for pid in pids.values())
    assert supervisor.restarts == {"a": 0, "b": 0}
    assert supervisor.pids == {}


def test_environment_is_added(tmp_path: Path) -> None:
    code = "import os, time; print(os.environ['ADDED'], 'PATH' in os.environ, flush=True); time.sleep(600)"
    with Supervisor([python("a", tmp_path, code, ADDED="yes")]):
        until(lambda: (tmp_path / "a.log").exists() and (tmp_path / "a.log").read_text() == "yes True\n")


def test_restarts_what_dies(tmp_path: Path) -> None:
    with Supervisor([python("a", tmp_path, SLEEPER), python("b", tmp_path, SLEEPER)]) as supervisor:
        before = supervisor.pids
        os.kill(before["a"], signal.SIGKILL)
        until(lambda: supervisor.restarts["a"] == 1)
        until(lambda: "a" in supervisor.pids)
        assert supervisor.pids["a"] != before["a"]
        assert supervisor.pids["b"] == before["b"]
        assert supervisor.restarts == {"a": 1, "b": 0}


def test_a_restart_that_fails_is_tried_again_and_harms_no_other(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    specs = [python("a", logs, SLEEPER), python("b", tmp_path, SLEEPER)]
    with Supervisor(specs) as supervisor:
        until(lambda: (logs / "a.log").exists())
        before = supervisor.pids
        logs.rename(tmp_path / "moved")
        logs.write_text("where a folder should be")
        os.kill(before["a"], signal.SIGKILL)
        until(lambda: supervisor.restarts["a"] >= 2)
        assert "a" not in supervisor.pids
        logs.unlink()
        until(lambda: "a" in supervisor.pids)
        assert supervisor.pids["b"] == before["b"]
        assert not gone(before["b"])


def test_a_dead_process_takes_its_workers_along(tmp_path: Path) -> None:
    with Supervisor([python("a", tmp_path, PARENT, SLEEPER)]) as supervisor:
        leader = psutil.Process(supervisor.pids["a"])
        until(lambda: len(leader.children()) == 1)
        [worker] = leader.children()
        leader.kill()
        until(lambda: gone(worker.pid))


def test_sigkill_for_what_ignores_sigterm(tmp_path: Path) -> None:
    supervisor = Supervisor([python("a", tmp_path, STUBBORN)])
    supervisor.start()
    until(lambda: (tmp_path / "a.log").read_text() == "up\n")
    pid = supervisor.pids["a"]
    supervisor.stop(timeout_s=0.2)
    assert gone(pid)
    supervisor.stop()  # again: nothing to do


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from guerdon.supervisor import ProcessSpec, Supervisor
command = [sys.executable, "-c", {SLEEPER!r}]
supervisor = Supervisor([ProcessSpec("a", command, {{}}, Path({str(tmp_path / "a.log")!r}))])
supervisor.start()
print(supervisor.pids["a"], flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        until(lambda: (tmp_path / "a.log").exists() and (tmp_path / "a.log").read_text() == "up\n")
        process.kill()
    until(lambda: gone(child))


def test_ready_when_http_answers_200(tmp_path: Path) -> None:
    [port] = free_ports(1)
    (tmp_path / "readyz").write_text("")
    spec = ProcessSpec(
        "web",
        [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(tmp_path)],
        {},
        tmp_path / "web.log",
        ready_url=f"http://127.0.0.1:{port}/readyz",
    )
    with Supervisor([spec]) as supervisor:
        supervisor.wait_ready(PATIENCE_S)


def test_wait_ready_shows_the_log_of_a_process_that_cannot_start(tmp_path: Path) -> None:
    spec = ProcessSpec(
        "broken",
        [sys.executable, "-c", "raise SystemExit('no such model')"],
        {},
        tmp_path / "broken.log",
        ready_url="http://127.0.0.1:1/readyz",
    )
    with (
        Supervisor([spec]) as supervisor,
        pytest.raises(Unavailable, match=r"(?s)broken died 3 times.*no such model"),
    ):
        supervisor.wait_ready(PATIENCE_S)


def test_wait_ready_gives_up(tmp_path: Path) -> None:
    spec = ProcessSpec(
        "slow",
        [sys.executable, "-c", SLEEPER],
        {},
        tmp_path / "slow.log",
        ready_url="http://127.0.0.1:1/readyz",
    )
    with Supervisor([spec]) as supervisor, pytest.raises(Timeout, match="slow"):
        supervisor.wait_ready(0.3)


def test_a_missing_program_is_told_in_the_log(tmp_path: Path) -> None:
    spec = ProcessSpec("a", ["/no/such/program"], {}, tmp_path / "a.log", ready_url="http://127.0.0.1:1/")
    with Supervisor([spec]) as supervisor, pytest.raises(Unavailable, match="No such file"):
        supervisor.wait_ready(PATIENCE_S)
