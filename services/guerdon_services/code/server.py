"""The fork server: a warm interpreter that forks once per run. Started by exec, never imported by the supervisor.

    python -P -s -m guerdon_services.code.server SOCKET_FD CONFIG_JSON

Messages on the control socket (SOCK_SEQPACKET), one run at a time:

    supervisor -> server   RUN + descriptors (job, stdin, stdout, stderr, report and maybe link)   KILL
                           RUN room [keep] + descriptors (..., report and executable)   CLEAR
    server -> supervisor   HELLO {json}   START pid age_s   EXIT status cpu_s max_rss_kb wall_s   FAIL reason

START is said only of a child that has run for a while: most have ended by then.

A run in a room becomes the executable instead (`launch`); with `keep` the folder is left to the run after it, until
CLEAR. The server never reads a job, let alone compiles one: its children do. When the supervisor is gone (end of file)
it kills what runs, removes its scratch folder and ends.
"""

import contextlib
import errno
import fcntl
import gc
import importlib
import importlib.util
import json
import marshal
import os
import secrets
import select
import shutil
import signal
import site
import socket
import sys
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from guerdon_services.code import landlock, launch, programs, sandbox
from guerdon_services.code.seccomp import compile_filter

#: What most programs import: loaded once, here.
PRELOADED = """
argparse array ast atexit bisect calendar cmath collections collections.abc
concurrent.futures.thread contextlib copy dataclasses datetime decimal enum fractions functools
hashlib heapq inspect io itertools json math numbers operator os pathlib pprint queue random re
secrets statistics string struct sys textwrap threading time timeit traceback types typing
unicodedata uuid warnings weakref zlib
"""

#: A child that runs longer is announced to the supervisor, whose clocks then watch it.
_START_AFTER_S = 0.02
#: Files that a disk must have room for when a program starts.
_FEWEST_FILES = 16


@dataclass(frozen=True)
class Config:
    """Start-up parameters, sent as JSON."""

    profile: sandbox.Profile
    scratch: str
    packages: list[str]
    #: Whether they are loaded now, for every program, or by those that import them.
    load_packages: bool = False
    #: Given to a server of other executables than its own interpreter, which it then need not warm up.
    rooms: dict[str, sandbox.Room] = field(default_factory=dict[str, sandbox.Room])

    @classmethod
    def parse(cls, text: str) -> "Config":
        """From JSON text."""
        fields = json.loads(text)
        rooms = {name: sandbox.Room(**room) for name, room in fields.pop("rooms").items()}
        return cls(**fields, rooms=rooms)


@dataclass(frozen=True)
class Hello:
    """What the server says once it is warm."""

    landlock_abi: int
    network_namespace: bool
    #: Packages that could not be imported, with the reason.
    missing: list[str]


class ForkServer:
    """Owns the control socket, the walls and at most one child."""

    def __init__(self, control: socket.socket, config: Config, walls: dict[str, sandbox.Walls]) -> None:
        self.control = control
        #: By room; the interpreter's own programs have the room "".
        self.walls = walls
        #: Under gVisor no program writes.
        self.writable = config.profile != "gvisor"
        # A package may have asked to be told of forks.
        self.fork_process = os.fork if config.load_packages else sandbox.fork
        self.folder = Path(config.scratch) / "run"
        #: What the working folder was like when it was made; None where there is none.
        self.made: tuple[int, ...] | None = None
        self.wakeup, wakeup_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wakeup_end)

    def serve(self) -> None:
        """Answer runs until the supervisor goes."""
        while True:
            message, descriptors, _, _ = socket.recv_fds(self.control, 64, 6)
            if not message:
                return
            kind, *words = message.decode().split(" ")
            if kind == "RUN":
                self.run(descriptors, words[0] if words else "", keep="keep" in words)
            elif kind == "CLEAR":
                self.clear()

    def run(self, descriptors: list[int], room: str, *, keep: bool) -> None:
        """Fork, watch and reap one child."""
        try:
            pid = self.fork(descriptors, self.walls[room])
        except OSError as error:
            self.control.send(f"FAIL {error}".encode())
        else:
            self.control.send(b"EXIT %d %.6f %d %.6f" % self.watch(pid))
        finally:
            if not keep:
                self.clear()
            for descriptor in descriptors:
                os.close(descriptor)

    def fork(self, descriptors: list[int], walls: sandbox.Walls) -> int:
        """Make the child in its working folder, empty unless one was kept; returns the child's id."""
        if self.made is None:
            self.folder.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(self.folder, walls.user, sandbox.NOBODY)
            self.made = _state(self.folder)
        if self.writable:
            _check_space(self.folder)
        pid = self.fork_process()
        if pid == 0:
            _child(walls, self.folder, descriptors)
        return pid

    def clear(self) -> None:
        """Remove the working folder, unless nothing was ever put there."""
        if self.made is not None and (_state(self.folder) != self.made or os.listdir(self.folder)):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.made = None

    def watch(self, pid: int) -> tuple[int, float, int, float]:
        """Wait for the child, killing it when told to or when nobody is left to tell."""
        started = time.monotonic()
        patience_s: float | None = _START_AFTER_S
        while True:
            ready, _, _ = select.select([self.control, self.wakeup], [], [], patience_s)
            if not ready:
                patience_s = None
                self.control.send(b"START %d %.6f" % (pid, time.monotonic() - started))
            if self.wakeup in ready:
                os.read(self.wakeup, 4096)
                reaped, status, usage = os.wait4(pid, os.WNOHANG)
                if reaped:
                    wall_s = time.monotonic() - started
                    return status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss, wall_s
            if self.control in ready:
                message = self.control.recv(64)
                os.kill(pid, signal.SIGKILL)
                if not message:
                    os.waitpid(pid, 0)
                    raise EOFError


def _check_space(folder: Path) -> None:
    """See that a program can write what it may: one that cannot fails through no fault of its own.

    Here, where what the last program left is gone: one that fills the disk must not spare itself the next test.

    Raises:
        OSError: it could not.
    """
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if free < sandbox.FILE_BYTES or (disk.f_files > 0 and disk.f_favail < _FEWEST_FILES):
        raise OSError(errno.ENOSPC, "no space for the programs' files", str(folder))


def _state(folder: Path) -> tuple[int, ...]:
    """Changes with every file made or removed in it, save within one tick of the clock."""
    found = os.stat(folder)
    return found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _ignore(number: int, frame: FrameType | None) -> None:
    """A handler must exist for the wake-up descriptor to be written."""


def _child(walls: sandbox.Walls, folder: Path, descriptors: list[int]) -> NoReturn:
    job_fd, *streams = descriptors
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        job: Any = marshal.loads(_content(job_fd))  # programs.Job, or in a room launch.Launch
        os.chdir(folder)
        if walls.room:
            launch.write_file(job)
        key = secrets.randbits(64) if walls.room else 0
        sandbox.raise_walls(walls, job["cpu_s"], job["memory_mb"], streams, key)
        os.write(sandbox.REPORT_FD, programs.READY)
        if walls.room:
            launch.execute(job, walls.room, key)
    except BaseException as error:
        _report_broken(error, streams[sandbox.REPORT_FD])
        os._exit(programs.EXIT_EXCEPTION)
    try:
        programs.run(job)
    finally:
        os._exit(programs.EXIT_EXCEPTION)


def _content(descriptor: int) -> bytes:
    """All of a file in memory; one read takes no more than 2 GiB."""
    size = os.fstat(descriptor).st_size
    content = os.read(descriptor, size)
    while len(content) < size:
        content += os.read(descriptor, size - len(content))
    return content


def _report_broken(error: BaseException, report: int) -> None:
    text = f"{type(error).__name__}: {error}".encode()
    for descriptor in (report, sandbox.REPORT_FD):  # which of them is open depends on how far it came
        try:
            os.write(descriptor, programs.BROKEN + text)
        except OSError:
            continue
        return


def _warm_up(
    preloaded: Sequence[str], packages: list[str], *, load_packages: bool
) -> tuple[list[Path], list[str]]:
    """Import what programs use; returns the folders of the packages and those that are not there."""
    site.setquit()
    site.setcopyright()
    folders: list[Path] = []
    missing: list[str] = []
    for name in preloaded:
        importlib.import_module(name)
    for name in packages:
        try:
            if load_packages:
                importlib.import_module(name)
            spec = importlib.util.find_spec(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
            continue
        if spec is None:
            missing.append(f"{name}: no module of that name")
        elif spec.origin and spec.has_location:
            folders.append(Path(spec.origin).resolve().parents[1])
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    dynamic = {str(Path(path) / "lib-dynload") for path in library}
    sys.path[:] = [path for path in sys.path if path in library | dynamic or Path(path).resolve() in folders]
    return folders, missing


def _tasks_of(user: int) -> int:
    """How many threads the user has now."""
    count = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == user:
                count += len(os.listdir(folder / "task"))
    return count


def _make_walls(config: Config, folders: list[Path], room: sandbox.Room | None = None) -> sandbox.Walls:
    user = sandbox.own_user()
    readable = [Path(path) for path in room.readable] if room else sandbox.readable_paths(folders)
    walled = config.profile != "gvisor"
    private = (
        not room
        and os.geteuid() == 0
        and not all(sandbox.is_public(path) for path in readable if path.exists())
    )
    if private and not walled:
        raise PermissionError(
            f"programs run as nobody, who cannot read the interpreter in {sys.base_prefix}: "
            "profile gvisor needs an interpreter in a public folder"
        )
    ruleset_fd = None
    if walled:
        executable = [Path(path) for path in room.executable] if room else []
        devices = landlock.DEVICES if not room or room.devices else ()
        made = landlock.ruleset(readable, Path(config.scratch), executable, devices)
        # Out of the way of the low numbers that a child fills.
        ruleset_fd = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 64)
        os.close(made)
    return sandbox.Walls(
        server_pid=os.getpid(),
        user=user,
        filter=compile_filter(read_only_files=not walled, executes=room is not None),
        ruleset_fd=ruleset_fd,
        base_bytes=int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"),
        base_tasks=_tasks_of(user),
        keep_read_search=private,
        room=room,
    )


def main() -> None:
    """Warm up, say hello, serve."""
    control = socket.socket(fileno=os.dup(int(sys.argv[1])))
    config = Config.parse(sys.argv[2])
    os.close(int(sys.argv[1]))
    sandbox.make_undumpable()
    sandbox.use_one_arena()
    preloaded = [] if config.rooms else PRELOADED.split()
    folders, missing = _warm_up(preloaded, config.packages, load_packages=config.load_packages)
    network = config.profile == "host" and sandbox.leave_network()
    walls = {name: _make_walls(config, folders, room) for name, room in config.rooms.items()}
    if not config.rooms:
        walls[""] = _make_walls(config, folders)
    sandbox.empty_bounding_set()
    os.environ.clear()
    sys.argv[:] = [""]
    server = ForkServer(control, config, walls)
    control.send(b"HELLO " + json.dumps(asdict(Hello(landlock.abi(), network, missing))).encode())
    gc.collect()
    gc.freeze()
    try:
        with contextlib.suppress(EOFError, BrokenPipeError):
            server.serve()
    finally:
        shutil.rmtree(config.scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
