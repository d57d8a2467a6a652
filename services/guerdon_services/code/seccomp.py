"""The system calls a program may make: an allow-list compiled to classic BPF.

Written here instead of taken from libseccomp because the filter must name the process's own id (`kill`), known only
after the fork: the program is compiled once per server and each child fills in four bytes. Everything not listed fails
with EPERM; `clone3` and `openat2`, whose arguments a filter cannot see, with ENOSYS, so that libc falls back.
Layout and constants: linux/seccomp.h, linux/filter.h, seccomp(2).

A child that is to become a compiled program or a compiler must execute it behind the filter, and nothing else ever
after. `execveat` ignores its sixth argument, a filter does not: that child's filter asks for a random number there.
The number dies with the memory of the caller when the call succeeds.
"""

import errno
import platform
import struct
from dataclasses import dataclass, field, replace
from typing import Literal

_LOAD, _AND, _JUMP, _JUMP_EQ, _JUMP_GE, _RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
#: Conditional jumps go no farther.
_FARTHEST = 255
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_WORD = 0xFFFFFFFF

#: Plain permission, whatever the arguments: (name, x86_64 number, aarch64 number or -1 where it does not exist).
_ALLOWED = """
read 0 63; write 1 64; readv 19 65; writev 20 66; pread64 17 67; pwrite64 18 68; lseek 8 62; close 3 57;
close_range 436 436; fstat 5 80; newfstatat 262 79; stat 4 -1; lstat 6 -1; access 21 -1; faccessat 269 48;
faccessat2 439 439; readlink 89 -1; readlinkat 267 78; getdents64 217 61; getcwd 79 17; chdir 80 49; fchdir 81 50;
dup 32 23; dup2 33 -1; dup3 292 24; pipe 22 -1; pipe2 293 59; poll 7 -1; ppoll 271 73; select 23 -1;
pselect6 270 72; epoll_create1 291 20; epoll_ctl 233 21; epoll_wait 232 -1; epoll_pwait 281 22; eventfd2 290 19;
recvfrom 45 207; recvmsg 47 212; mmap 9 222; munmap 11 215; mprotect 10 226; mremap 25 216; madvise 28 233; brk 12 214;
futex 202 98; get_robust_list 274 100;
set_robust_list 273 99; set_tid_address 218 96; rseq 334 293; exit 60 93; exit_group 231 94;
gettid 186 178; getpid 39 172; getppid 110 173; getuid 102 174; geteuid 107 175; getgid 104 176; getegid 108 177;
getgroups 115 158; getresuid 118 148; getresgid 120 150; getpgrp 111 -1; getpgid 121 155; getsid 124 156;
uname 63 160; sysinfo 99 179; times 100 153; getrusage 98 165; gettimeofday 96 169; clock_gettime 228 113;
clock_getres 229 114; clock_nanosleep 230 115; nanosleep 35 101; time 201 -1; getrandom 318 278; getcpu 309 168;
sched_yield 24 124; sched_getaffinity 204 123; sched_getparam 143 121; sched_getscheduler 145 120;
sched_get_priority_max 146 125; sched_get_priority_min 147 126; rt_sigaction 13 134; rt_sigprocmask 14 135;
rt_sigreturn 15 139; rt_sigsuspend 130 133; rt_sigpending 127 136; rt_sigtimedwait 128 137; sigaltstack 131 132;
pause 34 -1; alarm 37 -1; getitimer 36 102; setitimer 38 103; restart_syscall 219 128; getrlimit 97 163;
ftruncate 77 46; unlink 87 -1; unlinkat 263 35; rename 82 -1; renameat 264 38; renameat2 316 276;
fsync 74 82; fdatasync 75 83; statx 332 291; statfs 137 43; fstatfs 138 44; umask 95 166; wait4 61 260;
waitid 247 95; membarrier 324 283
"""
_UNSEEN = "clone3 435 435; openat2 437 437"


@dataclass(frozen=True)
class _Test:
    """One condition on an argument: (argument & mask) == value, in its low 32 bits or its high ones."""

    argument: int
    value: int
    mask: int = _WORD
    high: bool = False
    negate: bool = False
    #: The value is filled in for each child: its process id, or a half of its secret number.
    filled: Literal["", "pid", "key_low", "key_high"] = ""


#: Permission that depends on arguments: (numbers, alternatives), each alternative a list of conditions.
_OWN = _Test(0, 0, filled="pid")
_NOT_KILL = _Test(1, 9, negate=True)
_NOT_CPU_LIMIT = _Test(0, 0, negate=True)  # RLIMIT_CPU
_NO_LIMIT = _Test(2, 0)
_THREAD_FLAGS = 0x00010000 | 0x00000100  # CLONE_THREAD | CLONE_VM
_NAMESPACE_FLAGS = 0x7E020080  # every CLONE_NEW*
_READ_ONLY_FLAGS = 0o3 | 0o100 | 0o1000 | 0o20000000  # O_ACCMODE | O_CREAT | O_TRUNC | __O_TMPFILE
_CONDITIONAL: list[tuple[str, list[list[_Test]]]] = [
    # Threads only: a child process would need CLONE_THREAD to be absent.
    (
        "clone 56 220",
        [[_Test(0, _THREAD_FLAGS, _THREAD_FLAGS | _NAMESPACE_FLAGS)]],
    ),
    # Only itself, and never SIGKILL: a program found killed was killed from outside, which is no verdict.
    ("kill 62 129", [[_OWN, _NOT_KILL]]),
    ("tgkill 234 131", [[_OWN, _Test(2, 9, negate=True)]]),
    ("prctl 157 167", [[_Test(0, 15)], [_Test(0, 16)]]),  # PR_SET_NAME, PR_GET_NAME
    # Not the processor time: a program that lowers it and ignores the warning would look killed from outside.
    ("setrlimit 160 164", [[_NOT_CPU_LIMIT]]),
    (
        "prlimit64 302 261",
        [
            [whose, what]
            for whose in (_Test(0, 0), _OWN)
            for what in (replace(_NOT_CPU_LIMIT, argument=1), _NO_LIMIT)
        ],
    ),
    # Duplicates, flags, locks; not F_SETSIG and F_SETOWN, by which the kernel would send it any signal, SIGKILL too.
    ("fcntl 72 25", [[_Test(1, value)] for value in (*range(8), *range(36, 39), 1030)]),
    # TCGETS (isatty), FIOCLEX, FIONCLEX, FIONBIO, FIONREAD, TIOCGWINSZ
    ("ioctl 16 29", [[_Test(1, value)] for value in (0x5401, 0x5451, 0x5450, 0x5421, 0x541B, 0x5413)]),
    # asyncio wakes its loop through a connected pair: no address can be named without socket(), connect() or bind().
    ("socketpair 53 199", [[_Test(0, 1)]]),
    ("sendto 44 206", [[_Test(4, 0), _Test(4, 0, high=True)]]),
]
_AT_EMPTY_PATH = 0x1000
#: For children that execute: the one call, and the thread pointer that libc sets at start on x86 (ARCH_SET_FS).
_EXECUTING: list[tuple[str, list[list[_Test]]]] = [
    (
        "execveat 322 281",
        [
            [
                _Test(4, _AT_EMPTY_PATH),
                _Test(5, 0, filled="key_low"),
                _Test(5, 0, high=True, filled="key_high"),
            ]
        ],
    ),
    ("arch_prctl 158 -1", [[_Test(0, 0x1002)]]),
]
_OPEN = [("open 2 -1", 1), ("openat 257 56", 2)]

_ARCHITECTURES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}


@dataclass(frozen=True)
class Filter:
    """A compiled filter and where the values of one child go."""

    program: bytes
    offsets: tuple[tuple[int, str], ...]

    def for_child(self, pid: int, key: int) -> bytes:
        """The instructions, 8 bytes each, for the process `pid`, which may execute with the 64-bit number `key`."""
        values = {"pid": pid, "key_low": key & _WORD, "key_high": key >> 32}
        code = bytearray(self.program)
        for offset, name in self.offsets:
            struct.pack_into("=I", code, offset, values[name])
        return bytes(code)


@dataclass
class _Block:
    """Instructions whose jumps stay within them, and where values of the child go: (instruction, name)."""

    code: list[bytes] = field(default_factory=list[bytes])
    filled: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    def add(self, code: int, k: int, jt: int = 0, jf: int = 0) -> None:
        self.code.append(struct.pack("=HBBI", code, jt, jf, k))

    def extend(self, other: "_Block") -> None:
        self.filled += [(len(self.code) + index, name) for index, name in other.filled]
        self.code += other.code


def _answer(verdict: int) -> _Block:
    block = _Block()
    block.add(_RETURN, verdict)
    return block


_PERMIT, _DENY = _answer(_ALLOW), _answer(_ERRNO | errno.EPERM)
_UNKNOWN = _answer(_ERRNO | errno.ENOSYS)


def _conditional(alternatives: list[list[_Test]]) -> _Block:
    """Allow when all tests of any alternative hold."""
    block = _Block()
    for tests in alternatives:
        steps = [step for test in tests for step in _steps(test)]
        for index, (code, k, test) in enumerate(steps):
            if code != _JUMP_EQ:
                block.add(code, k)
                continue
            # A failed test skips to the next alternative: what remains of this one plus its return.
            skip = len(steps) - index
            if test.filled:
                block.filled.append((len(block.code), test.filled))
            block.add(code, k, *((skip, 0) if test.negate else (0, skip)))
        block.add(_RETURN, _ALLOW)
    block.extend(_DENY)
    return block


def _steps(test: _Test) -> list[tuple[int, int, _Test]]:
    load = (_LOAD, 16 + 8 * test.argument + (4 if test.high else 0), test)
    mask = [(_AND, test.mask, test)] if test.mask != _WORD else []
    return [load, *mask, (_JUMP_EQ, test.value, test)]


def _tree(ranges: list[tuple[int, _Block]]) -> _Block:
    """Find the range of the loaded number, by its start, in few steps: the kernel tries every number at each start."""
    if len(ranges) == 1:
        return ranges[0][1]
    middle = len(ranges) // 2
    below, above = _tree(ranges[:middle]), _tree(ranges[middle:])
    block = _Block()
    if len(below.code) <= _FARTHEST:
        block.add(_JUMP_GE, ranges[middle][0], len(below.code), 0)
    else:
        block.add(_JUMP_GE, ranges[middle][0], 0, 1)
        block.add(_JUMP, len(below.code))
    block.extend(below)
    block.extend(above)
    return block


def _ranges(answers: dict[int, _Block]) -> list[tuple[int, _Block]]:
    """The answers as ranges that begin at a number and go up to the next; what lies between answers is denied."""
    ranges = [(0, _DENY)]
    for number in sorted(answers):
        for start, block in ((number, answers[number]), (number + 1, _DENY)):
            if ranges[-1][0] == start:
                ranges.pop()
            if not ranges or ranges[-1][1] is not block:
                ranges.append((start, block))
    return ranges


def _numbers(text: str, column: int) -> list[int]:
    fields = [entry.split() for entry in text.split(";")]
    return [int(field[column]) for field in fields if int(field[column]) >= 0]


def compile_filter(*, read_only_files: bool, executes: bool = False) -> Filter:
    """The filter for this machine; with `read_only_files` nothing can be opened for writing or created.

    `executes` is for children that become another program, once.

    Raises:
        RuntimeError: this processor architecture has no list.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise RuntimeError(f"no seccomp allow-list for {machine}: only for {', '.join(_ARCHITECTURES)}")
    audit_arch, column = _ARCHITECTURES[machine]
    answers = {number: _PERMIT for number in _numbers(_ALLOWED, column)}
    answers |= {number: _UNKNOWN for number in _numbers(_UNSEEN, column)}
    for text, alternatives in _CONDITIONAL + (_EXECUTING if executes else []):
        answers |= {number: _conditional(alternatives) for number in _numbers(text, column)}
    for text, flags_argument in _OPEN:
        reading = _conditional([[_Test(flags_argument, 0, _READ_ONLY_FLAGS)]])
        answers |= {number: reading if read_only_files else _PERMIT for number in _numbers(text, column)}
    program = _Block()
    program.add(_LOAD, 4)
    program.add(_JUMP_EQ, audit_arch, 1, 0)
    program.add(_RETURN, _KILL_PROCESS)
    program.add(_LOAD, 0)
    # Numbers of the x32 ABI lie above all of these, and are denied with whatever is not listed.
    program.extend(_tree(_ranges(answers)))
    return Filter(b"".join(program.code), tuple((8 * index + 4, name) for index, name in program.filled))
