"""The walls around one program, raised by the forked child on itself, in this order. Standard library only.

Own session, death with the fork server, no inherited descriptors, no privileges, resource limits, no-new-privs,
Landlock, seccomp. Any step that fails raises: the program then does not run at all.
"""

import ctypes
import math
import os
import random
import resource
import signal
import stat
import struct
import sys
import sysconfig
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from guerdon_services.code import landlock
from guerdon_services.code.seccomp import Filter

Profile = Literal["host", "pod", "gvisor"]

NOBODY = 65534
#: From here on ids belong to no user and no container, by the conventions of systemd; more than there are processes.
_UNUSED_USERS = 1_879_048_192
#: The program's report pipe; closed before a stdio program starts.
REPORT_FD = 3
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 4, 8
_PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 24, 38
_SECCOMP_MODE_FILTER = 2
_CAP_DAC_READ_SEARCH = 2
_CAPSET = {"x86_64": 126, "aarch64": 91}.get(os.uname().machine, -1)
_CAPABILITY_VERSION_3 = 0x20080522
#: For capset(2): nothing, or the one capability that reads.
_CAPABILITIES = [
    (
        ctypes.c_char_p(struct.pack("=II", _CAPABILITY_VERSION_3, 0)),
        ctypes.c_char_p(struct.pack("=IIIIII", kept, kept, 0, 0, 0, 0)),
    )
    for kept in (0, 1 << _CAP_DAC_READ_SEARCH)
]
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_M_ARENA_MAX = -8
#: Keeps the interpreter's lock while it calls: for a call that must not let it go.
_python_libc = ctypes.PyDLL(None, use_errno=True)
_seed = random._inst.seed  # type: ignore[attr-defined]
_OPEN_FILES = 64
#: Bytes of one file that a program may write.
FILE_BYTES = 8 * 2**20
_THREADS = 256


@dataclass(frozen=True)
class Room:
    """What one executable needs from its walls: a compiler, or the programs of one language."""

    #: Folders and files that it may read ...
    readable: list[str]
    #: ... and files that it may execute, which happens once: itself and its loader.
    executable: list[str]
    #: What `memory_mb` limits: the address space, or data, for runtimes that reserve far more than they use.
    memory: Literal["address_space", "data"] = "address_space"
    #: What the executable itself takes of it; the limit of a run comes on top.
    base_mb: int = 16
    threads: int = 256
    file_mb: int = 8
    devices: bool = True


@dataclass(frozen=True)
class Walls:
    """What every child of one fork server needs to raise its walls; made once, before the first fork."""

    server_pid: int
    #: Whom the program runs as.
    user: int
    filter: Filter
    ruleset_fd: int | None
    #: Address space of the warm interpreter: a program's memory limit comes on top.
    base_bytes: int
    #: Tasks its user already had: a program's thread limit comes on top.
    base_tasks: int
    #: An interpreter under a private home of root is readable to nobody only with this one capability.
    keep_read_search: bool
    #: Set where the child is to execute something else.
    room: Room | None = None


def prctl(option: int, argument: int | ctypes.c_char_p = 0) -> None:
    """prctl(2).

    Raises:
        OSError: the kernel refused.
    """
    if landlock.libc.prctl(option, argument, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"prctl {option}")


def own_user() -> int:
    """Whom the programs of this server run as.

    When started as root, a user of its own: the kernel counts threads by user, and a program that makes as many as it
    may must not take them from others. Where such ids do not exist (a user namespace), nobody.
    """
    if os.geteuid() != 0:
        return os.geteuid()
    user = _UNUSED_USERS + os.getpid()
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    return user if any(first <= user < first + count for first, _, count in ranges) else NOBODY


def make_undumpable() -> None:
    """Nobody but root may trace this process or read its memory through /proc; children inherit it."""
    prctl(_PR_SET_DUMPABLE, 0)


def fork() -> int:
    """`os.fork` for a process with one thread, without the interpreter's care for the locks of others.

    That care touches some 200 pages, which each child would have to copy. What is left of it is done here: another
    state of `random` for every child, and the id of its thread.
    """
    pid = int(_python_libc.fork())
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "fork")
    if pid == 0:
        _seed()
        threading.main_thread()._native_id = os.getpid()  # type: ignore[attr-defined]
    return pid


def empty_bounding_set() -> None:
    """Nothing that this process or its children execute can gain a capability by it."""
    for capability in range(64):
        landlock.libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)


def use_one_arena() -> None:
    """Keep malloc from reserving 64 MiB of address space per thread, which a memory limit would charge."""
    landlock.libc.mallopt(_M_ARENA_MAX, 1)


def leave_network() -> bool:
    """Move into an empty network and IPC namespace; False where that is not permitted."""
    spaces = _CLONE_NEWNET | _CLONE_NEWIPC | (0 if os.geteuid() == 0 else _CLONE_NEWUSER)
    return landlock.libc.unshare(spaces) == 0


def readable_paths(packages: list[Path]) -> list[Path]:
    """What a program may read: the interpreter's library, the packages offered, shared libraries, time zones."""
    library = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    prefix = Path(sys.base_prefix)
    system = [
        "/lib",
        "/lib64",
        "/usr/lib",
        "/usr/lib64",
        "/etc/ld.so.cache",
        "/usr/share/zoneinfo",
        "/etc/localtime",
    ]
    return [*library, prefix / "lib", *packages, *map(Path, system)]


def is_public(path: Path) -> bool:
    """True when any user may walk to `path` and read it."""
    resolved = path.resolve()
    readable = resolved.stat().st_mode & stat.S_IROTH
    return bool(readable) and all(folder.stat().st_mode & stat.S_IXOTH for folder in resolved.parents)


def raise_walls(walls: Walls, cpu_s: float, memory_mb: int, descriptors: list[int], key: int = 0) -> None:
    """Everything in the module's docstring; `descriptors` become standard input, output, error, report and one more.

    In a room the memory limit is left to the caller, to be set right before it executes with `key`.

    Raises:
        OSError: a wall could not be raised.
    """
    os.setsid()
    _die_with(walls.server_pid)
    _keep_only(descriptors, walls.ruleset_fd)
    _drop_privileges(walls)
    _limit(walls, math.ceil(cpu_s), memory_mb)
    prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if walls.ruleset_fd is not None:
        landlock.restrict_self(len(descriptors))
        os.close(len(descriptors))
    _install(walls.filter, key)


def _die_with(server_pid: int) -> None:
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server_pid:
        raise ProcessLookupError("the fork server died first")


def _keep_only(descriptors: list[int], ruleset_fd: int | None) -> None:
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    kept = len(descriptors)
    if ruleset_fd is not None:
        os.dup2(ruleset_fd, kept)
        kept += 1
    os.closerange(kept, 2**20)


def _drop_privileges(walls: Walls) -> None:
    if os.geteuid() == 0:
        prctl(_PR_SET_KEEPCAPS, 1)
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(walls.user, walls.user, walls.user)
        # A change of user clears the parent-death signal.
        _die_with(walls.server_pid)
    header, data = _CAPABILITIES[walls.keep_read_search]
    if landlock.libc.syscall(_CAPSET, header, data) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "capset")


def _limit(walls: Walls, cpu_s: int, memory_mb: int) -> None:
    memory = walls.base_bytes + memory_mb * 2**20
    room = walls.room
    file_bytes = room.file_mb * 2**20 if room else FILE_BYTES
    threads = walls.base_tasks + (room.threads if room else _THREADS)
    # A stack without a limit of its own falls under that of the address space: recursion may go as deep as memory.
    unlimited = resource.RLIM_INFINITY
    own = (resource.RLIMIT_STACK, unlimited, unlimited) if room else (resource.RLIMIT_AS, memory, memory)
    for limit, soft, hard in (
        own,
        # Counted in ticks, up to a tenth off: this only ends the program; judged is the time really used.
        (resource.RLIMIT_CPU, cpu_s + 1, cpu_s + 2),
        (resource.RLIMIT_FSIZE, file_bytes, file_bytes),
        (resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES),
        (resource.RLIMIT_NPROC, threads, threads),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
    ):
        _, ceiling = resource.getrlimit(limit)
        if ceiling != unlimited:
            soft, hard = (ceiling if value == unlimited else min(value, ceiling) for value in (soft, hard))
        resource.setrlimit(limit, (soft, hard))


def _install(filter: Filter, key: int) -> None:
    program = filter.for_child(os.getpid(), key)
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: a count, then a pointer at its natural alignment.
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    if landlock.libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "seccomp")
