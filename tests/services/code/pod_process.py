"""Runs a code verifier as an ordinary pod would have it, and answers with what became of the samples.

    python pod_process.py FOLDER < WORK        as root; FOLDER is empty and the user's, the one above it ours

The work is {"user", "profile", "container", "samples": [...]}: become that user and, with `container`, set
no-new-privileges and a filter that denies what the container runtimes' default profile denies; then start afresh. The
answer is {"layers", "results": [...], "facts": {...}} or {"refused": why}. An interpreter in a private folder is first
shown to everybody in a mount namespace of its own, as an image would have it in a public place.
"""

import ctypes
import errno
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[3]
NEW_NAMESPACES = 0x7E020080  # every CLONE_NEW*
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_CLONE_NEWNS = 0x20000

#: "Significant syscalls blocked by the default profile" of docs.docker.com/engine/security/seccomp, and io_uring, which
#: newer versions of it deny: name, number on x86_64, on aarch64 (-1: there is none).
DENIED = """
acct 163 89; add_key 248 217; bpf 321 280; clock_adjtime 305 266; clock_settime 227 112; create_module 174 -1;
delete_module 176 106; finit_module 313 273; get_kernel_syms 177 -1; get_mempolicy 239 236; init_module 175 105;
ioperm 173 -1; iopl 172 -1; kcmp 312 272; kexec_file_load 320 294; kexec_load 246 104; keyctl 250 219;
lookup_dcookie 212 18; mbind 237 235; mount 165 40; move_pages 279 239; nfsservctl 180 42;
open_by_handle_at 304 265; perf_event_open 298 241; pivot_root 155 41; process_vm_readv 310 270;
process_vm_writev 311 271; ptrace 101 117; query_module 178 -1; quotactl 179 60; reboot 169 142; request_key 249 218;
set_mempolicy 238 237; setns 308 268; settimeofday 164 170; swapon 167 224; swapoff 168 225; sysfs 139 -1;
_sysctl 156 -1; umount2 166 39; unshare 272 97; uselib 134 -1; userfaultfd 323 282; ustat 136 -1;
open_tree 428 428; move_mount 429 429; fsopen 430 430; fsconfig 431 431; fsmount 432 432; fspick 433 433;
mount_setattr 442 442; io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427;
vhangup 153 58; chroot 161 51; fanotify_init 300 262; syslog 103 116; sethostname 170 161; setdomainname 171 162
"""
_CLONE, _CLONE3, _SOCKET, _PERSONALITY = {
    "x86_64": (56, 435, 41, 135),
    "aarch64": (220, 435, 198, 92),
}.get(platform.machine(), (-1, -1, -1, -1))
_ALLOWED_PERSONALITIES = (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)
_AF_ALG, _AF_VSOCK = 38, 40


def container_filter() -> bytes:
    """The default profile as classic BPF: everything but what it denies."""
    load, equal, any_bit, answer = 0x20, 0x15, 0x45, 0x06
    allow, deny = 0x7FFF0000, 0x00050000 | errno.EPERM
    code: list[tuple[int, int, int, int]] = [(load, 0, 0, 0)]
    column = 1 if platform.machine() == "x86_64" else 2
    for entry in DENIED.split(";"):
        number = int(entry.split()[column])
        if number >= 0:
            code += [(equal, 0, 1, number), (answer, 0, 0, deny)]
    code += [(equal, 0, 1, _CLONE3), (answer, 0, 0, 0x00050000 | errno.ENOSYS)]
    code += [(equal, 0, 4, _CLONE), (load, 0, 0, 16), (any_bit, 0, 1, NEW_NAMESPACES), (answer, 0, 0, deny)]
    code += [(answer, 0, 0, allow)]
    code += [(equal, 0, 5, _SOCKET), (load, 0, 0, 16)]
    code += [(equal, 1, 0, _AF_ALG), (equal, 0, 1, _AF_VSOCK), (answer, 0, 0, deny), (answer, 0, 0, allow)]
    code += [(equal, 0, 2 + len(_ALLOWED_PERSONALITIES), _PERSONALITY), (load, 0, 0, 16)]
    for index, value in enumerate(_ALLOWED_PERSONALITIES):
        code += [(equal, len(_ALLOWED_PERSONALITIES) - index, 0, value)]
    code += [(answer, 0, 0, deny), (answer, 0, 0, allow)]
    return b"".join(struct.pack("=HBBI", *step) for step in code)


def _checked(result: int, name: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def show_interpreter(libc: ctypes.CDLL, folder: Path) -> None:
    """Mount interpreter and repository in their places again, with every folder above them open to all.

    Raises:
        OSError: mounting is not permitted.
    """
    needed = sorted({Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), REPOSITORY})
    private = {path: _first_private(path) for path in needed}
    if not any(private.values()):
        return
    _checked(libc.unshare(_CLONE_NEWNS), "unshare")
    _checked(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "private mounts")
    kept: list[tuple[str, Path]] = []
    for path in (path for path, hidden in private.items() if hidden):
        aside = tempfile.mkdtemp(dir=folder)
        _checked(libc.mount(bytes(path), aside.encode(), None, _MS_BIND | _MS_REC, None), f"bind {path}")
        kept.append((aside, path))
    for hidden in {hidden for hidden in private.values() if hidden}:
        _checked(libc.mount(b"none", bytes(hidden), b"tmpfs", 0, b"mode=755"), f"cover {hidden}")
    for aside, path in kept:
        path.mkdir(parents=True, exist_ok=True)
        _checked(libc.mount(aside.encode(), bytes(path), None, _MS_BIND | _MS_REC, None), f"bind {path}")


def _first_private(path: Path) -> Path | None:
    for folder in (*reversed(path.parents), path):
        if not folder.stat().st_mode & 0o001:
            return folder
    return None


def confine(work: dict[str, Any], folder: Path) -> None:
    """Become the user and put on what a container runtime puts on."""
    libc = ctypes.CDLL(None, use_errno=True)
    show_interpreter(libc, folder)
    os.setgroups([])
    os.setresgid(work["user"], work["user"], work["user"])
    os.setresuid(work["user"], work["user"], work["user"])
    if not work["container"]:
        return
    _checked(libc.prctl(38, 1, 0, 0, 0), "no new privileges")
    program = container_filter()
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _checked(libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0), "seccomp")


def facts() -> dict[str, Any]:
    """What this process may not do, found out by trying."""
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    libc = ctypes.CDLL(None, use_errno=True)
    namespaces = subprocess.run(["unshare", "-U", "true"], capture_output=True, check=False).returncode
    return {
        "user": os.getuid(),
        "groups": os.getgroups(),
        "capabilities": int(status["CapEff"], 16),
        "no_new_privileges": int(status["NoNewPrivs"]),
        "seccomp": int(status["Seccomp"]),
        "may_unshare": namespaces == 0,
        "may_keyctl": libc.syscall(250 if platform.machine() == "x86_64" else 219, 0, 0, 0, 0, 0) >= 0,
    }


def score(work: dict[str, Any], folder: str) -> dict[str, Any]:
    """Open the service, score every sample, close it."""
    from guerdon.types import Sample
    from guerdon_services.code.selftest import NotIsolated
    from guerdon_services.code.service import CodeOptions, CodeScorer, CodeSettings
    from guerdon_services.runtime.scorer import ScoreJob

    scorer = CodeScorer(CodeSettings(profile=work["profile"], workers=2, scratch=folder))
    options = CodeOptions(extraction="whole")
    try:
        scorer.open()
    except NotIsolated as error:
        return {"refused": str(error)}

    def one(fields: dict[str, Any]) -> dict[str, Any]:
        [result] = scorer.score([ScoreJob(Sample.model_validate(fields), options)])
        verdict = result.verdict
        return {
            "status": result.status.value,
            "reason": result.reason,
            "profile": verdict.profile if verdict else None,
            "verdicts": [test.verdict for test in verdict.tests] if verdict else [],
        }

    try:
        with ThreadPoolExecutor(2) as pool:
            results = list(pool.map(one, work["samples"]))
        layers = scorer.details()["layers"]
    finally:
        scorer.close()
    return {"layers": layers, "results": results, "left": sorted(os.listdir(folder)), "facts": facts()}


def main() -> None:
    """First as root: confine and start again; then as the user: score."""
    if sys.argv[1] != "--confined":
        text = sys.stdin.read()
        try:
            confine(json.loads(text), Path(sys.argv[1]).parent)
        except OSError as error:
            json.dump({"cannot": str(error)}, sys.stdout)
            return
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            with os.fdopen(writer, "w") as pipe:
                pipe.write(text)
            os._exit(0)
        os.close(writer)
        os.dup2(reader, 0)
        os.chdir("/")
        os.execve(sys.executable, [sys.executable, __file__, "--confined", sys.argv[1]], {"PATH": os.defpath})
    json.dump(score(json.load(sys.stdin), sys.argv[2]), sys.stdout)


if __name__ == "__main__":
    main()
