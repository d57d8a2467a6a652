"""The supervisor's end of a process that runs pure tests one after the other: start it, ask it, replace it.

It lives behind the same walls as every program, in a fork server of its own. Its word counts only when a run ended as
runs of pure tests do; in every other case there is no outcome, and the tests get a sandbox of their own.
"""

import contextlib
import hashlib
import marshal
import socket
from pathlib import Path
from typing import Any

from guerdon_services.code import programs
from guerdon_services.code.supervision import Infrastructure, Link, receive
from guerdon_services.code.tasks import Plan, Test
from guerdon_services.code.warm_side import KEEP, MAX_MESSAGE, NEVER, NUMBER, OTHERS, Asked
from guerdon_services.code.worker import Worker

_PATIENCE_S = 10.0
#: Runs after which it is replaced, whatever they did.
_MOST_RUNS = 200
#: The processor's limit for all of its runs; each run has its own as well.
_LIFE_CPU_S = 3600
_SOURCES_KEPT = 4096
#: Sources that came so often in a row without an outcome get a sandbox of their own at once.
_MOST_MISSES = 3
_LONGEST_SOURCE = MAX_MESSAGE // 2


class WarmTests(Worker):
    """One such process, for one run at a time. Starts when first needed."""

    _link: socket.socket | None = None
    _pipes: contextlib.ExitStack
    _pid = 0
    _runs_left = 0
    _number = 0
    _memory_mb: int = 0

    def __init__(self, *of_worker: Any) -> None:
        super().__init__(*of_worker)
        #: How often in a row sources of tests came without an outcome.
        self._misses: dict[bytes, int] = {}

    @property
    def pid(self) -> int | None:
        """The process that runs tests, for tests and the curious."""
        return self._pid if self._link else None

    def takes(self, plan: Plan, test: Test) -> bool:
        """Whether it may be asked; whether the tests are pure is seen there."""
        size = len(test.source) + len(plan.setup)
        if plan.kind != "assert" or size > _LONGEST_SOURCE:
            return False
        return not self._misses or self._misses.get(_key(plan, test), 0) < _MOST_MISSES

    def begin(self, plan: Plan, test: Test) -> Link:
        """Start the tests; returns the program's end of their connection, for the caller to close.

        Raises:
            Infrastructure: they could not be started.
        """
        self._number += 1
        asked: Any = Asked(
            setup=plan.setup,
            source=test.source,
            function=plan.function,
            cpu_s=plan.limits.cpu_s,
            number=self._number,
        )
        message = marshal.dumps(asked)
        if len(message) > MAX_MESSAGE:  # text may take four bytes for each character
            raise Infrastructure("the tests are too long")
        program_end, tests_end = socket.socketpair()
        with tests_end, contextlib.ExitStack() as stack:
            stack.callback(program_end.close)
            try:
                link = self._ready(plan.limits.memory_mb)
                link.settimeout(_PATIENCE_S)
                socket.send_fds(link, [message], [tests_end.fileno()])
            except OSError as error:
                self.replace()
                raise Infrastructure(f"{error}") from None
            self._runs_left -= 1
            return Link(program_end.detach(), set(), link.fileno())

    def outcome(self, plan: Plan, test: Test) -> bytes | None:
        """What the tests reported, once the program has ended; None where their own sandbox has to decide."""
        assert self._link
        self._link.settimeout(3 * plan.limits.wall_s)
        try:
            report = self._link.recv(MAX_MESSAGE)
        except OSError:
            report = b""
        number, keep, outcome = report[: NUMBER.size], report[NUMBER.size :][:1], report[NUMBER.size + 1 :]
        if number != NUMBER.pack(self._number):
            keep = outcome = b""
        if keep != KEEP:
            self.replace()
        if not outcome.startswith((OTHERS, NEVER)):
            if self._misses and outcome:
                self._misses.pop(_key(plan, test), None)
            return outcome or None
        if keep == KEEP:
            self._missed(_key(plan, test), _MOST_MISSES if outcome.startswith(NEVER) else 1)
        return None

    def waited_s(self) -> float:
        """Seconds that it was ready to run and had no core, in its whole life."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[1]) / 1e9
        return float("inf")

    def _missed(self, key: bytes, count: int) -> None:
        if len(self._misses) >= _SOURCES_KEPT:
            self._misses = {}
        self._misses[key] = self._misses.get(key, 0) + count

    def _ready(self, memory_mb: int) -> socket.socket:
        if self._link and self._runs_left and memory_mb == self._memory_mb:
            return self._link
        self.replace()
        self.make_ready()
        self._runs += 1
        job: Any = programs.Job(
            kind="warm",
            code="",
            setup="",
            function="",
            arguments="",
            encoded_arguments="",
            cpu_s=_LIFE_CPU_S,
            memory_mb=memory_mb,
        )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link, self._pipes = ours, contextlib.ExitStack()
        with theirs:
            self._hand_over(b"RUN", [marshal.dumps(job), b""], theirs.fileno(), self._pipes)
        ours.settimeout(_PATIENCE_S)
        # Said behind its walls.
        hello = ours.recv(64)
        if not hello:
            raise ConnectionError("the process for tests ended before its first one")
        self._pid = int(hello)
        self._runs_left, self._memory_mb = _MOST_RUNS, memory_mb
        return ours

    def replace(self) -> None:
        """End the process; the next run gets another."""
        if self._link is None:
            return
        self._link.close()
        self._link = None
        self._pipes.close()
        try:
            assert self._control
            self._control.send(b"KILL")
            while not receive(self._control, _PATIENCE_S).startswith((b"EXIT", b"FAIL")):
                pass
        except (Infrastructure, OSError):
            self._kill_server()

    def stop(self) -> None:
        """End the process and its fork server."""
        if self._link:
            self._link.close()
            self._link = None
            self._pipes.close()
        super().stop()


def _key(plan: Plan, test: Test) -> bytes:
    return hashlib.blake2b(f"{plan.function}\0{plan.setup}\0{test.source}".encode(), digest_size=16).digest()
