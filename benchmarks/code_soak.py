"""Many programs in a row against one code verifier: nothing may leak, and no verdict may differ.

    python benchmarks/code_soak.py [--programs 100000] [--every 5000] [--workers N] [--profile host] [--seconds S]

Right, wrong and hostile programs of every kind, in an order that a seed chooses, by as many threads as there are
workers. Every --every programs it waits until nothing runs and prints what there is: programs per second, processes
below this one, threads, open file descriptors (here, the most of a fork server), files in the fork servers' folders,
resident memory of this process and of the largest fork server, verdicts that are not as labelled.

It ends with status 1 when a verdict differed or something was left at the end; and when, compared with the first
report, anything but memory had grown at the last one, or memory by more than --memory-mb. With --seconds it ends
after the report that comes next, however many programs are left.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from guerdon.types import CodeTask, CodeTest, Limits, Sample
from guerdon_services.code.service import CodeOptions, CodeScorer, CodeSettings
from guerdon_services.runtime.scorer import ScoreJob

#: Time runs out only where it is meant to, even on a slow and busy machine.
_LIMITS = Limits(cpu_s=10, wall_s=60, memory_mb=128, output_kb=256)
_SHORT = Limits(cpu_s=0.05, wall_s=0.3, memory_mb=128, output_kb=256)
_NODE = Limits(cpu_s=20, wall_s=60, memory_mb=512)
_OPTIONS = CodeOptions(extraction="whole")


@dataclass(frozen=True)
class Program:
    """One program, what it may be judged as, and how often it comes up."""

    name: str
    code: str
    task: CodeTask
    verdicts: frozenset[str]
    weight: int = 10


def _stdio(
    name: str,
    code: str,
    verdicts: str,
    weight: int = 10,
    limits: Limits = _LIMITS,
    language: str = "python",
) -> Program:
    tests = [CodeTest(input="1 2 3\n", output="6\n")]
    task = CodeTask(kind="stdio", language=language, tests=tests, limits=limits)
    return Program(name, code, task, frozenset(verdicts.split()), weight)


def _call(name: str, code: str, verdicts: str, weight: int = 10) -> Program:
    tests = [CodeTest(args=[1, 2], expected=3)]
    return Program(
        name,
        code,
        CodeTask(kind="call", function="f", tests=tests, limits=_LIMITS),
        frozenset(verdicts.split()),
        weight,
    )


def _assert(name: str, code: str, verdicts: str, weight: int = 10, *, alone: bool = False) -> Program:
    """`alone`: not among the pure tests, which share a process."""
    tests = [CodeTest(test="import os\n" * alone + "assert f(1, 2) == 3\nassert f(2, 2) == 4")]
    return Program(
        name,
        code,
        CodeTask(kind="assert", tests=tests, limits=_LIMITS),
        frozenset(verdicts.split()),
        weight,
    )


_SUM = "print(sum(map(int, input().split())))"
_ADD = "def f(a, b): return a + b"
PROGRAMS = [
    _stdio("right", _SUM, "AC", 40),
    _call("right call", _ADD, "AC", 30),
    _assert("right assert", _ADD, "AC", 20),
    _assert("right assert alone", _ADD, "AC", 20, alone=True),
    _stdio("wrong", "print(7)", "WA"),
    _stdio("does not compile", "print(", "CE"),
    _stdio("raises", "1 / 0", "RE"),
    _call("wrong value", "def f(a, b): return True", "WA"),
    _assert("wrong assert", "def f(a, b): return 0", "WA"),
    _stdio("numpy", "import numpy\nprint(numpy.arange(4).sum())", "AC", 5),
    _stdio("files", "for n in range(40): open(f'f{n}', 'w').write('x' * 4096)\nprint(6)", "AC", 5),
    _stdio("threads", "import threading\nfor _ in range(20): threading.Thread(target=list).start()\nprint(6)", "AC", 5),
    _stdio("plants state", "import builtins, json\nbuiltins.sum = lambda *a: 6\nopen('json.py', 'w')\nprint(7)", "WA"),
    _stdio("memory", "x = bytearray(2**30)", "MLE"),
    _stdio("output", "while True: print('x' * 65536)", "OLE"),
    _stdio("spins", "while True: pass", "TLE", 2, _SHORT),
    _stdio("sleeps", "import time; time.sleep(60)", "TLE", 1, _SHORT),
    _stdio("stops itself", "import os; os.kill(os.getpid(), 19)", "TLE", 1, _SHORT),
    _stdio("forks", "import os\nwhile True: os.fork()", "RE"),
    _stdio("thread bomb", "import threading, time\nthreading.stack_size(32768)\nwhile True: threading.Thread("
           "target=time.sleep, args=(9,), daemon=True).start()", "RE", 1),
    _stdio("descriptors", "import os\nheld = [os.pipe() for _ in range(999)]", "RE"),
    _stdio("kills all", "import os; os.kill(-1, 9)", "RE"),
    _stdio("kills its server", "import os; os.kill(os.getppid(), 9)", "RE"),
    _stdio("socket", "import socket; socket.socket()", "RE"),
    _stdio("dies", "import os; os.abort()", "RE"),
    _stdio("crashes", "import ctypes; ctypes.string_at(0)", "RE"),
    _call("writes everywhere", "import os\nfor d in range(1, 99):\n    try: os.write(d, b'VT')\n"
          "    except OSError: pass\ndef f(a, b): return 3", "WA RE"),
    _call("exits", "import os\ndef f(a, b): os._exit(0)", "RE"),
    _call("itself", "def f(a, b):\n    x = []\n    x.append(x)\n    return x", "RE WA"),
    _assert("equal to everything", "class E:\n    def __eq__(s, o): return True\ndef f(a, b): return E()", "WA"),
    _assert("equal to everything, alone", "class E:\n    def __eq__(s, o): return True\ndef f(a, b): return E()", "WA",
            alone=True),
    _assert("leaves its tests", "import os\ndef f(a, b): os._exit(0)", "RE"),
]  # fmt: skip
#: Languages whose tools a machine may lack; compiling costs a thousand times what a small program does.
OTHERS = {
    "cpp": [
        _stdio("C++", '#include <cstdio>\nint main() { puts("6"); }', "AC", 1, language="cpp"),
        _stdio("C++ that does not compile", "int main() { return x; }", "CE", 1, language="cpp"),
        _stdio("C++ that spins", 'int main() { for (;;) asm(""); }', "TLE", 1, _SHORT, "cpp"),
    ],
    "javascript": [
        _stdio("JavaScript", "console.log(6)", "AC", 2, _NODE, "javascript"),
        _stdio("JavaScript that throws", "throw 6", "RE", 2, _NODE, "javascript"),
    ],
}


@dataclass(frozen=True)
class Figures:
    """What there is while nothing runs."""

    processes: int
    threads: int
    descriptors: int
    server_descriptors: int
    files: int
    rss_mb: float
    server_rss_mb: float

    @classmethod
    def now(cls, scratch: Path) -> "Figures":
        """Read them, once the fork servers have cleared up after the programs that answered last."""
        own = psutil.Process()
        servers = own.children()
        deadline = time.monotonic() + 10
        while _files(scratch) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)  # Then they close the last program's descriptors.
        return cls(
            processes=len(own.children(recursive=True)),
            threads=own.num_threads(),
            descriptors=own.num_fds(),
            server_descriptors=max((server.num_fds() for server in servers), default=0),
            files=_files(scratch),
            rss_mb=own.memory_info().rss / 2**20,
            server_rss_mb=max((server.memory_info().rss for server in servers), default=0) / 2**20,
        )

    def leaks(self, first: "Figures", memory_mb: float) -> list[str]:
        """What has grown since the first figures."""
        grown = [
            f"{name}: {getattr(first, name)}, now {getattr(self, name)}"
            for name in ("processes", "threads", "descriptors", "server_descriptors", "files")
            if getattr(self, name) > getattr(first, name)
        ]
        for name in ("rss_mb", "server_rss_mb"):
            before, now = getattr(first, name), getattr(self, name)
            if now > before + memory_mb:
                grown.append(f"{name}: {before:.1f}, now {now:.1f}")
        return grown


def _files(scratch: Path) -> int:
    """Whatever lies in the fork servers' own folders; a working folder serves again, and counts by what it holds."""
    found = (path.relative_to(scratch).parts[1:] for path in scratch.glob("*/**/*"))
    return sum(parts != ("run",) for parts in found)


def offered(scorer: CodeScorer) -> list[Program]:
    """The programs in languages that the verifier has here."""
    languages = scorer.details()["languages"]
    others = [programs for language, programs in OTHERS.items() if f"{language} (" in languages]
    return [*PROGRAMS, *(program for programs in others for program in programs)]


def stream(programs: list[Program], seed: int) -> Iterator[Program]:
    """Programs without end: each once, then each as often as its weight says."""
    chosen = random.Random(seed)
    yield from programs
    while True:
        yield from chosen.choices(programs, [program.weight for program in programs], k=100)


def soak(scorer: CodeScorer, scratch: Path, arguments: argparse.Namespace) -> int:
    """Run the programs and print the figures; returns how many things are wrong."""
    kinds = offered(scorer)
    print(f"{len(kinds)} kinds of programs; {', '.join(f'{k} {v}' for k, v in scorer.details().items())}")
    programs = stream(kinds, arguments.seed)
    mismatches: Counter[str] = Counter()
    first: Figures | None = None
    leaks: list[str] = []
    began = time.monotonic()
    done = 0
    print("programs    per s  processes  threads  fds  server fds  files  RSS MB  server RSS MB  mismatches")
    with ThreadPoolExecutor(scorer.batching.concurrency) as pool:
        _warm_up(scorer, pool)
        while done < arguments.programs and time.monotonic() - began < arguments.seconds:
            batch = [next(programs) for _ in range(min(arguments.every, arguments.programs - done))]
            started = time.monotonic()
            mismatches.update(
                problem for problem in pool.map(lambda one: _judged(scorer, one), batch) if problem
            )
            rate = len(batch) / (time.monotonic() - started)
            done += len(batch)
            for slot in scorer.slots:  # the process of pure tests is there or not as it comes
                slot.warm.replace()
                slot.warm.make_ready()
            figures = Figures.now(scratch)
            first = first or figures
            leaks = figures.leaks(first, arguments.memory_mb)
            print(
                f"{done:8}  {rate:7.1f}  {figures.processes:9}  {figures.threads:7}  {figures.descriptors:3}"
                f"  {figures.server_descriptors:10}  {figures.files:5}  {figures.rss_mb:6.1f}"
                f"  {figures.server_rss_mb:13.1f}  {mismatches.total():10}",
                flush=True,
            )
    for problem, count in mismatches.most_common():
        print(f"{count} times {problem}")
    for leak in leaks:
        print(f"leak: {leak}")
    return mismatches.total() + len(leaks)


def _warm_up(scorer: CodeScorer, pool: ThreadPoolExecutor) -> None:
    """Have every slot start all that it starts when first needed: what runs at once needs different ones."""
    compiled = any(program not in PROGRAMS for program in offered(scorer))
    for slot in scorer.slots:
        for worker in (slot.program, slot.tests):
            worker.make_ready()
            worker.fit("numpy").make_ready()
        slot.warm.make_ready()
        if compiled:
            slot.native.make_ready()
    slow = "import numpy, time\ntime.sleep(0.3)\n"
    programs = [
        _stdio("slow", slow + "print(6)", "AC"),
        _assert("slow assert", slow + _ADD, "AC", alone=True),
    ]
    programs += [program for program in offered(scorer) if program not in PROGRAMS]
    for program in programs:
        list(pool.map(lambda one: _judged(scorer, one), [program] * 3 * scorer.batching.concurrency))


def _judged(scorer: CodeScorer, program: Program) -> str | None:
    """What is wrong with the result, if anything is."""
    [result] = scorer.score([ScoreJob(Sample(response=program.code, code=program.task), _OPTIONS)])
    if result.verdict is None:
        return f"{program.name}: {result.status.value}: {result.reason}"
    verdict = result.verdict.tests[0]
    return (
        None
        if verdict.verdict in program.verdicts
        else f"{program.name}: {verdict.verdict}: {verdict.message}"
    )


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--programs", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=None, help="default: one per core")
    parser.add_argument("--profile", default="host")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--memory-mb", type=float, default=16.0, help="growth that counts as a leak")
    return parser.parse_args(arguments)


def main(arguments: argparse.Namespace) -> int:
    """Open a verifier, soak it, close it; returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="guerdon-soak-") as folder:
        os.chmod(folder, 0o711)
        scorer = CodeScorer(
            CodeSettings(profile=arguments.profile, workers=arguments.workers, scratch=folder)
        )
        scorer.open()
        try:
            wrong = soak(scorer, Path(folder), arguments)
        finally:
            scorer.close()
        left = [*Path(folder).iterdir(), *psutil.Process().children(recursive=True)]
    if left:
        print(f"left after the end: {left}")
    return int(bool(wrong or left))


if __name__ == "__main__":
    sys.exit(main(parse()))
