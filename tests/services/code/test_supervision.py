"""What the supervisor makes of messages, outputs and clocks, in every order in which they may reach it.

The fork server is played by a thread, and time by whatever the test says, so that no order depends on the machine.
"""

import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import pytest

from guerdon_services.code import judge, programs, supervision
from guerdon_services.code.supervision import Infrastructure, Run, RunLimits, Starved, Supervision

LIMITS = RunLimits(cpu_s=1.0, wall_s=2.0, memory_mb=64, output_bytes=4096)
#: No machine is so slow that these end a test.
PATIENT = replace(LIMITS, cpu_s=60.0, wall_s=120.0)
EXIT = b"EXIT 0 0.010000 9000 0.012000"
KILLED = b"EXIT 9 0.010000 9000 2.012000"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def no_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program is this process, whose own use of the processor is nobody's business here."""
    monkeypatch.setattr(supervision, "_used_s", lambda pid: 0.0)
    monkeypatch.setattr(supervision, "_waited_for_a_core_s", lambda pid, wall_s: 0.0)
    monkeypatch.setattr(supervision, "_machine_ticks", lambda: (0, 0))


@dataclass(frozen=True)
class Played:
    """Both ends of a run: the supervisor's, and what a fork server and its child would hold."""

    supervision: Supervision
    server: socket.socket
    #: Descriptors to write to, by name.
    pipes: dict[str, int]

    def end(self, message: bytes = EXIT, **outputs: bytes) -> None:
        """The program writes what it still has to, and has ended."""
        for name, descriptor in self.pipes.items():
            os.write(descriptor, outputs.get(name, b""))
            os.close(descriptor)
        self.server.send(message)

    def while_it_watches(self, play: Callable[[], None]) -> Run:
        """The result, while `play` goes on in a thread."""
        problems: list[BaseException] = []

        def guarded() -> None:
            try:
                play()
            except BaseException as error:
                problems.append(error)
                self.server.close()

        thread = threading.Thread(target=guarded)
        thread.start()
        try:
            return self.supervision.result()
        finally:
            thread.join()
            assert problems == []


def played(stack: ExitStack, limits: RunLimits = LIMITS) -> Played:
    ours, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stack.callback(ours.close)
    stack.callback(servers.close)
    readers: dict[int, str] = {}
    writers: dict[str, int] = {}
    for name in ("stdout", "stderr", "report"):
        reader, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reader, False)
        stack.callback(os.close, reader)
        readers[reader] = name
        writers[name] = writer
    return Played(Supervision(ours, readers, limits), servers, writers)


def ended(stack: ExitStack, **outputs: bytes) -> Run:
    """The run of a program that has written all this and ended before the supervisor looked."""
    run = played(stack)
    run.end(**outputs)
    return run.supervision.result()


def start(age_s: float = 0.02, pid: int = 0) -> bytes:
    return b"START %d %.6f" % (pid or os.getpid(), age_s)


@pytest.mark.parametrize("printed", [0, 1, 4095, 4096])
def test_output_within_the_limit_is_kept(stack: ExitStack, printed: int) -> None:
    run = ended(stack, stdout=b"x" * printed, report=programs.READY)
    assert (run.stdout, run.over_output, run.over_time) == (b"x" * printed, False, False)


@pytest.mark.parametrize("printed", [4097, 60_000])
def test_too_much_output_does_not_hide_the_report(stack: ExitStack, printed: int) -> None:
    run = ended(stack, stdout=b"x" * printed, stderr=b"y" * printed, report=programs.READY + b"more")
    assert run.over_output
    assert run.report == programs.READY + b"more"
    assert run.stderr_tail == b"y" * 2000


def test_too_long_a_report_is_too_much_output(stack: ExitStack) -> None:
    run = ended(stack, stdout=b"seen", report=programs.READY + b"r" * 5000)
    assert (run.over_output, run.stdout) == (True, b"seen")


def test_a_child_that_was_never_ready_says_nothing_about_its_program(stack: ExitStack) -> None:
    with pytest.raises(Infrastructure, match="ended with status 0"):
        ended(stack, stdout=b"x" * 5000)
    with pytest.raises(Infrastructure, match="PermissionError: no"):
        ended(stack, report=programs.BROKEN + b"PermissionError: no")


def test_output_in_many_small_packets_is_read_to_the_end(stack: ExitStack) -> None:
    """A program may set O_DIRECT on its pipe: then each of its writes is a read of its own."""
    run = played(stack)
    os.close(run.pipes["stdout"])
    reader = next(descriptor for descriptor, name in run.supervision._pipes.items() if name == "stdout")
    packets, writer = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)
    os.dup2(packets, reader)
    os.close(packets)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    for _ in range(200):
        os.write(writer, b"x")
    run.pipes["stdout"] = writer
    run.end(report=programs.READY)
    assert run.supervision.result().stdout == b"x" * 200


@pytest.mark.parametrize("late", [False, True], ids=["as usual", "and was late for the first look"])
def test_pipes_are_drained_however_soon_the_program_is_announced(stack: ExitStack, late: bool) -> None:
    """More than a pipe holds: the program could not end if START kept the supervisor from reading."""
    run = played(stack, replace(PATIENT, output_bytes=1 << 20))
    if late:
        run.server.send(start())

    def play() -> None:
        if not late:
            time.sleep(0.02)
            run.server.send(start())
        for _ in range(8):
            os.write(run.pipes["stdout"], b"x" * 65_536)
        run.end(report=programs.READY)

    result = run.while_it_watches(play)
    assert (len(result.stdout), result.over_time) == (8 * 65_536, False)


@pytest.fixture
def a_lazy_supervisor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whenever it looks at a clock, an hour has passed, as after a pause of the whole machine."""
    real, hours = time.monotonic, iter(range(1, 10**6))
    monkeypatch.setattr(supervision.time, "monotonic", lambda: real() + 3600.0 * next(hours))
    yield
    monkeypatch.undo()


@pytest.mark.parametrize("announced", [False, True])
def test_a_program_that_has_ended_is_not_over_its_time(
    stack: ExitStack, announced: bool, a_lazy_supervisor: None
) -> None:
    run = played(stack)
    if announced:
        run.server.send(start())
    run.end(stdout=b"6", report=programs.READY)
    result = run.supervision.result()
    assert (result.over_time, result.stdout) == (False, b"6")


def test_a_server_that_has_answered_does_not_hang(stack: ExitStack, a_lazy_supervisor: None) -> None:
    run = played(stack)
    run.server.send(b"FAIL no memory")
    with pytest.raises(Infrastructure, match="FAIL no memory"):
        run.supervision.result()


def test_a_silent_server_hangs(stack: ExitStack, a_lazy_supervisor: None) -> None:
    with pytest.raises(Infrastructure, match="does not answer"):
        played(stack).supervision.result()


@pytest.mark.parametrize(
    ("how", "verdict"),
    [(KILLED, "TLE"), (EXIT, None), (b"EXIT 11 0.01 9000 2.01", "RE"), (b"EXIT 9 1.01 9000 1.9", "TLE")],
    ids=[
        "by the kill",
        "by itself before it",
        "of its own fault before it",
        "with its processor time used up",
    ],
)
def test_who_ends_before_the_kill_arrives_is_judged_by_its_end(
    stack: ExitStack, how: bytes, verdict: str | None
) -> None:
    run = played(stack)
    run.server.send(start(age_s=60.0))

    def play() -> None:
        assert run.server.recv(64) == b"KILL"
        run.end(how, report=programs.READY + programs.BEGUN)

    failure = judge.failure(run.while_it_watches(play), LIMITS)
    assert (failure.verdict if failure else None) == verdict


def test_a_program_that_is_killed_for_its_output_is_over_that_alone(stack: ExitStack) -> None:
    run = played(stack)

    def play() -> None:
        time.sleep(0.02)
        run.server.send(start())
        os.write(run.pipes["stdout"], b"x" * 5000)
        assert run.server.recv(64) == b"KILL"
        run.end(KILLED, report=programs.READY)

    result = run.while_it_watches(play)
    assert (result.over_output, result.over_time) == (True, False)


def test_outputs_closed_early_leave_the_clocks_running(stack: ExitStack) -> None:
    """Pipes at their end are always ready: that must not keep the supervisor from looking at the time."""
    run = played(stack)
    run.server.send(start(age_s=60.0))
    for name in ("stdout", "stderr"):
        os.close(run.pipes.pop(name))

    def play() -> None:
        assert run.server.recv(64) == b"KILL"
        run.end(KILLED, report=programs.READY)

    assert run.while_it_watches(play).over_time


def test_a_writer_without_end_leaves_the_clocks_running(stack: ExitStack) -> None:
    """Standard error has no limit: what is written there is dropped, and the time runs on."""
    run = played(stack)
    run.server.send(start())
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            os.write(run.pipes["stderr"], b"x" * 65_536)

    writer = threading.Thread(target=write)

    def play() -> None:
        writer.start()
        assert run.server.recv(64) == b"KILL"
        stop.set()
        writer.join()
        run.end(KILLED, report=programs.READY)

    assert run.while_it_watches(play).over_time


@pytest.mark.parametrize(("stolen", "starved"), [(0, False), (1, False), (99, True)])
def test_time_of_a_virtual_machine_that_others_had_is_not_the_programs(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, stolen: int, starved: bool
) -> None:
    """Of a hundred ticks so many were stolen; a minute has passed, of two seconds."""
    ticks = iter([(0, 0), *[(stolen, 100)] * 100])
    monkeypatch.setattr(supervision, "_machine_ticks", lambda: next(ticks))
    run = played(stack)
    run.server.send(start(age_s=60.0))

    def play() -> None:
        if not starved:
            assert run.server.recv(64) == b"KILL"
            run.end(KILLED, report=programs.READY)

    if starved:
        with pytest.raises(Starved):
            run.while_it_watches(play)
    else:
        assert run.while_it_watches(play).over_time


def test_what_the_kernel_says_of_stolen_time_makes_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    first = supervision._machine_ticks()
    assert 0 <= first[0] <= first[1]
    assert supervision._stolen_share(first, first) == 0.0
    assert supervision._stolen_share((10, 100), (30, 140)) == 0.5
    assert supervision._stolen_share((10, 100), (5, 90)) == 0.0
    assert signal.SIGKILL == 9  # as in KILLED
