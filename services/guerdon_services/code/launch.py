"""The last steps of a child that becomes another program: a compiler or what it compiled. Standard library only.

The program to execute is descriptor 4. It and the report pipe close when it starts, so that the program can report
nothing: all that follows `READY` in a report is the child's own word that it could not execute.
"""

import ctypes
import os
import platform
import resource
import signal
from typing import NoReturn, TypedDict

from guerdon_services.code.landlock import libc
from guerdon_services.code.sandbox import REPORT_FD, Room

EXECUTABLE_FD = 4
_EXECVEAT = {"x86_64": 322, "aarch64": 281}
_AT_EMPTY_PATH = 0x1000


class Launch(TypedDict):
    """One execution, marshalled in a sealed file."""

    argv: list[str]
    #: A file to find in the working folder, and its text; "" for none.
    file: str
    text: str
    #: Standard error goes where standard output goes.
    merged: bool
    cpu_s: float
    memory_mb: int


def write_file(launch: Launch) -> None:
    """Put the source into the working folder; before the walls, which may forbid all writing.

    Raises:
        OSError: there is something of that name, or no room.
    """
    if not launch["file"]:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(launch["file"], flags, 0o600), "wb") as file:
        file.write(launch["text"].encode())
        os.fchmod(file.fileno(), 0o444)


def execute(launch: Launch, room: Room, key: int) -> NoReturn:
    """Become the program, with no environment. Everything is made before the memory limit falls.

    Raises:
        OSError: the kernel refused.
    """
    arguments = [argument.encode() for argument in launch["argv"]]
    argv = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
    environment = (ctypes.c_char_p * 1)(None)
    secret, path, flags = ctypes.c_ulong(key), ctypes.c_char_p(b""), ctypes.c_long(_AT_EMPTY_PATH)
    number, descriptor = ctypes.c_long(_EXECVEAT[platform.machine()]), ctypes.c_long(EXECUTABLE_FD)
    if launch["merged"]:
        os.dup2(1, 2)
    os.set_inheritable(REPORT_FD, False)
    os.set_inheritable(EXECUTABLE_FD, False)
    for ignored in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # by the interpreter; a program expects to find them as usual
        signal.signal(ignored, signal.SIG_DFL)
    limit = resource.RLIMIT_AS if room.memory == "address_space" else resource.RLIMIT_DATA
    most = (room.base_mb + launch["memory_mb"]) * 2**20
    _, ceiling = resource.getrlimit(limit)
    most = most if ceiling == resource.RLIM_INFINITY else min(most, ceiling)
    resource.setrlimit(limit, (most, most))
    libc.syscall(number, descriptor, path, argv, environment, flags, secret)
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "execveat")
