"""Warm worker processes that can be killed: the algebra of a hostile answer costs its one item and no more.

Each worker is a process in its own process group. A call borrows one worker, so its clock starts when execution
starts. A worker that hangs or dies is killed with its group and replaced in the background while the others go on.
"""

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
from typing import Any, BinaryIO, cast

from guerdon_services.math.worker import read_frame, write_frame

#: Seconds a new worker may take until it is ready: it imports sympy.
_START_S = 120.0
#: Seconds that a call waits for an idle worker beyond the time limit, while killed ones are being replaced.
_BORROW_S = 60.0
#: All that a worker inherits of the service's environment: no tokens, no credentials.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "HOME", "LANG", "TMPDIR")
#: Seconds until a failed start is tried again.
_RETRY_S = 1.0


class WorkerTimeout(Exception):
    """The comparison took longer than its limit; its worker was killed."""


class WorkerCrashed(Exception):
    """The worker died during the comparison, by its memory limit for example."""


class NoWorker(Exception):
    """The pool is closed, or no worker became free."""


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, memory_mb: int) -> None:
        command = [sys.executable, "-m", "guerdon_services.math.worker", str(memory_mb)]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # sympy orders terms by hash: a fixed seed makes a verdict reproducible.
        environment["PYTHONHASHSEED"] = "0"
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._stdin = cast(BinaryIO, self._process.stdin)
        self._stdout = cast(BinaryIO, self._process.stdout)
        self.served = 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        greeting = self._receive(_START_S)
        if "ready" not in greeting:
            raise WorkerCrashed(f"a math worker cannot start: {greeting.get('error')}")

    def call(self, request: dict[str, Any], time_limit_s: float) -> dict[str, Any]:
        self.served += 1
        try:
            write_frame(self._stdin, request)
        except BrokenPipeError as problem:
            raise WorkerCrashed("the worker had died") from problem
        return self._receive(time_limit_s)

    def _receive(self, timeout_s: float) -> dict[str, Any]:
        # A reply is one small write, so a readable pipe means that the whole frame is there or about to be.
        poller = select.poll()
        poller.register(self._stdout, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            raise WorkerTimeout(f"no decision within {timeout_s:g} s")
        frame = read_frame(self._stdout)
        if frame is None:
            raise WorkerCrashed("the worker died during the comparison")
        return frame

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class WorkerPool:
    """A fixed number of workers; `run` may be called from many threads."""

    def __init__(self, workers: int, *, time_limit_s: float, memory_mb: int, recycle_after: int) -> None:
        self._size = workers
        self._time_limit_s = time_limit_s
        self._memory_mb = memory_mb
        self._recycle_after = recycle_after
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._starters: set[threading.Thread] = set()
        self._closed = threading.Event()
        #: Workers replaced after a hang or a crash, since the pool was opened.
        self.replaced = 0

    def open(self) -> None:
        """Start all workers and wait until each is ready.

        Raises:
            WorkerCrashed: a worker cannot start, because a package is missing for example.
        """
        started: list[_Worker] = []
        try:
            started.extend(self._spawn() for _ in range(self._size))
            for worker in started:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise
        for worker in started:
            self._idle.put(worker)

    def pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        with self._lock:
            return [worker.pid for worker in self._workers]

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a worker answer one request; waits for an idle worker first.

        Raises:
            WorkerTimeout: no reply within the time limit, counted from the moment a worker had it.
            WorkerCrashed: the worker died.
            NoWorker: the pool was closed, or no worker became free.
        """
        worker = self._borrow()
        try:
            reply = worker.call({**request, "time_limit_s": self._time_limit_s}, self._time_limit_s)
        except BaseException:
            self.replaced += 1
            self._replace(worker)
            raise
        if worker.served >= self._recycle_after:
            self._replace(worker)
        else:
            self._idle.put(worker)
        return reply

    def close(self) -> None:
        """Kill every worker and wake every caller; safe to call twice."""
        with self._lock:
            self._closed.set()
            workers, starters = list(self._workers), list(self._starters)
        for worker in workers:
            worker.kill()
        for starter in starters:
            starter.join()
        with self._lock:
            self._workers.clear()
        self._idle.put(None)

    def _borrow(self) -> _Worker:
        wait_s = self._time_limit_s + _BORROW_S
        try:
            worker = self._idle.get(timeout=wait_s)
        except queue.Empty:
            raise NoWorker(f"no worker became free within {wait_s:g} s") from None
        if worker is None or self._closed.is_set():
            self._idle.put(None)
            raise NoWorker("the pool is closed")
        return worker

    def _spawn(self) -> _Worker:
        with self._lock:
            if self._closed.is_set():
                raise NoWorker("the pool is closed")
            worker = _Worker(self._memory_mb)
            self._workers.add(worker)
        return worker

    def _replace(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            self._workers.discard(worker)
            if self._closed.is_set():
                return
            starter = threading.Thread(target=self._start_one, name="math-worker-start", daemon=True)
            self._starters.add(starter)
        starter.start()

    def _start_one(self) -> None:
        with contextlib.suppress(NoWorker):
            while not self._start_and_offer():
                self._closed.wait(_RETRY_S)
        with self._lock:
            self._starters.discard(threading.current_thread())

    def _start_and_offer(self) -> bool:
        worker = self._spawn()
        try:
            worker.wait_ready()
        except (WorkerTimeout, WorkerCrashed):
            worker.kill()
            with self._lock:
                self._workers.discard(worker)
            return False
        self._idle.put(worker)
        return True
