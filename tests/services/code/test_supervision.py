"""What the supervisor makes of a run whose messages and outputs all wait when it first looks."""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from guerdon_services.code import programs
from guerdon_services.code.supervision import Infrastructure, Run, RunLimits, Supervision

LIMITS = RunLimits(cpu_s=1.0, wall_s=2.0, memory_mb=64, output_bytes=4096)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def ended(stack: ExitStack, **outputs: bytes) -> Run:
    """The run of a program that has written all this and ended before the supervisor looked."""
    ours, servers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stack.callback(ours.close)
    stack.callback(servers.close)
    pipes: dict[int, str] = {}
    for name in ("stdout", "stderr", "report"):
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        stack.callback(os.close, reader)
        os.write(writer, outputs.get(name, b""))
        os.close(writer)
        pipes[reader] = name
    servers.send(b"EXIT 0 0.010000 9000 0.012000")
    return Supervision(ours, pipes, LIMITS).result()


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
