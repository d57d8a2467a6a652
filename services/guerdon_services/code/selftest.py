"""Proves at start that every wall of the profile stands, with a program that tries to get through each."""

from guerdon_services.code import judge, programs
from guerdon_services.code.sandbox import Profile
from guerdon_services.code.supervision import Infrastructure, RunLimits
from guerdon_services.code.worker import Worker


class NotIsolated(RuntimeError):
    """A layer of the profile is missing or does not hold; the service must not start."""


_LIMITS = RunLimits(cpu_s=5.0, wall_s=30.0, memory_mb=128, output_bytes=1 << 20)

#: Tries everything; returns the names of the attempts that succeeded. Numbers: x86_64 and aarch64.
_PROBE = """
import ctypes, os, platform, resource, signal, socket
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == "aarch64"
def refused(action):
    try:
        result = action()
    except (OSError, ValueError):
        return True
    return isinstance(result, int) and result < 0
def syscall(x86, aarch64, *arguments):
    return lambda: libc.syscall(aarch64 if arm else x86, *arguments)
def forks():
    if os.fork() == 0:
        os._exit(0)
def probe(walled, parent_marker):
    attempts = {
        "descriptors: inherited": lambda: max(filter(is_open, range(4, 1024)), default=-1),
        "seccomp: fork": forks,
        "seccomp: exec": lambda: os.execv("/bin/true", ["true"]),
        "seccomp: TCP socket": lambda: socket.socket(),
        "seccomp: UDP socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "seccomp: unix socket": lambda: socket.socket(socket.AF_UNIX),
        "seccomp: signal to the parent": lambda: os.kill(os.getppid(), 0),
        "seccomp: signal to the group": lambda: os.killpg(0, 0),
        "seccomp: ptrace": syscall(101, 117, 16, os.getppid(), 0, 0),
        "seccomp: process_vm_readv": syscall(310, 270, os.getppid(), 0, 0, 0, 0, 0),
        "seccomp: memfd_create": syscall(319, 279, b"x", 0),
        "seccomp: io_uring_setup": syscall(425, 425, 4, ctypes.create_string_buffer(120)),
        "seccomp: unshare": syscall(272, 97, 0x10000000),
        "limits: higher memory limit": lambda: resource.setrlimit(resource.RLIMIT_AS, (-1, -1)),
        "limits: core files": lambda: resource.getrlimit(resource.RLIMIT_CORE)[1] or -1,
        "limits: many open files": lambda: [os.dup(0) for _ in range(1000)],
        "privileges: user root": lambda: 0 if os.getuid() == 0 or os.geteuid() == 0 else -1,
        "files: write outside the working folder": lambda: open(parent_marker, "w"),
        "files: environment": lambda: len(os.environ) or -1,
    }
    if walled:
        attempts |= {
            "landlock: /etc/passwd": lambda: open("/etc/passwd"),
            "landlock: /proc": lambda: os.listdir("/proc"),
            "landlock: parent's memory": lambda: open(f"/proc/{os.getppid()}/mem", "rb"),
            "landlock: list /": lambda: os.listdir("/"),
        }
    return sorted(name for name, attempt in attempts.items() if not refused(attempt))
def is_open(descriptor):
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
"""

#: Must work: a module that the fork server did not load, a thread, the working folder, memory within the limit.
_BENIGN = """
import threading
def works(walled):
    import colorsys, http.cookies, wave
    thread = threading.Thread(target=list)
    thread.start()
    thread.join()
    if walled:
        with open("file.txt", "w") as file:
            file.write("x")
    return len(bytearray(64 * 2**20)) > 0
"""

#: Packages that no program names are left to programs to import, behind the walls.
_IMPORTING = """
import importlib
def imports(name):
    return bool(importlib.import_module(name))
"""
_IMPORT_LIMITS = RunLimits(cpu_s=60.0, wall_s=180.0, memory_mb=4096, output_bytes=1 << 20)


def check(worker: Worker, profile: Profile) -> str:
    """Start the worker and try its walls; returns the layers in words.

    Raises:
        NotIsolated: a layer is missing, gives way, or stops programs that should run.
    """
    try:
        hello = worker.start()
    except Infrastructure as error:
        raise NotIsolated(f"profile {profile}: the fork server does not start: {error}") from None
    if hello.missing:
        raise NotIsolated(f"packages: cannot be imported: {'; '.join(hello.missing)}")
    walled = profile != "gvisor"
    if walled and not hello.landlock_abi:
        raise NotIsolated(
            f"profile {profile} needs Landlock, which this kernel does not offer. In a gVisor sandbox, or where the "
            "machine is isolated otherwise, the weaker profile=gvisor (seccomp and resource limits) can be chosen."
        )
    broken = _call(worker, _PROBE, "probe", f'[{"true" if walled else "false"}, "/tmp/guerdon-code-probe"]')
    if broken != []:
        raise NotIsolated(f"profile {profile}: a program got through: {broken}")
    answer = _call(worker, _BENIGN, "works", f"[{'true' if walled else 'false'}]")
    if answer is not True:
        raise NotIsolated(f"profile {profile}: a harmless program could not run: {answer}")
    for name in worker.packages:
        answer = _call(worker, _IMPORTING, "imports", f'["{name}"]', _IMPORT_LIMITS)
        if answer is not True:
            raise NotIsolated(f"packages: {name} cannot be imported: {answer}")
    layers = ["seccomp", "resource limits", "no new privileges"]
    if walled:
        layers.insert(0, f"Landlock {hello.landlock_abi}")
    if hello.network_namespace:
        layers.append("network namespace")
    return ", ".join(layers)


def _call(worker: Worker, code: str, function: str, arguments: str, limits: RunLimits = _LIMITS) -> object:
    job = programs.Job(
        kind="call",
        code=code,
        setup="",
        function=function,
        arguments=arguments,
        encoded_arguments="",
        cpu_s=limits.cpu_s,
        memory_mb=limits.memory_mb,
    )
    try:
        run = worker.run(job, b"", limits)
        failure = judge.failure(run, limits)
        return judge.returned(run) if failure is None else failure.message
    except (Infrastructure, ValueError) as error:
        raise NotIsolated(f"the self-test could not run: {error}") from None
