"""Keeps processes running: starts them, waits until they answer, restarts those that die, stops all.

No child outlives its supervisor. Each is started through a few lines of Python that ask the kernel to send it
SIGTERM when its parent dies (Linux, PR_SET_PDEATHSIG), whichever way that happens, and then become the command.
The kernel watches the *thread* that started the child, so one thread starts all and lives until they are gone.
Elsewhere than on Linux, `stop` at exit is all there is. Which processes `guerdon up` runs is in `services_file.py`.
"""

import atexit
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import httpx
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from guerdon.errors import Timeout, Unavailable

#: Seconds between a death and the restart: after the first in a row, and at most, doubling between.
BACKOFF_S = (0.1, 10.0)
#: Seconds after which a process counts as healthy, so that its next death is the first in a row again.
HEALTHY_AFTER_S = 30.0
#: Deaths in a row after which a process that was never ready counts as unable to start.
DEATHS_AT_START = 3
#: Seconds between two looks at the children.
POLL_S = 0.05
#: Lines of a log that an error message ends with.
TAIL_LINES = 25

log = logging.getLogger("guerdon.supervisor")

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit("the supervisor is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class ProcessSpec:
    """One process to keep running.

    `env` is added to the supervisor's own environment. `ready_url` is http(s):// (ready when GET answers 200) or
    redis:// (ready when PING is answered); without it, a process that runs is ready.
    """

    name: str
    command: list[str]
    env: dict[str, str]
    log_path: Path
    ready_url: str | None = None


@dataclass
class _Child:
    """A process as it is now. Only the supervisor's thread changes it, save for `ready`."""

    spec: ProcessSpec
    process: "subprocess.Popen[bytes] | None" = None
    started: float = 0.0
    next_start: float = 0.0
    deaths_in_a_row: int = 0
    restarts: int = 0
    ready: bool = False


class Supervisor:
    """Runs processes, each in a process group of its own. A context manager: starts on entry, stops on exit."""

    def __init__(self, specs: Sequence[ProcessSpec]) -> None:
        self._children = [_Child(spec) for spec in specs]
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._stop_timeout_s = 10.0
        self._failure: OSError | None = None

    def start(self) -> None:
        """Start every process; does not wait until they are ready.

        Raises:
            OSError: a log cannot be written, or there is no such program.
        """
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure
        atexit.register(self.stop)

    def wait_ready(self, timeout_s: float) -> None:
        """Return when every process has been ready once.

        Raises:
            Unavailable: a process died several times without getting ready; ends with the tail of its log.
            Timeout: not all were ready in time; ends with the tail of a log.
        """
        deadline = time.monotonic() + timeout_s
        while waiting := [child for child in self._children if not self._check(child)]:
            for child in waiting:
                if child.deaths_in_a_row >= DEATHS_AT_START:
                    deaths = f"{child.spec.name} died {child.deaths_in_a_row} times at its start"
                    raise Unavailable(f"{deaths}; {_tail(child.spec.log_path)}")
            if time.monotonic() > deadline:
                names = ", ".join(child.spec.name for child in waiting)
                raise Timeout(f"not ready after {timeout_s:g} s: {names}; {_tail(waiting[0].spec.log_path)}")
            time.sleep(POLL_S)

    @property
    def restarts(self) -> dict[str, int]:
        """How often each process was restarted."""
        return {child.spec.name: child.restarts for child in self._children}

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each process that runs."""
        running = ((child.spec.name, child.process) for child in self._children)
        return {name: process.pid for name, process in running if process is not None}

    def stop(self, timeout_s: float = 10.0) -> None:
        """SIGTERM to every process, after `timeout_s` SIGKILL to those that are left and to their children."""
        if self._thread is None:
            return
        self._stop_timeout_s = timeout_s
        self._stopping.set()
        self._thread.join()
        self._thread = None
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check(self, child: _Child) -> bool:
        if not child.ready and child.process is not None:
            url = child.spec.ready_url
            child.ready = url is None or is_ready(url)
        return child.ready

    def _run(self) -> None:
        """The thread: start, watch, restart, stop."""
        try:
            for child in self._children:
                _spawn(child)
        except OSError as error:
            self._failure = error
            self._stopping.set()
        self._started.set()
        while not self._stopping.wait(POLL_S):
            now = time.monotonic()
            for child in self._children:
                if child.process is not None and child.process.poll() is not None:
                    _bury(child, now)
                elif child.process is None and now >= child.next_start:
                    _respawn(child, now)
        _stop_all(self._children, self._stop_timeout_s)


def is_ready(url: str, timeout_s: float = 1.0) -> bool:
    """Whether the process behind a ready URL answers as it should."""
    if not url.startswith(("http://", "https://")):
        return _answers_ping(url, timeout_s)
    try:
        return httpx.get(url, timeout=timeout_s, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _answers_ping(url: str, timeout_s: float) -> bool:
    client: Any = cast(Any, Redis).from_url(
        url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )
    try:
        return bool(client.ping())
    except RedisError:
        return False
    finally:
        client.close()


def free_ports(count: int) -> list[int]:
    """Different loopback TCP ports that nobody listens on at the moment."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


def _spawn(child: _Child) -> None:
    spec = child.spec
    helper: list[str] = []
    if sys.platform == "linux":
        helper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
    spec.log_path.parent.mkdir(parents=True, exist_ok=True)
    with spec.log_path.open("ab") as log:
        child.process = subprocess.Popen(
            [*helper, *spec.command],
            env={**os.environ, **spec.env},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    child.started = time.monotonic()


def _respawn(child: _Child, now: float) -> None:
    child.restarts += 1
    try:
        _spawn(child)
    except OSError as error:
        # This thread's end would be the end of every other child: it counts as one more death instead.
        log.warning("%s cannot be started again: %s", child.spec.name, error)
        _plan_restart(child, now)


def _bury(child: _Child, now: float) -> None:
    """Clear away an ended process with whatever it left running, and plan its restart."""
    _clear(child)
    if now - child.started > HEALTHY_AFTER_S:
        child.deaths_in_a_row = 0
    _plan_restart(child, now)


def _plan_restart(child: _Child, now: float) -> None:
    first, longest = BACKOFF_S
    child.next_start = now + min(first * 2**child.deaths_in_a_row, longest)
    child.deaths_in_a_row += 1


def _clear(child: _Child) -> None:
    """Kill what is left of a process group."""
    assert child.process is not None
    with suppress(ProcessLookupError):
        os.killpg(child.process.pid, signal.SIGKILL)
    child.process.wait()
    child.process = None


def _stop_all(children: Sequence[_Child], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    running = [(child, child.process) for child in children if child.process is not None]
    # The leader alone gets SIGTERM: its own workers must go on while it finishes what it has begun.
    for _, process in running:
        process.terminate()
    for child, process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        _clear(child)


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:] if path.exists() else []
    return f"the end of {path}:\n" + "\n".join(lines)
