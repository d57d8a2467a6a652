"""Landlock through raw system calls: files, TCP, abstract sockets and signals. See linux/landlock.h, landlock(7)."""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_FILE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 5
_MAKE_REG, _TRUNCATE = 1 << 8, 1 << 14
#: How many of the file rights above and beyond these each ABI knows, as the exclusive upper bit.
_FILE_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15}
_FILE_RIGHTS_NEWEST = 16
_NETWORK_RIGHTS = 0b11  # bind and connect TCP
_SCOPES = 0b11  # abstract unix sockets, signals
#: What a program may open of /dev.
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")

libc = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: ctypes.c_char_p | int | None) -> int:
    result = int(libc.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), f"landlock call {number}")
    return result


def abi() -> int:
    """The kernel's Landlock version; 0 where there is none."""
    try:
        return _call(_CREATE_RULESET, None, 0, 1)
    except OSError:
        return 0


def ruleset(
    readable: Iterable[Path],
    scratch: Path,
    executable: Iterable[Path] = (),
    devices: Iterable[str] = DEVICES,
) -> int:
    """A ruleset file descriptor: read below `readable`, read and write plain files in `scratch`, nothing else.

    `executable` are files that may be executed. Code that belongs to no path (a file in memory) always may.

    In `scratch` files can be made and removed, but no directories, links or devices: clearing it stays trivial.
    Paths that do not exist are skipped.
    """
    version = abi()
    rights = (1 << _FILE_RIGHTS_BY_ABI.get(version, _FILE_RIGHTS_NEWEST)) - 1
    attributes = struct.pack("=QQQ", rights, _NETWORK_RIGHTS, _SCOPES)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset_fd = _call(_CREATE_RULESET, ctypes.c_char_p(attributes), size, 0)
    for path in readable:
        _allow(ruleset_fd, path, (_READ_FILE | _READ_DIR) & rights)
    scratch_rights = _READ_FILE | _READ_DIR | _WRITE_FILE | _REMOVE_FILE | _MAKE_REG | _TRUNCATE
    _allow(ruleset_fd, scratch, scratch_rights & rights)
    for path in executable:
        _allow(ruleset_fd, path, (_READ_FILE | _EXECUTE) & rights)
    for device in devices:
        _allow(ruleset_fd, Path(device), _READ_FILE | _WRITE_FILE)
    return ruleset_fd


def _allow(ruleset_fd: int, path: Path, rights: int) -> None:
    try:
        path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(path_fd).st_mode):
            rights &= _READ_FILE | _WRITE_FILE | _EXECUTE | _TRUNCATE
        rule = struct.pack("=Qi", rights, path_fd)
        _call(_ADD_RULE, ruleset_fd, _RULE_PATH_BENEATH, ctypes.c_char_p(rule), 0)
    finally:
        os.close(path_fd)


def restrict_self(ruleset_fd: int) -> None:
    """Put the calling thread, and all that it will start, under the ruleset for good."""
    _call(_RESTRICT_SELF, ruleset_fd, 0)
