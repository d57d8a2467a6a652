"""The supervisor's side of languages other than Python: what this machine has, building, running, verdicts."""

import contextlib
import os
import signal
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from guerdon.types import TestVerdict
from guerdon_services.code import judge
from guerdon_services.code.languages import LANGUAGES
from guerdon_services.code.languages.language import Command, Language, Missing, Toolchain
from guerdon_services.code.launch import Launch
from guerdon_services.code.sandbox import Room
from guerdon_services.code.supervision import Infrastructure, Run, RunLimits, died_of
from guerdon_services.code.worker import Worker, sealed

#: A program that ended badly with this share of its memory in use ended for want of it.
_NEARLY_ALL = 0.9
_COMPILER_OUT_OF_MEMORY = (b"out of memory", b"memory exhausted", b"Cannot allocate memory")
_MOST_PROGRAM_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Built:
    """A program ready to run on any number of tests."""

    language: str
    toolchain: Toolchain
    source: str
    #: The artefact as a sealed file in memory, closed by `close`; None where the source itself is run.
    executable: int | None
    #: What the artefact takes of the address space before its first instruction.
    image_bytes: int = 0

    def close(self) -> None:
        """Forget the artefact."""
        if self.executable is not None:
            os.close(self.executable)


def find_toolchains(wanted: Sequence[str] | None) -> tuple[dict[str, Toolchain], dict[str, str]]:
    """The languages of this machine, and why each of the others is none of them.

    Raises:
        Missing: a language that is wanted by name is not there.
    """
    found: dict[str, Toolchain] = {}
    missing: dict[str, str] = {}
    if unknown := set(wanted or ()) - set(LANGUAGES):
        raise Missing(f"languages: {', '.join(sorted(unknown))}: not one of {', '.join(LANGUAGES)}")
    for name, language in LANGUAGES.items():
        if language.find is None:
            continue
        if wanted is not None and name not in wanted:
            missing[name] = "switched off in the settings"
            continue
        try:
            found[name] = language.find()
        except Missing as error:
            missing[name] = str(error)
            if wanted is not None:
                raise Missing(f"languages: {name}: {error}") from None
    return found, missing


def rooms(toolchains: dict[str, Toolchain]) -> dict[str, Room]:
    """What the fork server must prepare for: a room to build in and one to run in, for each language."""
    prepared: dict[str, Room] = {}
    for name, toolchain in toolchains.items():
        prepared |= {f"{name}.build": toolchain.build_room, f"{name}.run": toolchain.run_room}
    return prepared


def build(
    worker: Worker, language: Language, toolchain: Toolchain, source: str, limits: RunLimits
) -> Built | TestVerdict:
    """Build a program under `limits`, which all its commands share; a verdict when no program comes of it.

    Raises:
        Infrastructure: the sandbox failed, or the machine.
    """
    used_s = 0.0
    try:
        for index, command in enumerate(toolchain.build):
            left = RunLimits(limits.cpu_s - used_s, limits.wall_s, limits.memory_mb, limits.output_bytes)
            file = "" if index else toolchain.source
            job = _launch(command, file, source, left, merged=True)
            run = _execute(worker, f"{language.name}.build", job, b"", left, command, keep=True)
            used_s += run.cpu_s
            failure = _compile_failure(run, left, toolchain.build_room)
            if failure is not None:
                return failure
        if toolchain.artefact is None:
            return Built(language.name, toolchain, source, None)
        program = _read_artefact(str(worker.folder / toolchain.artefact))
    finally:
        worker.clear()
    image_bytes = _image_bytes(program)
    return Built(language.name, toolchain, source, sealed(program, executable=True), image_bytes)


def run(worker: Worker, built: Built, stdin: bytes, limits: RunLimits) -> tuple[Run, TestVerdict | None]:
    """Run a built program on one input; the verdict where it did not end well.

    Raises:
        Infrastructure: it was killed from outside, or the sandbox failed.
    """
    room = f"{built.language}.run"
    toolchain = built.toolchain
    if built.executable is not None:
        job = _launch(None, "", "", limits, merged=False)
        run = worker.launch(room, job, stdin, limits, built.executable)
    else:
        assert toolchain.interpreter
        command = toolchain.interpreter(limits.memory_mb)
        job = _launch(command, toolchain.source, built.source, limits, merged=False)
        run = _execute(worker, room, job, stdin, limits, command)
    return run, _failure(run, limits, built)


def _launch(command: Command | None, file: str, text: str, limits: RunLimits, *, merged: bool) -> Launch:
    return Launch(
        argv=list(command.arguments) if command else ["program"],
        file=file,
        text=text,
        merged=merged,
        cpu_s=limits.cpu_s,
        memory_mb=limits.memory_mb,
    )


def _execute(
    worker: Worker,
    room: str,
    job: Launch,
    stdin: bytes,
    limits: RunLimits,
    command: Command,
    *,
    keep: bool = False,
) -> Run:
    try:
        executable = os.open(command.executable, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise Infrastructure(f"{command.executable}: {error.strerror}") from None
    try:
        return worker.launch(room, job, stdin, limits, executable, keep=keep)
    finally:
        os.close(executable)


def _compile_failure(run: Run, limits: RunLimits, room: Room) -> TestVerdict | None:
    """CE when a command of the build did not end well, with the first error or the limit it ran into."""
    failure = judge.failure(run, limits)
    if failure is None:
        return None
    lines = run.stdout.decode("utf-8", "replace").strip().splitlines()
    errors = [index for index, line in enumerate(lines) if "error" in line.lower()]
    said = "\n".join(lines[errors[0] if errors else 0 :][:5])
    limit = ""
    if failure.verdict in ("TLE", "OLE"):
        limit = failure.message or ""
    elif died_of(run) is signal.SIGXFSZ:
        limit = f"a file over {room.file_mb} MiB"
    elif any(sign in run.stdout for sign in _COMPILER_OUT_OF_MEMORY):
        limit = f"memory over {limits.memory_mb} MiB"
    elif not said:
        limit = failure.message or ""
    return judge.verdict(run, "CE", ": ".join(filter(None, (limit and f"the compiler: {limit}", said))))


def _read_artefact(path: str) -> bytes:
    """What the last command left. Untrusted: it must be a plain file of modest size.

    Raises:
        Infrastructure: it is not there, although the command ended well.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Infrastructure("the compiler left no plain file")
            return file.read(_MOST_PROGRAM_BYTES)
    except OSError as error:
        raise Infrastructure(f"the compiler left no program: {error.strerror}") from None


def _image_bytes(program: bytes) -> int:
    """The size in memory of all loaded segments of a 64-bit little-endian ELF file; 0 where that cannot be told."""
    with contextlib.suppress(struct.error):
        table, size, count = (
            struct.unpack_from("<Q", program, 32)[0],
            *struct.unpack_from("<HH", program, 54),
        )
        headers = (struct.unpack_from("<IIQQQQQQ", program, table + size * index) for index in range(count))
        return sum(header[6] for header in headers if header[0] == 1)
    return 0


def _failure(run: Run, limits: RunLimits, built: Built) -> TestVerdict | None:
    """As for Python, but want of memory shows otherwise: by what is said, by what was in use, by what was needed."""
    failure = judge.failure(run, limits)
    if failure is None or failure.verdict not in ("RE", "MLE"):
        return failure
    needed = max(run.max_rss_kb * 1024 / _NEARLY_ALL, built.image_bytes)
    told = any(sign in run.stderr_tail for sign in built.toolchain.out_of_memory)
    by_signal = os.WIFSIGNALED(run.exit_status)
    if told or (by_signal and needed >= limits.memory_mb * 2**20):
        return judge.verdict(run, "MLE", f"memory over {limits.memory_mb} MiB")
    if by_signal:
        return failure
    # Node ends with its version: the last line that speaks of an error tells more.
    lines = run.stderr_tail.decode("utf-8", "replace").splitlines()
    errors = [line.strip() for line in lines if "error" in line.lower()]
    return judge.verdict(run, "RE", errors[-1] if errors else f"exit code {os.WEXITSTATUS(run.exit_status)}")
