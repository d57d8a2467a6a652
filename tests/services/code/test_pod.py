"""The code verifier as others run it: in profile pod behind a container runtime's walls, in profile host as a user.

Needs root, who alone can become somebody else. What a container denies is simulated: user nobody,
no-new-privileges, the default seccomp profile. Every row of the corpus with GUERDON_FULL=1, else a fixed sample.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guerdon_services.code import landlock

PROCESS = Path(__file__).with_name("pod_process.py")
SHARED = Path(os.environ.get("GUERDON_SHARED") or Path(__file__).parents[4] / "shared")
FULL = os.environ.get("GUERDON_FULL") == "1"
#: Of the corpus's rows one in so many.
SAMPLE = 12
NOBODY, SOMEBODY = 65534, 12345

#: (container, profile, user)
PLACES = {
    "pod": (True, "pod", NOBODY),
    "host as a user": (False, "host", SOMEBODY),
    "gvisor": (True, "gvisor", NOBODY),
}
WALLED = ["pod", "host as a user"]

pytestmark = [
    pytest.mark.timeout(1860 if FULL else 900),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
    pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock"),
]


def stdio(code: str, stdin: str = "1 2 3\n", output: str = "6\n") -> dict[str, Any]:
    return _sample(code, {"kind": "stdio", "tests": [{"input": stdin, "output": output}]})


def call(code: str) -> dict[str, Any]:
    return _sample(code, {"kind": "call", "function": "f", "tests": [{"args": [1, 2], "expected": 3}]})


def asserts(code: str) -> dict[str, Any]:
    return _sample(code, {"kind": "assert", "tests": [{"test": "assert f(1, 2) == 3"}]})


def _sample(code: str, task: dict[str, Any]) -> dict[str, Any]:
    # Time runs out only where it is meant to.
    limits = {"cpu_s": 1 if "while True: pass" in code else 20, "wall_s": 60, "memory_mb": 128}
    return {"response": code, "code": {**task, "limits": limits}}


SUM = "print(sum(map(int, input().split())))"
OWN: dict[str, tuple[dict[str, Any], set[str]]] = {
    "stdio": (stdio(SUM), {"AC"}),
    "call": (call("def f(a, b): return a + b"), {"AC"}),
    "assert": (asserts("def f(a, b): return a + b"), {"AC"}),
    "wrong": (stdio("print(7)"), {"WA"}),
    "numpy": (stdio("import numpy; print(numpy.arange(4).sum())"), {"AC"}),
    "its folder": (stdio("open('x', 'w').write('6'); print(open('x').read())"), {"AC"}),
    "a thread": (stdio("import threading; threading.Thread(target=print, args=(6,)).start()"), {"AC"}),
    "spins": (stdio("while True: pass"), {"TLE"}),
    "memory": (stdio("x = bytearray(2**30); print(6)"), {"MLE"}),
    "forks": (stdio("import os\nos.fork()\nprint(6)"), {"RE"}),
    "threads": (
        stdio(
            "import threading, time\nthreading.stack_size(32768)\n"
            "for _ in range(3000): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\nprint(6)"
        ),
        {"RE"},
    ),
    "executes": (stdio("import os; os.execv('/bin/echo', ['echo', '6'])"), {"RE"}),
    "connects": (stdio("import socket; socket.create_connection(('127.0.0.1', PORT)); print(6)"), {"RE"}),
    "sends UDP": (
        stdio("import socket; socket.socket(2, 2).sendto(b'x', ('127.0.0.1', PORT)); print(6)"),
        {"RE"},
    ),
    "reads passwords": (stdio("open('/etc/passwd').read(); print(6)"), {"RE"}),
    "reads its parent": (stdio("import os; open(f'/proc/{os.getppid()}/environ'); print(6)"), {"RE"}),
    "reads its parent's memory": (
        stdio("import os; open(f'/proc/{os.getppid()}/mem', 'rb'); print(6)"),
        {"RE"},
    ),
    "traces its parent": (
        stdio("import ctypes, os\nassert ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) >= 0\nprint(6)"),
        {"RE"},
    ),
    "kills its parent": (stdio("import os; os.kill(os.getppid(), 9); print(6)"), {"RE"}),
    "kills all of its user": (stdio("import os; os.kill(-1, 9); print(6)"), {"RE"}),
    "writes elsewhere": (stdio("open('/tmp/guerdon-pod', 'w'); print(6)"), {"RE"}),
    "equal to everything": (
        asserts("class E:\n    def __eq__(self, other): return True\ndef f(a, b): return E()"),
        {"WA"},
    ),
    "every descriptor": (
        call(
            "import os\nfor d in range(1, 256):\n    try: os.write(d, b'VT')\n    except OSError: pass\n"
            "def f(a, b): return None"
        ),
        {"WA", "RE"},
    ),
    "afterwards": (stdio(SUM), {"AC"}),
}
#: What differs in profile gvisor: nothing can be written, and what the user may read the program may.
WITHOUT_LANDLOCK = {
    "its folder": (OWN["its folder"][0], {"RE"}),
    "reads passwords": (OWN["reads passwords"][0], {"AC"}),
}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def run(place: str, samples: list[dict[str, Any]]) -> dict[str, Any]:
    """What the service at `place` answers; skips where this machine cannot simulate it."""
    container, profile, user = PLACES[place]
    work = {"user": user, "profile": profile, "container": container, "samples": samples}
    with tempfile.TemporaryDirectory(prefix="guerdon-pod-") as folder:
        os.chmod(folder, 0o755)
        scratch = Path(folder) / "scratch"
        scratch.mkdir()
        os.chown(scratch, user, user)
        process = subprocess.run(
            [sys.executable, str(PROCESS), str(scratch)],
            input=json.dumps(work),
            capture_output=True,
            text=True,
            timeout=1800 if FULL else 840,
            check=False,
        )
    assert process.stdout, process.stderr[-2000:]
    answer = json.loads(process.stdout)
    if "cannot" in answer:
        pytest.skip(f"cannot be simulated here: {answer['cannot']}")
    return answer


@pytest.mark.parametrize("place", list(PLACES))
def test_walls_hold_without_root(place: str, listener: socket.socket) -> None:
    port = str(listener.getsockname()[1])
    samples = json.loads(json.dumps([sample for sample, _ in OWN.values()]).replace("PORT", port))
    answer = run(place, samples)
    container, profile, user = PLACES[place]
    assert "refused" not in answer, answer
    own = OWN if place in WALLED else OWN | WITHOUT_LANDLOCK
    ends = zip(own.items(), answer["results"], strict=True)
    wrong = {name: result for (name, (_, verdicts)), result in ends if not set(result["verdicts"]) & verdicts}
    assert wrong == {}
    assert {result["profile"] for result in answer["results"]} == {profile}
    assert ("Landlock" in answer["layers"]) is (place in WALLED)
    assert answer["left"] == []
    assert not Path("/tmp/guerdon-pod").exists()
    with pytest.raises(BlockingIOError):
        listener.accept()
    facts = answer["facts"]
    assert (facts["user"], facts["groups"], facts["capabilities"]) == (user, [], 0)
    if container:
        # The simulation itself: what a pod cannot do must not have been possible.
        assert (facts["no_new_privileges"], facts["seccomp"]) == (1, 2)
        assert (facts["may_unshare"], facts["may_keyctl"]) == (False, False)
        assert "namespace" not in answer["layers"]


def rows(name: str) -> list[dict[str, Any]]:
    path = SHARED / "cases" / "code" / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there: set GUERDON_SHARED")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    found = [row for row in found if row["lang"] == "python"]
    return found if FULL else [row for row in found if zlib.crc32(row["id"].encode()) % SAMPLE == 1]


def text(row: dict[str, Any], name: str) -> str | None:
    parts = row.get(f"{name}_parts")
    return row.get(name) if parts is None else "".join(part * times for part, times in parts)


def sample(row: dict[str, Any], port: int) -> dict[str, Any]:
    code = (text(row, "code") or "").replace("{{PORT}}", str(port)).replace("{{ABSTRACT}}", "guerdon-pod")
    tests = [
        {"input": text(test, "input"), "output": text(test, "output")}
        | {key: test[key] for key in ("outputs", "args", "expected", "test") if key in test}
        for test in row["tests"]
    ]
    compare = {key: value for key, value in row["compare"].items() if key != "strict_bool"}
    task = {
        "kind": row["kind"],
        "function": row.get("fn"),
        "tests": tests,
        "compare": None if row["kind"] == "assert" else compare,
        "setup": row["tests"][0].get("setup"),
        "limits": {"wall_s": row["limits"]["wall_s"], "memory_mb": row["limits"]["mem_mb"]},
    }
    return {"response": code, "code": task}


def held(row: dict[str, Any], result: dict[str, Any]) -> bool:
    """Whether the row ended as its label says."""
    if "expected" in row:
        return result["verdicts"] == row["expected"]["verdicts"]
    hold, verdicts = row["must_hold"], set(result["verdicts"])
    wanted = hold.get("verdict_in")
    absent = not any(os.path.lexists(path) for path in hold.get("file_absent", []))
    return (
        bool(verdicts)
        and not verdicts & set(hold["verdict_not"])
        and absent
        and (not wanted or verdicts <= set(wanted))
    )


@pytest.mark.parametrize("place", WALLED)
def test_rows_of_the_corpus_end_as_labelled_without_root(place: str, listener: socket.socket) -> None:
    chosen = rows("benign") + rows("hostile")
    answer = run(place, [sample(row, listener.getsockname()[1]) for row in chosen])
    assert "refused" not in answer, answer
    assert chosen
    wrong = [
        (row["id"], result)
        for row, result in zip(chosen, answer["results"], strict=True)
        if not held(row, result)
    ]
    assert wrong == []
    with pytest.raises(BlockingIOError):
        listener.accept()
