"""Warm worker processes that can be killed, for code that must not take the service with it.

A hostile input costs its one item and no more. Each worker is a process in its own process group. A call borrows
one worker, so its clock starts when execution starts. A worker that hangs or dies is killed with its group and
replaced in the background while the others go on.

The worker's module calls `serve` with what prepares its handler. Frames are a 4-byte big-endian length and JSON. The
first one that a worker writes is {"ready": true}, or {"error": str} when it cannot start; then a request is
answered by the handler's reply, or {"error": str} when it raised. The limits that a worker sets itself are the second
line: they end one whose parent died (timer, CPU time) and keep one call from taking the machine's memory.
"""

import contextlib
import json
import os
import queue
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO, cast

from guerdon_services.runtime.progress import report_progress

Message = dict[str, Any]
Handler = Callable[[Message], Message]

#: Seconds a new worker may take until it is ready: it imports large packages.
_START_S = 120.0
#: Seconds that a call waits for an idle worker beyond the time limit, while killed ones are being replaced.
_BORROW_S = 60.0
#: Seconds until a failed start is tried again.
_RETRY_S = 1.0
#: Seconds past the time limit after which the kernel ends the worker itself.
_GRACE_S = 5.0
_MAX_FRAME = 64 * 1024 * 1024
#: All that a worker inherits of the service's environment: no tokens, no credentials.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "HOME", "LANG", "TMPDIR")


class WorkerTimeout(Exception):
    """The call took longer than its limit; its worker was killed."""


class WorkerCrashed(Exception):
    """The worker died during the call, by its memory limit for example."""


class CallFailed(Exception):
    """The handler raised; the worker lives on."""


class NoWorker(Exception):
    """The pool is closed, or no worker became free."""


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, module: str, memory_mb: int) -> None:
        command = [sys.executable, "-m", module, str(memory_mb)]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # A fixed seed makes whatever orders by hash reproducible.
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

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self) -> None:
        greeting = self._receive(_START_S)
        if "ready" not in greeting:
            raise WorkerCrashed(f"a worker cannot start: {greeting.get('error')}")

    def call(self, request: Message, time_limit_s: float) -> Message:
        self.served += 1
        try:
            _write_frame(self._stdin, request)
        except BrokenPipeError as problem:
            raise WorkerCrashed("the worker had died") from problem
        return self._receive(time_limit_s)

    def _receive(self, timeout_s: float) -> Message:
        # A reply is one small write, so a readable pipe means that the whole frame is there or about to be.
        poller = select.poll()
        poller.register(self._stdout, select.POLLIN)
        if not poller.poll(timeout_s * 1000):
            raise WorkerTimeout(f"no result within {timeout_s:g} s")
        frame = _read_frame(self._stdout)
        if frame is None:
            raise WorkerCrashed("the worker died during the call")
        report_progress()
        return frame

    def stop(self) -> None:
        """Kill the process and whatever it started; a thread that reads from it sees the end of the stream."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def discard(self) -> None:
        """Stop, and close the pipes; only for the thread that has the worker."""
        self.stop()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class WorkerPool:
    """A fixed number of processes that run `python -m MODULE`; `run` may be called from many threads."""

    def __init__(
        self, module: str, workers: int, *, time_limit_s: float, memory_mb: int, recycle_after: int
    ) -> None:
        self._module = module
        self._size = workers
        self._time_limit_s = time_limit_s
        self._memory_mb = memory_mb
        self._recycle_after = recycle_after
        self._idle: queue.SimpleQueue[_Worker | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._starters: set[threading.Thread] = set()
        self._closed = threading.Event()
        #: Workers that were replaced since the pool was opened: hung, dead or recycled.
        self.replaced = 0

    def open(self) -> None:
        """Start all workers and wait until each is ready.

        Raises:
            WorkerCrashed: a worker cannot start, because a package is missing for example.
            WorkerTimeout: one takes too long to.
            OSError: the system lets no more processes start.
        """
        started: list[_Worker] = []
        try:
            for _ in range(self._size):
                started.append(self._spawn())
            for worker in started:
                worker.wait_ready()
        except BaseException:
            for worker in started:
                self._drop(worker)
            raise
        for worker in started:
            self._idle.put(worker)

    def pids(self) -> list[int]:
        """Process ids of the workers that live now."""
        with self._lock:
            return [worker.pid for worker in self._workers]

    def run(self, request: Message) -> Message:
        """Have a worker answer one request; waits for an idle worker first.

        Raises:
            WorkerTimeout: no reply within the time limit, counted from the moment a worker had it.
            WorkerCrashed: the worker died.
            CallFailed: the handler raised.
            NoWorker: the pool was closed, or no worker became free.
        """
        worker = self._borrow()
        while not worker.alive:  # it died while it was idle: that is no call's fault
            self._replace(worker)
            worker = self._borrow()
        try:
            reply = worker.call({**request, "time_limit_s": self._time_limit_s}, self._time_limit_s)
        except BaseException:
            self._replace(worker)
            raise
        if worker.served >= self._recycle_after:
            self._replace(worker)
        else:
            self._idle.put(worker)
        if "error" in reply:
            raise CallFailed(str(reply["error"]))
        return reply

    def close(self) -> None:
        """Kill every worker and wake every caller; safe to call twice."""
        with self._lock:
            self._closed.set()
            workers, starters = list(self._workers), list(self._starters)
        # Whoever waits for one of these workers discards it: a caller, a starter, or this thread if it is idle.
        for worker in workers:
            worker.stop()
        for starter in starters:
            starter.join()
        while not self._idle.empty():
            if idle := self._idle.get():
                self._drop(idle)
        self._idle.put(None)

    def _borrow(self) -> _Worker:
        wait_s = self._time_limit_s + _BORROW_S
        try:
            worker = self._idle.get(timeout=wait_s)
        except queue.Empty:
            raise NoWorker(f"no worker became free within {wait_s:g} s") from None
        if worker is None or self._closed.is_set():
            if worker:
                self._drop(worker)
            self._idle.put(None)
            raise NoWorker("the pool is closed")
        return worker

    def _spawn(self) -> _Worker:
        with self._lock:
            if self._closed.is_set():
                raise NoWorker("the pool is closed")
            worker = _Worker(self._module, self._memory_mb)
            self._workers.add(worker)
        return worker

    def _replace(self, worker: _Worker) -> None:
        self._drop(worker)
        with self._lock:
            if self._closed.is_set():
                return
            self.replaced += 1
            starter = threading.Thread(target=self._start_one, name="worker-start", daemon=True)
            self._starters.add(starter)
        starter.start()

    def _start_one(self) -> None:
        with contextlib.suppress(NoWorker):
            while not self._start_and_offer():
                self._closed.wait(_RETRY_S)
        with self._lock:
            self._starters.discard(threading.current_thread())

    def _start_and_offer(self) -> bool:
        try:
            worker = self._spawn()
        except OSError:  # no memory or process to spare at the moment
            return False
        try:
            worker.wait_ready()
        except (WorkerTimeout, WorkerCrashed):
            self._drop(worker)
            return False
        self._idle.put(worker)
        return True

    def _drop(self, worker: _Worker) -> None:
        worker.discard()
        with self._lock:
            self._workers.discard(worker)


def serve(prepare: Callable[[], Handler]) -> None:
    """The whole life of a worker process: import, limit itself, answer until stdin closes."""
    memory_mb = int(sys.argv[1])
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    # A library that prints must not write between the frames.
    sys.stdout = sys.stderr
    try:
        handler = prepare()
    except ImportError as problem:
        _write_frame(replies, {"error": str(problem)})
        return
    _limit_process(memory_mb)
    _write_frame(replies, {"ready": True})
    while (request := _read_frame(requests)) is not None:
        _arm(float(request["time_limit_s"]))
        reply = _answer(handler, request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write_frame(replies, reply)


def _answer(handler: Handler, request: Message) -> Message:
    try:
        return handler(request)
    except (MemoryError, RecursionError) as problem:
        return {"error": f"ran out of {'memory' if isinstance(problem, MemoryError) else 'stack'}"}
    except Exception as problem:  # this item's failure, reported as such; the worker itself is fine
        return {"error": f"{type(problem).__name__}: {problem}"[:300]}


def _read_frame(stream: BinaryIO) -> Message | None:
    """The next frame, or None at the end of the stream."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    length = int.from_bytes(header, "big")
    if length > _MAX_FRAME:
        raise ValueError(f"frame of {length} bytes")
    body = stream.read(length)
    return cast(Message, json.loads(body)) if len(body) == length else None


def _write_frame(stream: BinaryIO, message: Message) -> None:
    """Write one frame and flush."""
    body = json.dumps(message).encode()
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()


def _limit_process(memory_mb: int) -> None:
    """Caps what this process may take from now on: address space, files, core dumps, child processes' output."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = memory_mb * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard < 0 else min(wanted, hard), hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _arm(time_limit_s: float) -> None:
    """Lets the kernel end this process when the parent does not: by wall time and by CPU time."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime + time_limit_s + _GRACE_S) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s if hard < 0 else min(cpu_s, hard), hard))
    signal.setitimer(signal.ITIMER_REAL, time_limit_s + _GRACE_S)
