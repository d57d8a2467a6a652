"""The supervisor's end of one fork server: start it, run one program at a time on it, survive its death.

Nothing that a program writes is trusted here: outputs are bytes with a cap, times come from the kernel.
"""

import contextlib
import dataclasses
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from pathlib import Path

from guerdon_services.code import programs
from guerdon_services.code.server import Config, Hello

_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE
_CHUNK = 1 << 16
_STDERR_TAIL = 2000
_START_TIMEOUT_S = 120.0
#: How long the server may take to reap a child that was killed, before it counts as hung itself.
_REAP_TIMEOUT_S = 10.0
#: How often the wall limit may be stretched by time the program waited for a core: then the machine is starved.
_STRETCH = 3.0
SCRATCH_PREFIX = "guerdon-code-"


class Infrastructure(Exception):
    """The run told nothing about the program; it may be tried again."""


class Starved(Infrastructure):
    """The machine was too busy to give the program its time."""


@dataclass(frozen=True)
class RunLimits:
    """What one program may use."""

    cpu_s: float
    wall_s: float
    memory_mb: int
    output_bytes: int


@dataclass(frozen=True)
class Run:
    """How one program ended on one input."""

    exit_status: int
    cpu_s: float
    wall_s: float
    max_rss_kb: int
    #: Ended by us: over the wall limit, or over the output limit.
    over_wall: bool
    over_output: bool
    stdout: bytes
    stderr_tail: bytes
    report: bytes


@dataclass
class _Streams:
    """What came out so far, by pipe; output beyond the limit is not kept."""

    limit: int
    stdout: bytearray = field(default_factory=bytearray)
    stderr: bytearray = field(default_factory=bytearray)
    report: bytearray = field(default_factory=bytearray)

    @property
    def over(self) -> bool:
        return len(self.stdout) > self.limit or len(self.report) > self.limit + 64

    def add(self, name: str, data: bytes) -> None:
        if name == "stderr":
            self.stderr = (self.stderr + data)[-_STDERR_TAIL:]
        elif not self.over:
            (self.stdout if name == "stdout" else self.report).extend(data)


class Worker:
    """One fork server and its scratch folder. Not for several threads at once."""

    def __init__(self, profile: str, packages: list[str], scratch_parent: str, recycle_after: int) -> None:
        self._profile = profile
        self._packages = packages
        self._scratch_parent = scratch_parent
        self._recycle_after = recycle_after
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self.scratch = ""
        self._runs = 0
        self.starts = 0

    @property
    def server_pid(self) -> int | None:
        """The fork server's process id, for tests and the curious."""
        return self._process.pid if self._process else None

    def start(self) -> Hello:
        """Start a fresh fork server and wait until it is warm.

        Raises:
            Infrastructure: it did not come up; the message holds what it wrote.
        """
        self.stop()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.scratch = tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", dir=self._scratch_parent)
        os.chmod(self.scratch, 0o711)
        config = Config(self._profile, self.scratch, self._packages)  # type: ignore[arg-type]
        module = "guerdon_services.code.server"
        command = [sys.executable, "-P", "-s", "-X", "utf8", "-m", module, str(theirs.fileno())]
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [*command, json.dumps(dataclasses.asdict(config))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                # One hash seed: a verdict must not depend on the order of a set. One thread: a server forks.
                env={"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            self._control = ours
            self._runs = 0
            self.starts += 1
            try:
                message = self._receive(time.monotonic() + _START_TIMEOUT_S)
            except Infrastructure as error:
                self.stop()
                log.seek(0)
                raise Infrastructure(f"{error}: {log.read()[-800:].decode('utf-8', 'replace')}") from None
        return Hello(**json.loads(message.removeprefix(b"HELLO ")))

    def stop(self) -> None:
        """End the fork server and whatever runs on it; removes its scratch folder."""
        if self._control:
            self._control.close()
            self._control = None
        if self._process:
            try:
                self._process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
            self.scratch = ""

    def run(self, job: programs.Job, stdin: bytes, limits: RunLimits, link: int | None = None) -> Run:
        """Run one program on one input; `link` is a descriptor that it shall have, and is left open.

        Raises:
            Infrastructure: the server or the sandbox failed; the server has been stopped where it was at fault.
        """
        if self._control is None or self._runs >= self._recycle_after:
            self.start()
        self._runs += 1
        with contextlib.ExitStack() as stack:
            try:
                pipes = self._launch(job, stdin, link, stack)
                return self._supervise(pipes, limits)
            except Starved:
                raise
            except (Infrastructure, OSError) as error:
                # Whatever state the server is in, a fresh one is better.
                self._kill_server()
                raise Infrastructure(f"{error}") from error

    def _kill_server(self) -> None:
        if self._process:
            self._process.kill()
        self.stop()

    def _launch(
        self, job: programs.Job, stdin: bytes, link: int | None, stack: contextlib.ExitStack
    ) -> dict[int, str]:
        """Hand the server the descriptors; returns our ends of the pipes, by name."""
        assert self._control
        theirs = [_sealed(json.dumps(job).encode()), _sealed(stdin)]
        ours: dict[int, str] = {}
        for name in ("stdout", "stderr", "report"):
            reader, writer = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reader, False)
            stack.callback(os.close, reader)
            theirs.append(writer)
            ours[reader] = name
        try:
            socket.send_fds(self._control, [b"RUN"], theirs if link is None else [*theirs, link])
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ours

    def _supervise(self, pipes: dict[int, str], limits: RunLimits) -> Run:
        assert self._control
        # Until START arrives the program has not begun: its own clock is not running.
        started = time.monotonic()
        deadline = started + _REAP_TIMEOUT_S
        streams = _Streams(limits.output_bytes)
        control_fd = self._control.fileno()
        poll = select.poll()
        for descriptor in (control_fd, *pipes):
            poll.register(descriptor, select.POLLIN)
        pid = 0
        killed_for = ""
        while True:
            now = time.monotonic()
            if now >= deadline:
                if killed_for:
                    raise Infrastructure("the fork server does not answer")
                if not pid:
                    raise Infrastructure("the fork server does not start programs")
                if (deadline := self._extended(pid, started, limits)) <= now:
                    killed_for = "wall"
                    deadline = self._kill()
            for descriptor, _ in poll.poll(max(0.0, deadline - time.monotonic()) * 1000 + 1):
                if descriptor != control_fd:
                    if not _drain(descriptor, pipes[descriptor], streams):
                        poll.unregister(descriptor)
                    continue
                kind, *words = self._receive(deadline).split(b" ")
                if kind == b"START":
                    pid = int(words[0])
                    started = time.monotonic()
                    deadline = started + limits.wall_s
                elif kind == b"EXIT":
                    return self._ended(words, time.monotonic() - started, killed_for, pipes, streams)
                else:
                    raise Infrastructure(b" ".join([kind, *words]).decode("utf-8", "replace"))
            if streams.over and not killed_for and pid:
                killed_for = "output"
                deadline = self._kill()

    def _kill(self) -> float:
        """Ask the server, who alone knows that the id is still its child's; returns when to lose patience."""
        assert self._control
        self._control.send(b"KILL")
        return time.monotonic() + _REAP_TIMEOUT_S

    def _extended(self, pid: int, started: float, limits: RunLimits) -> float:
        """The new deadline: time that the program spent waiting for a core is not its own.

        Raises:
            Starved: there was too much of it.
        """
        wall_s = time.monotonic() - started
        own_s = wall_s - _waited_for_a_core_s(pid, wall_s)
        if own_s >= limits.wall_s:
            return 0.0
        if wall_s >= _STRETCH * limits.wall_s:
            self._kill_server()
            raise Starved(f"the machine is too busy: {own_s:.1f} s of {limits.wall_s:g} s in {wall_s:.1f} s")
        return time.monotonic() + max(0.02, limits.wall_s - own_s)

    def _ended(
        self, words: list[bytes], wall_s: float, killed_for: str, pipes: dict[int, str], streams: _Streams
    ) -> Run:
        for descriptor, name in pipes.items():
            _drain(descriptor, name, streams)
        status, cpu_s, max_rss_kb = int(words[0]), float(words[1]), int(words[2])
        run = Run(
            exit_status=status,
            cpu_s=cpu_s,
            wall_s=wall_s,
            max_rss_kb=max_rss_kb,
            over_wall=killed_for == "wall",
            over_output=streams.over,
            stdout=bytes(streams.stdout),
            stderr_tail=bytes(streams.stderr),
            report=bytes(streams.report),
        )
        if not run.report.startswith(programs.READY):
            raise Infrastructure(
                f"the sandbox could not be closed: {run.report[1:300].decode('utf-8', 'replace')}"
            )
        return run

    def _receive(self, deadline: float) -> bytes:
        assert self._control
        self._control.settimeout(max(0.05, deadline - time.monotonic()))
        try:
            message = self._control.recv(4096)
        except TimeoutError:
            raise Infrastructure("the fork server does not answer") from None
        except ConnectionError as error:
            raise Infrastructure(f"the fork server died: {error}") from None
        if not message:
            raise Infrastructure("the fork server died")
        return message


def _sealed(content: bytes) -> int:
    """A file in memory that nobody can change any more, at its start. The caller closes it."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    fcntl(descriptor, F_ADD_SEALS, _SEALS)
    return descriptor


def _drain(descriptor: int, name: str, streams: _Streams) -> bool:
    """Read what is there, at most a few chunks; False at end of file."""
    for _ in range(64):
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        streams.add(name, data)
    return True


def _waited_for_a_core_s(pid: int, wall_s: float) -> float:
    """Seconds that the program's most delayed thread was ready to run and had no core; see proc(5), schedstat.

    Where the kernel does not say (gVisor), half of the time when the load is above twice the number of cores.
    """
    waits: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            waits.append(int(path.read_text().split()[1]))
    if not waits:
        return wall_s / 2 if os.getloadavg()[0] > 2 * (os.cpu_count() or 1) else 0.0
    return max(waits) / 1e9


def remove_stale_scratch(parent: str) -> None:
    """Remove scratch folders of supervisors and servers that were both killed."""
    for folder in Path(parent).glob(f"{SCRATCH_PREFIX}*-*"):
        owner = folder.name.removeprefix(SCRATCH_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)


def died_of(run: Run) -> signal.Signals | None:
    """The signal that ended the program, if one did."""
    return signal.Signals(os.WTERMSIG(run.exit_status)) if os.WIFSIGNALED(run.exit_status) else None
