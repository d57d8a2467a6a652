"""The supervisor's end of one fork server: start it, run one program at a time on it, survive its death."""

import contextlib
import dataclasses
import json
import marshal
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from pathlib import Path
from typing import Any

from guerdon_services.code import programs
from guerdon_services.code.launch import Launch
from guerdon_services.code.sandbox import Room
from guerdon_services.code.server import Config, Hello
from guerdon_services.code.supervision import (
    Infrastructure,
    Link,
    Run,
    RunLimits,
    Starved,
    Supervision,
    receive,
)

_SEALS = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE
_MFD_EXEC = 0x10
_START_TIMEOUT_S = 120.0
_ENVIRONMENT = {
    # One hash seed: a verdict must not depend on the order of a set.
    "PYTHONHASHSEED": "0",
    # One thread: a server forks.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # Library functions are looked up now, not by every child again.
    "LD_BIND_NOW": "1",
}
SCRATCH_PREFIX = "guerdon-code-"


class Worker:
    """One fork server and its scratch folder. Not for several threads at once."""

    def __init__(
        self,
        profile: str,
        packages: list[str],
        scratch_parent: str,
        recycle_after: int,
        rooms: dict[str, Room] | None = None,
        *,
        load_packages: bool = False,
    ) -> None:
        self._profile = profile
        self.packages = packages
        self._load_packages = load_packages
        self._mentioned = re.compile("|".join(map(re.escape, packages))) if packages else None
        #: A second fork server, with the packages loaded, for the programs that name one: whoever forks pays for all
        #: that was loaded, and most programs use none. Starts when first needed.
        self._loaded: Worker | None = None
        #: Given for executables other than the interpreter itself: what each kind of them may do.
        self._rooms = rooms or {}
        self._kept = False
        self._scratch_parent = scratch_parent
        self._recycle_after = recycle_after
        if packages and not load_packages:
            self._loaded = Worker(profile, packages, scratch_parent, recycle_after, load_packages=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self.scratch = ""
        self._runs = 0
        self.starts = 0

    @property
    def server_pid(self) -> int | None:
        """The fork server's process id, for tests and the curious."""
        return self._process.pid if self._process else None

    def fit(self, *sources: str) -> "Worker":
        """The worker for programs of these sources: with packages loaded if one of them is named there.

        A program that hides the name can still import the package, only not as fast.
        """
        if self._loaded and self._mentioned and any(map(self._mentioned.search, sources)):
            return self._loaded
        return self

    def start(self) -> Hello:
        """Start a fresh fork server and wait until it is warm.

        Raises:
            Infrastructure: it did not come up; the message holds what it wrote.
        """
        self._stop_own()
        try:
            return self._started()
        except OSError as error:  # no room for a folder, a process or a descriptor
            self._stop_own()
            raise Infrastructure(f"no fork server: {error}") from error

    def _started(self) -> Hello:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            return self._launched(theirs)

    def _launched(self, theirs: socket.socket) -> Hello:
        assert self._control
        self.scratch = tempfile.mkdtemp(prefix=f"{SCRATCH_PREFIX}{os.getpid()}-", dir=self._scratch_parent)
        os.chmod(self.scratch, 0o711)
        config = Config(
            self._profile,  # type: ignore[arg-type]
            self.scratch,
            self.packages,
            load_packages=self._load_packages,
            rooms=self._rooms,
        )
        module = "guerdon_services.code.server"
        command = [sys.executable, "-P", "-s", "-X", "utf8", "-m", module, str(theirs.fileno())]
        with tempfile.TemporaryFile() as log:
            self._process = subprocess.Popen(
                [*command, json.dumps(dataclasses.asdict(config))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd="/",
                env=_ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
            theirs.close()
            self._runs = 0
            self.starts += 1
            try:
                message = receive(self._control, _START_TIMEOUT_S)
            except Infrastructure as error:
                self._stop_own()
                log.seek(0)
                raise Infrastructure(f"{error}: {log.read()[-800:].decode('utf-8', 'replace')}") from None
        return Hello(**json.loads(message.removeprefix(b"HELLO ")))

    def stop(self) -> None:
        """End the fork servers and whatever runs on them; removes their scratch folders."""
        if self._loaded:
            self._loaded.stop()
        self._stop_own()

    def _stop_own(self) -> None:
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

    def make_ready(self) -> None:
        """Start a fork server if there is none, or if the present one has done its share.

        Raises:
            Infrastructure: it did not come up.
        """
        if self._control is None or (self._runs >= self._recycle_after and not self._kept):
            self.start()

    @property
    def folder(self) -> Path:
        """Where the run works, and what it leaves to the next one when it is kept."""
        return Path(self.scratch) / "run"

    def clear(self) -> None:
        """Remove a kept folder."""
        self._kept = False
        if self._control:
            with contextlib.suppress(OSError):  # a dead server's folders go when it is replaced
                self._control.send(b"CLEAR")

    def launch(
        self, room: str, job: Launch, stdin: bytes, limits: RunLimits, executable: int, *, keep: bool = False
    ) -> Run:
        """Run the executable file of that descriptor in a room; `keep` leaves its folder to the next run.

        Raises:
            Infrastructure: as for `run`; what a folder held is lost with the server.
        """
        if self._kept and self._control is None:
            raise Infrastructure("the fork server died between two commands")
        message = f"RUN {room} keep" if keep else f"RUN {room}"
        run = self._supervised(message.encode(), job, stdin, limits, executable, None)
        if run.report != programs.READY:
            raise Infrastructure(f"could not execute: {run.report[2:300].decode('utf-8', 'replace')}")
        self._kept = keep
        return run

    def run(self, job: programs.Job, stdin: bytes, limits: RunLimits, link: Link | None = None) -> Run:
        """Run one program on one input; it gets the descriptor of `link`, which is left open.

        Raises:
            Infrastructure: the server or the sandbox failed; the server has been stopped where it was at fault.
        """
        extra = link.descriptor if link else None
        return self._supervised(b"RUN", job, stdin, limits, extra, link)

    def _supervised(
        self,
        message: bytes,
        job: Any,
        stdin: bytes,
        limits: RunLimits,
        extra: int | None,
        link: Link | None,
    ) -> Run:
        self.make_ready()
        assert self._control
        self._runs += 1
        with contextlib.ExitStack() as stack:
            try:
                pipes = self._hand_over(message, [marshal.dumps(job), stdin], extra, stack)
                return Supervision(self._control, pipes, limits, link).result()
            except Starved:
                self._kill_server()
                raise
            except (Infrastructure, OSError) as error:
                # Whatever state the server is in, a fresh one is better.
                self._kill_server()
                raise Infrastructure(f"{error}") from error

    def _kill_server(self) -> None:
        if self._process:
            self._process.kill()
        self._stop_own()

    def _hand_over(
        self, message: bytes, inputs: list[bytes], extra: int | None, stack: contextlib.ExitStack
    ) -> dict[int, str]:
        """Hand the server the descriptors; returns our ends of the pipes, by name."""
        assert self._control
        theirs: list[int] = []
        ours: dict[int, str] = {}
        try:
            theirs += map(sealed, inputs)
            for name in ("stdout", "stderr", "report"):
                reader, writer = os.pipe2(os.O_CLOEXEC)
                stack.callback(os.close, reader)
                theirs.append(writer)
                ours[reader] = name
                os.set_blocking(reader, False)
                if name != "report":
                    # A pipe belongs to who made it; the program, somebody else, may want to open /dev/stdout by name.
                    os.fchmod(writer, 0o622)
            socket.send_fds(self._control, [message], theirs if extra is None else [*theirs, extra])
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ours


def sealed(content: bytes, *, executable: bool = False) -> int:
    """A file in memory that nobody can change any more, at its start. The caller closes it."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create("input", flags | (_MFD_EXEC if executable else 0))
    except OSError:  # kernels before 6.3 do not know the flag: there, all of these are executable
        descriptor = os.memfd_create("input", flags)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl(descriptor, F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def remove_stale_scratch(parent: str) -> None:
    """Remove scratch folders of supervisors and servers that were both killed."""
    for folder in Path(parent).glob(f"{SCRATCH_PREFIX}*-*"):
        owner = folder.name.removeprefix(SCRATCH_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
