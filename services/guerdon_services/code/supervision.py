"""Watches one run from outside: drains its pipes, keeps its clocks, has it killed when it is over a limit.

Nothing that a program writes is trusted here: outputs are bytes with a cap, times come from the kernel.
"""

import contextlib
import itertools
import os
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from guerdon_services.code import programs

_CHUNK = 1 << 16
#: Most programs end within this time: until then what they write waits in the pipes, and nobody wakes up for it.
_QUICK_S = 0.005
_STDERR_TAIL = 2000
#: What a program has to end by itself once nobody needs it.
_GRACE_S = 0.02
#: How long the server may take to start or reap a child before it counts as hung itself.
_PATIENCE_S = 10.0
#: How often the wall limit may be stretched by time the program waited for a core, but at least to so many seconds:
#: then the machine is starved. A program's own clock stands still while it waits, so that patience gains it nothing.
_STRETCH = 5.0
_STARVED_S = 60.0
#: The clocks of a program near its limit are read no more often than this.
_LOOK_S = 0.02


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
class Link:
    """One end of a connection between two programs, and the ids of both while they run.

    They take turns: what one of them waited for a core is nobody's time, neither its own nor the other's.
    """

    descriptor: int
    pids: set[int]
    #: Can be read once the other side needs no more answers; what still runs then may be ended. None: never.
    over: int | None = None


@dataclass(frozen=True)
class Run:
    """How one program ended on one input."""

    exit_status: int
    cpu_s: float
    wall_s: float
    max_rss_kb: int
    #: Ended by us: over a time limit, over the output limit, or because nobody needed it any more.
    over_time: bool
    over_output: bool
    unneeded: bool
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
        # Each by itself: what a program prints must not keep its report from being read.
        if name == "stderr":
            self.stderr = (self.stderr + data)[-_STDERR_TAIL:]
        elif name == "stdout" and len(self.stdout) <= self.limit:
            self.stdout += data
        elif name == "report" and len(self.report) <= self.limit + 64:
            self.report += data


class Supervision:
    """One run, from the request to the server's report of its end."""

    def __init__(
        self, control: socket.socket, pipes: dict[int, str], limits: RunLimits, link: Link | None = None
    ) -> None:
        self._control = control
        self._pipes = pipes
        self._limits = limits
        self._streams = _Streams(limits.output_bytes)
        # Until START arrives the program has not begun, or not long ago: its own clock is not running.
        self._pid = 0
        self._pids = link.pids if link else set[int]()
        self._started = time.monotonic()
        self._machine = (0, 0)
        self._next_look = self._started + _PATIENCE_S
        self._killed_for = ""
        self._over = link.over if link else None
        self._unneeded = False

    def result(self) -> Run:
        """Wait for the end.

        Raises:
            Starved: the machine was too busy to tell; the program still runs.
            Infrastructure: the server died or hangs, or the sandbox could not be raised.
        """
        poll = select.poll()
        poll.register(self._control.fileno(), select.POLLIN)
        if poll.poll(_QUICK_S * 1000) and (run := self._hear()):
            return run
        for descriptor in self._pipes:
            poll.register(descriptor, select.POLLIN)
        if self._over is not None:
            poll.register(self._over, select.POLLIN)
        while True:
            # What has been said counts before what a clock says, however late it is read: a program that has ended,
            # or a server that has answered, must not be taken for one that has not.
            ready = [descriptor for descriptor, _ in poll.poll(max(0.0, self._left_s()) * 1000 + 1)]
            if self._control.fileno() in ready:
                if run := self._hear():
                    return run
            elif self._left_s() <= 0:
                self._look()
            if self._over is not None and self._over in ready:
                poll.unregister(self._over)
                self._unneeded = True
                self._next_look = min(self._next_look, time.monotonic() + _GRACE_S)
            for descriptor in ready:
                if descriptor in self._pipes and not _drain(
                    descriptor, self._pipes[descriptor], self._streams
                ):
                    poll.unregister(descriptor)
            if self._streams.over and not self._killed_for:
                self._kill("output")

    def _left_s(self) -> float:
        return self._next_look - time.monotonic()

    def _hear(self) -> Run | None:
        """Take the server's next message; the run, when that is over."""
        return self._heard(receive(self._control, _PATIENCE_S))

    def _heard(self, message: bytes) -> Run | None:
        kind, *words = message.split(b" ")
        if kind == b"START":
            self._pid = int(words[0])
            self._pids.add(self._pid)
            self._started = time.monotonic() - float(words[1])
            self._machine = _machine_ticks()
            if not self._unneeded:
                self._next_look = self._started + min(self._limits.wall_s, self._limits.cpu_s)
            return None
        if kind == b"EXIT":
            self._pids.discard(self._pid)
            return self._ended(int(words[0]), float(words[1]), int(words[2]), float(words[3]))
        raise Infrastructure(message.decode("utf-8", "replace"))

    def _look(self) -> None:
        """Read the clocks: kill the program, give up on the machine, or say when to look again.

        Time that the program, or the one it is linked with, was ready to run and had no core is not its own, nor the
        share of it that others had of a machine which is itself only virtual.
        """
        if self._unneeded and not self._killed_for:
            self._kill("over")
            return
        if self._killed_for or not self._pid:
            raise Infrastructure("the fork server does not answer")
        limits = self._limits
        wall_s = time.monotonic() - self._started
        cpu_s = _used_s(self._pid)
        pids = tuple(self._pids)  # the other program's thread changes the set
        own_s = wall_s - sum(_waited_for_a_core_s(pid, wall_s / len(pids)) for pid in pids)
        own_s *= 1 - _stolen_share(self._machine, _machine_ticks())
        if cpu_s > limits.cpu_s or own_s >= limits.wall_s:
            self._kill("time")
        elif wall_s >= max(_STARVED_S, _STRETCH * limits.wall_s):
            raise Starved(f"the machine is too busy: {own_s:.1f} s of {limits.wall_s:g} s in {wall_s:.1f} s")
        else:
            left_s = min(limits.wall_s - own_s, limits.cpu_s - cpu_s)
            self._next_look = time.monotonic() + max(_LOOK_S, left_s)

    def _kill(self, reason: str) -> None:
        # By the server, who alone knows that the id is still its child's.
        self._killed_for = reason
        self._control.send(b"KILL")
        self._next_look = time.monotonic() + _PATIENCE_S

    def _ended(self, exit_status: int, cpu_s: float, max_rss_kb: int, wall_s: float) -> Run:
        # Nobody writes any more: what is left in the pipes has an end.
        for descriptor, name in self._pipes.items():
            _drain(descriptor, name, self._streams, chunks=None)
        streams = self._streams
        # On a busy machine a program that nobody needs may be ended before its walls stand.
        if not streams.report.startswith(programs.READY) and self._killed_for != "over":
            problem = streams.report[1:300].decode("utf-8", "replace") or f"ended with status {exit_status}"
            raise Infrastructure(f"the sandbox could not be closed: {problem}")
        return Run(
            exit_status=exit_status,
            cpu_s=cpu_s,
            wall_s=wall_s,
            max_rss_kb=max_rss_kb,
            # A program that ended by itself before it could be killed is judged by how it ended.
            over_time=self._killed_for == "time" and exit_status == signal.SIGKILL,
            over_output=streams.over,
            unneeded=self._killed_for == "over",
            stdout=bytes(streams.stdout),
            stderr_tail=bytes(streams.stderr),
            report=bytes(streams.report),
        )


def receive(control: socket.socket, timeout_s: float) -> bytes:
    """The server's next message.

    Raises:
        Infrastructure: it died, or says nothing for `timeout_s` seconds.
    """
    control.settimeout(timeout_s)
    try:
        message = control.recv(4096)
    except TimeoutError:
        raise Infrastructure("the fork server does not answer") from None
    except ConnectionError as error:
        raise Infrastructure(f"the fork server died: {error}") from None
    if not message:
        raise Infrastructure("the fork server died")
    return message


def _drain(descriptor: int, name: str, streams: _Streams, chunks: int | None = 64) -> bool:
    """Read what is there, at most so many chunks; False at end of file."""
    for _ in itertools.count() if chunks is None else range(chunks):
        try:
            data = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        streams.add(name, data)
    return True


def _used_s(pid: int) -> float:
    """Seconds of processor time of all threads of the program, to the tick; 0 when it is gone. See proc(5), stat."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


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


def _machine_ticks() -> tuple[int, int]:
    """Ticks that this machine's cores were kept from it by others, and ticks that it wanted; see proc(5), stat."""
    with contextlib.suppress(OSError, ValueError), open("/proc/stat", "rb", buffering=0) as file:
        user, nice, system, _, _, irq, softirq, stolen = map(int, file.read(256).split()[1:9])
        return stolen, user + nice + system + irq + softirq + stolen
    return 0, 0


def _stolen_share(before: tuple[int, int], now: tuple[int, int]) -> float:
    """The share of the time wanted in between that others had."""
    stolen, wanted = now[0] - before[0], now[1] - before[1]
    return min(1.0, max(0.0, stolen / wanted)) if wanted > 0 else 0.0


def died_of(run: Run) -> signal.Signals | None:
    """The signal that ended the program, if one did."""
    return signal.Signals(os.WTERMSIG(run.exit_status)) if os.WIFSIGNALED(run.exit_status) else None
