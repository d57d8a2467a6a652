"""C++ by g++. Its driver forks; here the commands that it would run are run one by one, none of which can."""

import os
import re
from pathlib import Path

from guerdon_services.code.languages.language import (
    LIBRARIES,
    Command,
    Language,
    Missing,
    Probe,
    Toolchain,
)
from guerdon_services.code.languages.tools import ask, driven, loaders, locate
from guerdon_services.code.sandbox import Room

_SOURCE, _ASSEMBLY, _OBJECT, _PROGRAM = "program.cpp", "program.s", "program.o", "program"
#: As contests compile, without warnings, which nobody reads, and with at most a few errors.
_OPTIONS = ("-std=gnu++20", "-O2", "-w", "-fmax-errors=3", "-fno-diagnostics-show-caret")


def find() -> Toolchain:
    """g++ and the assembler and linker that it uses.

    Raises:
        Missing: one of them is not there.
    """
    driver = locate("g++")
    compile = driven(driver, *_OPTIONS, "-S", _SOURCE, "-o", _ASSEMBLY)
    assemble = driven(driver, "-c", _ASSEMBLY, "-o", _OBJECT)
    link = driven(driver, *_linking(driver), _OBJECT, "-o", _PROGRAM)
    link[0] = "ld"  # what collect2 would run
    build = tuple(_command(driver, line) for line in (compile, assemble, link))
    installed = str(build[0].executable.parent)
    return Toolchain(
        version=f"g++ {ask(driver, '-dumpfullversion').strip()}",
        source=_SOURCE,
        build=build,
        build_room=Room(
            readable=[*LIBRARIES, *_include_folders(driver), installed],
            executable=[*(str(command.executable) for command in build), *loaders()],
            base_mb=128,
            file_mb=64,
            devices=False,
        ),
        artefact=_PROGRAM,
        interpreter=None,
        run_room=Room(readable=LIBRARIES, executable=loaders()),
        out_of_memory=(b"std::bad_alloc", b"std::bad_array_new_length"),
    )


def _linking(driver: Path) -> tuple[str, ...]:
    """Static where possible, which starts sooner and needs no file. Threads of an old static libc are broken."""
    libc = (os.confstr("CS_GNU_LIBC_VERSION") or "glibc 0.0").split()[1]
    recent = tuple(map(int, libc.split(".")[:2])) >= (2, 34)
    archives = [ask(driver, f"-print-file-name={name}").strip() for name in ("libc.a", "libstdc++.a")]
    static = recent and all(Path(archive).is_absolute() for archive in archives)
    return ("-fno-use-linker-plugin", *(("-static",) if static else ()))


def _command(driver: Path, line: list[str]) -> Command:
    program = Path(line[0])
    if not program.is_absolute():
        program = Path(ask(driver, f"-print-prog-name={line[0]}").strip())
    executable = program.resolve() if program.is_absolute() else locate(line[0])
    return Command(executable, (line[0], *line[1:]))


def _include_folders(driver: Path) -> list[str]:
    text = ask(driver, "-E", "-x", "c++", "-v", "/dev/null")
    listed = re.search(r"search starts here:\n((?: /.*\n)+)End of search", text)
    if listed is None:
        raise Missing(f"{driver}: names no folders of headers")
    return [str(Path(line.strip()).resolve()) for line in listed[1].splitlines()]


_HOSTILE = r"""
#include <cstdio>
#include <csignal>
#include <fcntl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
static void gave_way(const char *name, long result) { if (result >= 0) std::puts(name); }
int main() {
    char *arguments[] = {nullptr};
    pid_t child = fork();
    if (child == 0) _exit(0);
    gave_way("seccomp: fork", child);
    gave_way("seccomp: exec", execv("/bin/true", arguments));
    gave_way("seccomp: exec of a descriptor", syscall(SYS_execveat, 0, "", arguments, arguments, AT_EMPTY_PATH, 0));
    gave_way("seccomp: socket", socket(AF_INET, SOCK_DGRAM, 0));
    gave_way("seccomp: signal to the parent", kill(getppid(), 0));
    gave_way("seccomp: signal to the group", kill(0, 0));
    gave_way("seccomp: ptrace", ptrace(PTRACE_ATTACH, getppid(), nullptr, nullptr));
    gave_way("seccomp: memfd_create", syscall(SYS_memfd_create, "x", 0));
    gave_way("seccomp: unshare", syscall(SYS_unshare, 0x10000000));
    gave_way("landlock: /etc/passwd", open("/etc/passwd", O_RDONLY));
    gave_way("landlock: /proc", open("/proc/self/environ", O_RDONLY));
    gave_way("landlock: list /", open("/", O_RDONLY | O_DIRECTORY));
    gave_way("files: write elsewhere", open("/tmp/guerdon-code-probe", O_WRONLY | O_CREAT, 0600));
    gave_way("privileges: user root", getuid() == 0 || geteuid() == 0 ? 0 : -1);
    for (int descriptor = 3; descriptor < 64; ++descriptor)
        if (fcntl(descriptor, F_GETFD) >= 0) std::puts("descriptors: inherited");
    for (char **entry = environ; *entry; ++entry) std::puts("environment: not empty");
    std::puts("end");
}
"""
#: Build only where the compiler, and then the assembler, can open the file.
_UNBUILDABLE = (
    '#if __has_include("/etc/passwd")\n#endif\nint main() {}\n',
    'asm(".incbin \\"/etc/passwd\\"");\nint main() {}\n',
)
_HARMLESS = r"""
#include <iostream>
#include <thread>
#include <vector>
int main() {
    long long sum = 0, number;
    while (std::cin >> number) sum += number;
    std::vector<char> memory(64 << 20, 1);
    std::thread thread([&] { sum += memory[12345] - 1; });
    thread.join();
    std::cout << sum << "\n";
}
"""

LANGUAGE = Language(
    name="cpp",
    aliases=frozenset({"c++", "cc", "cxx", "cpp17", "cpp20", "c++17", "c++20"}),
    find=find,
    probe=Probe(_HOSTILE, _HARMLESS, _UNBUILDABLE),
)
