"""Programs that try to earn a reward they do not deserve, to learn what they should not, or to do harm.

None may pass, none may cost the service its life, none may become a failure of ours (a status other than ok would
let a policy dodge a bad reward).
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from guerdon.types import Limits

FORGED_VALUES = {
    "int subclass equal to everything": """
class I(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def f(a, b): return I(0)""",
    "list subclass equal to everything": """
class L(list):
    def __eq__(self, other): return True
    def __iter__(self): return iter([3])
    def __len__(self): return 1
def f(a, b): return L()""",
    "object equal to everything": """
class E:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __float__(self): return 3.0
    def __index__(self): return 3
def f(a, b): return E()""",
    "class property that claims int": """
class X:
    __class__ = property(lambda self: int)
    def __eq__(self, other): return True
def f(a, b): return X()""",
    "module name that claims numpy": """
class N:
    def tolist(self): return self
N.__module__ = "numpy"
def f(a, b): return N()""",
    "True for a number": "def f(a, b): return True",
    "text for a number": "def f(a, b): return '3'",
    "full-width digit": "def f(a, b): return '\\uff13'",
    "nan": "def f(a, b): return float('nan')",
    "nothing": "def f(a, b): pass",
}

STEALING = {
    "frames": """
import sys
def f(a, b):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if isinstance(value, dict) and ("expected" in value or "output" in value):
                return value.get("expected", value.get("output"))
        frame = frame.f_back""",
    "gc": """
import gc
def f(a, b):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and ("expected" in thing or "outputs" in thing):
            return thing.get("expected")""",
    "patched json and codec": """
import json, sys
class E:
    def __eq__(self, other): return True
json.loads = lambda *a, **k: E()
for name, module in list(sys.modules.items()):
    if name.startswith("guerdon"):
        for key in list(vars(module)):
            if key in ("encode", "decode", "value_matches"): setattr(module, key, lambda *a, **k: E())
def f(a, b): return E()""",
    "every descriptor": """
import os
for descriptor in range(1, 256):
    try:
        os.write(descriptor, b"AC"); os.write(descriptor, b"V" + b"T")
    except OSError: pass
def f(a, b): return None""",
    "early exit": "import os\ndef f(a, b): os._exit(0)",
    "system exit": "def f(a, b): raise SystemExit(0)",
    "exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef f(a, b): return 0",
    "exception hook": "import os, sys\nsys.excepthook = lambda *a: os._exit(0)\ndef f(a, b): 1/0",
    "thread that exits": """
import threading, os, time
threading.Thread(target=lambda: (time.sleep(.05), os._exit(0)), daemon=True).start()
def f(a, b): time.sleep(1)""",
    "trace function": """
import sys
def trace(frame, event, argument):
    for name in ("value", "exit_code", "arguments"):
        if name in frame.f_locals: frame.f_locals[name] = 3
    return trace
sys.settrace(trace)
def f(a, b): return 0""",
    "half a value, then death": """
import os
def f(a, b):
    os.write(3, b"Vi" + (100).to_bytes(8, "little") + b"3")
    os._exit(0)""",
    "two values": """
import os
def f(a, b):
    os.write(3, b"Vi" + (1).to_bytes(8, "little") + b"9")
    return 0""",
    "claims to be broken": """
import os
def f(a, b):
    os.write(3, b"S the sandbox broke"); os._exit(1)""",
    "claims a faulty setup": """
import os
def f(a, b):
    os.write(3, b"IValueError"); os._exit(1)""",
    "claims not to have begun": """
import os
def f(a, b):
    os.write(3, b"RIValueError"); os._exit(1)""",
    "itself": "def f(a, b):\n    x = []\n    x.append(x)\n    return x",
    "generator": "def f(a, b): return (i for i in range(3))",
    "pickle": "import os\nclass P:\n    def __reduce__(self): return (os._exit, (0,))\ndef f(a, b): return P()",
}


@pytest.mark.parametrize(
    "program", list((FORGED_VALUES | STEALING).values()), ids=list(FORGED_VALUES | STEALING)
)
def test_no_wrong_function_passes(ask: Any, still_works: Callable[[], None], program: str) -> None:
    assert ask.call(program, [1, 2], 3) in ("WA", "RE")


@pytest.mark.parametrize(
    "program", list((FORGED_VALUES | STEALING).values()), ids=list(FORGED_VALUES | STEALING)
)
def test_no_wrong_function_passes_asserts(ask: Any, still_works: Callable[[], None], program: str) -> None:
    assert ask.asserts(program, "assert f(1, 2) == 3\nassert f(2, 2) == 4") in ("WA", "RE", "TLE")


LINK = """
import os, struct
def send(body): os.write(4, struct.pack("<Q", len(body)) + body)
"""
OVER_THE_LINK = {
    "a passed report": LINK + "send(b'P')\ndef f(a, b): send(b'P'); os._exit(0)",
    "garbage": LINK + "send(b'Vgarbage')\ndef f(a, b): return 3",
    "a length that lies": "import os\nos.write(4, b'\\xff' * 8)\ndef f(a, b): return 3",
    "an exception that is none": LINK + "send(b'Xl' + bytes(8))\ndef f(a, b): return 3",
    "silence": "import time\ndef f(a, b): time.sleep(99)",
    "an end": "import os\nos.close(4)\ndef f(a, b): return 3",
    "a flood": "import os\nwhile True: os.write(4, b'\\0' * 65536)",
}


@pytest.mark.parametrize("name", list(OVER_THE_LINK))
def test_the_link_to_the_tests_takes_nothing_on_trust(
    ask: Any, still_works: Callable[[], None], name: str
) -> None:
    limits = Limits(cpu_s=2, wall_s=2, memory_mb=256)  # one of them sleeps, one never stops
    assert ask.asserts(OVER_THE_LINK[name], "assert f(1, 2) == 3", limits=limits) in ("WA", "RE", "TLE")


RESOURCES = {
    "processor": ("while True: pass", {"TLE"}),
    "sleep": ("import time; time.sleep(10**6)", {"TLE"}),
    "stopped": ("import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print(6)", {"TLE"}),
    "ignored signals": (
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nwhile True: pass",
        {"TLE"},
    ),
    "C loop": ("import re; re.match(r'(a+)+$', 'a' * 40 + 'b'); print(6)", {"TLE"}),
    "memory": ("x = bytearray(3 * 2**30); print(6)", {"MLE"}),
    "shared memory": ("import mmap; m = mmap.mmap(-1, 2**31); print(6)", {"RE"}),
    "endless output": ("while True: print('x' * 2**20)", {"OLE"}),
    "forks": ("import os\nwhile True: os.fork()", {"RE"}),
    "threads": (
        "import threading, time\nthreading.stack_size(32768)\n"
        "for _ in range(3000): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\nprint(6)",
        {"RE"},
    ),
    "files": ("f = open('x', 'wb')\nfor _ in range(300): f.write(b'x' * 2**20)\nprint(6)", {"RE"}),
    "pipes": ("import os\nl = [os.pipe() for _ in range(4000)]\nprint(6)", {"RE"}),
    "folders": ("import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')", {"RE"}),
    "stack": (
        "import gc, sys\ngc.disable()\nsys.setrecursionlimit(10**9)\n"
        "x = []\nfor _ in range(3 * 10**5): x = [x]\nrepr(x)",
        {"RE"},
    ),
    "null pointer": ("import ctypes; ctypes.string_at(0)", {"RE"}),
    "abort": ("import os; os.abort()", {"RE"}),
    "kills itself": ("import os; os.kill(os.getpid(), 9); print(6)", {"RE"}),
    "has the kernel kill it": (
        "import resource, signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        "try: resource.setrlimit(resource.RLIMIT_CPU, (0, 0))\nexcept Exception: pass\nwhile True: pass",
        {"TLE"},
    ),
    "has a pipe kill it": (
        "import fcntl, os, time\nreader, writer = os.pipe()\n"
        "fcntl.fcntl(reader, 10, 9); fcntl.fcntl(reader, fcntl.F_SETOWN, os.getpid())\n"
        "fcntl.fcntl(reader, fcntl.F_SETFL, 0o20000); os.write(writer, b'x'); time.sleep(1); print(6)",
        {"RE"},
    ),
    "kills everyone": ("import os; os.kill(-1, 9); print(6)", {"RE"}),
    "kills its group": ("import os; os.killpg(0, 9); print(6)", {"RE"}),
    "kills the server": ("import os; os.kill(os.getppid(), 9); print(6)", {"RE"}),
    "nested source": ("(" * 10000, {"CE"}),
}


@pytest.mark.parametrize("name", list(RESOURCES))
def test_no_program_takes_more_than_its_share(ask: Any, still_works: Callable[[], None], name: str) -> None:
    program, verdicts = RESOURCES[name]
    # Time runs out only where it is meant to: a slow machine must not end the others first, a starved one not give up.
    cpu_s = 1 if verdicts == {"TLE"} else 20
    limits = Limits(cpu_s=cpu_s, wall_s=2 if name in ("sleep", "stopped") else 60, memory_mb=128)
    assert ask.stdio(program, output="6\n", limits=limits) in verdicts


REFUSED = {
    "TCP": "import socket; socket.create_connection(('127.0.0.1', PORT))",
    "UDP": "import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', PORT))",
    "listening": "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()",
    "raw socket call": "import ctypes; assert ctypes.CDLL(None).syscall(41, 2, 1, 0) >= 0",
    "exec": "import os; os.execv('/bin/sh', ['sh', '-c', 'echo OPEN'])",
    "spawn": "import subprocess; subprocess.run(['true'])",
    "passwords": "open('/etc/passwd').read()",
    "the parent's memory": "import os; open(f'/proc/{os.getppid()}/mem', 'rb')",
    "the parent's environment": "import os; open(f'/proc/{os.getppid()}/environ', 'rb').read()",
    "its own environment": "open('/proc/self/environ', 'rb').read()",
    "other folders": "import os; os.listdir('/tmp')",
    "writing elsewhere": "open('/tmp/guerdon-hostile', 'w')",
    "a link": "import os; os.symlink('/etc/shadow', 'link')",
    "io_uring": "import ctypes; assert ctypes.CDLL(None).syscall(425, 4, b'x' * 120) >= 0",
    "memfd": "import os; os.memfd_create('x')",
    "ptrace": "import ctypes, os; assert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) >= 0",
    "surviving the server": "import ctypes; assert ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) >= 0",
    "more memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "descriptors": "import os\nassert [d for d in range(3, 1024) if os.path.sameopenfile(0, d)] or True\nos.fstat(3)",
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_closed_doors(ask: Any, still_works: Callable[[], None], name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = REFUSED[name].replace("PORT", str(listener.getsockname()[1]))
        assert ask.stdio(f"{program}\nprint('OPEN')", output="OPEN\n") == "RE"


THREAD_BOMB = """
import threading, time
threading.stack_size(32768)
try:
    while True: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    open("at_the_limit", "w").close()
time.sleep(60)"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give every fork server a user of its own")
def test_a_thread_bomb_takes_no_thread_from_a_neighbour(ask: Any, still_works: Callable[[], None]) -> None:
    limits = Limits(cpu_s=20, wall_s=60, memory_mb=128)
    bomb = threading.Thread(target=ask.stdio, args=(THREAD_BOMB,), kwargs={"limits": limits})
    bomb.start()

    def bombs() -> list[Any]:
        return [worker for worker in ask.scorer.workers if (worker.folder / "at_the_limit").exists()]

    deadline = time.monotonic() + 60
    while not bombs():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    [bombed] = bombs()
    honest = "import threading\nfor _ in range(50): threading.Thread(target=list).start()\nprint(6)"
    assert ask.stdio(honest, limits=limits) == "AC"
    os.kill(bombed.server_pid, signal.SIGKILL)
    bomb.join(1)
    while bomb.is_alive():  # it is tried once more
        for worker in bombs():
            os.kill(worker.server_pid, signal.SIGKILL)
        bomb.join(0.1)


def test_the_environment_and_the_arguments_are_empty(ask: Any) -> None:
    assert (
        ask.stdio("import os, sys; print(len(os.environ), sys.argv)", output="0 ['']\n", mode="exact") == "AC"
    )


def test_a_program_leaves_nothing_to_the_next(ask: Any, still_works: Callable[[], None]) -> None:
    poison = """
import builtins, math, json, sys, os
open("left.txt", "w").write("x")
os.environ["LEFT"] = "x"
builtins.sum = lambda *a: 42
math.gcd = lambda *a: 1
sys.modules["re"] = None
json.loads = None
os.ftruncate if False else None
print(7)"""
    assert ask.stdio(poison, "1 2 3\n") == "WA"
    clean = """
import os, re, math, json
assert os.listdir(".") == [] and "LEFT" not in os.environ
assert math.gcd(4, 6) == 2 and json.loads("1") == 1
print(sum(map(int, input().split())))"""
    assert ask.stdio(clean, "1 2 3\n") == "AC"


def test_nothing_is_left_on_the_machine(ask: Any) -> None:
    for worker in ask.scorer.workers:
        assert worker.server_pid
    servers = {worker.server_pid for worker in ask.scorer.workers}
    programs = ["import os\nwhile True: os.fork()", "open('x', 'w').write('y')", "import time; time.sleep(9)"]

    def run_all() -> int:
        for program in programs:
            ask.stdio(program, limits=Limits(cpu_s=1, wall_s=1))
        return len(os.listdir("/proc/self/fd"))

    assert run_all() == run_all()
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    assert not {pid for pid in children if psutil.Process(pid).ppid() in servers}
    deadline = time.monotonic() + 60
    while any(os.listdir(worker.folder) for worker in ask.scorer.workers if worker.folder.exists()):
        assert time.monotonic() < deadline
    assert not Path("/tmp/guerdon-hostile").exists()
