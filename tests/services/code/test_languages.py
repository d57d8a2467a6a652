"""C++ and JavaScript: verdicts, compilers as targets, exploits, what is left behind, and what is refused by name."""

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from guerdon.types import CodeTask, CodeTest, Compare, Limits, Result, Status
from guerdon.types import TestVerdict as OneVerdict
from guerdon_services.code.languages import LANGUAGES, named, native
from guerdon_services.code.languages.language import Language, Missing, Probe
from guerdon_services.code.languages.selftest import check
from guerdon_services.code.selftest import NotIsolated
from guerdon_services.code.service import CodeScorer, CodeSettings
from guerdon_services.code.supervision import RunLimits
from guerdon_services.code.worker import Worker

SHARED = Path(os.environ.get("GUERDON_SHARED", Path(__file__).parents[4] / "shared"))
MARKER = Path("/tmp/guerdon-language-marker")


def needs(ask: Any, language: str) -> None:
    """Skip where the machine lacks the language."""
    if f"{language} (" not in ask.scorer.details()["languages"]:
        pytest.skip(f"{language} is not on this machine")


def score(ask: Any, language: str, program: str, **more: Any) -> Result:
    """The result of one stdio test: three numbers in, 6 out."""
    needs(ask, named(language).name)
    tests = more.pop("tests", [CodeTest(input="1 2 3\n", output="6\n")])
    limits = more.pop("limits", Limits(cpu_s=20, wall_s=40, memory_mb=256, output_kb=1024))
    task = CodeTask(kind="stdio", language=language, tests=tests, limits=limits)
    return ask.task(program, task, **more)


def judged(ask: Any, language: str, program: str, **more: Any) -> OneVerdict:
    """The verdict of the one test."""
    result = score(ask, language, program, **more)
    assert result.verdict, result.reason
    return result.verdict.tests[0]


@pytest.fixture(autouse=True)
def marker() -> Iterator[None]:
    """No program may leave this file."""
    MARKER.unlink(missing_ok=True)
    yield
    assert not MARKER.exists()


ENDINGS = {
    "cpp": {
        "sum": ('int a, b, c; scanf("%d%d%d", &a, &b, &c); printf("%d\\n", a + b + c);', "AC"),
        "wrong": ('puts("7");', "WA"),
        "right, then an exit code": ('puts("6"); return 1;', "RE"),
        "the exit code that Python's runner uses": ("return 78;", "RE"),
        "null pointer": ("volatile int *p = nullptr; *p = 1;", "RE"),
        "exception": ("throw 1;", "RE"),
        "abort": ("abort();", "RE"),
        "32-bit call": ('long r; asm volatile("int $0x80" : "=a"(r) : "a"(20)); puts("6");', "RE"),
        "does not compile": ("int x = ;", "CE"),
        "too big a vector": ('std::vector<char> v(1ull << 33, 1); puts("6");', "MLE"),
        "memory bit by bit": ("for (;;) memset(malloc(1 << 20), 1, 1 << 20);", "MLE"),
        "too much output": ('for (;;) puts("xxxxxxxxxxxxxxxxxxxxxxxxxxx");', "OLE"),
        "big file": (
            'FILE *f = fopen("x", "w"); static char b[1 << 20];'
            'for (int i = 0; i < 50; ++i) fwrite(b, 1, sizeof b, f); puts("6");',
            "RE",
        ),
        "its own folder": (
            'FILE *f = fopen("x", "w+"); fputs("6", f); rewind(f); putchar(fgetc(f));',
            "AC",
        ),
        "standard input by name": (
            'FILE *f = fopen("/dev/stdin", "r"); int a, b, c;'
            'fscanf(f, "%d%d%d", &a, &b, &c); printf("%d", a + b + c);',
            "AC",
        ),
        "standard output by name": ('fputs("6", fopen("/dev/stdout", "w"));', "AC"),
        "threads": (
            "std::atomic<int> n{0}; std::vector<std::thread> t;"
            "for (int i = 0; i < 32; ++i) t.emplace_back([&] { ++n; });"
            'for (auto &each : t) each.join(); puts(n == 32 ? "6" : "7");',
            "AC",
        ),
        "no environment, no arguments": ('puts(*environ || argc != 1 ? "7" : "6");', "AC"),
    },
    "javascript": {
        "sum": (
            "const n = require('fs').readFileSync(0, 'utf8').split(' ').map(Number);"
            "console.log(n.reduce((a, b) => a + b))",
            "AC",
        ),
        "standard input by name": (
            "const n = require('fs').readFileSync('/dev/stdin', 'utf8').split(' ').map(Number);"
            "console.log(n.reduce((a, b) => a + b))",
            "AC",
        ),
        "standard output by name": ("require('fs').writeFileSync('/dev/stdout', '6')", "AC"),
        "lines": (
            "require('readline').createInterface({ input: process.stdin })"
            ".on('line', (l) => console.log(l.split(' ').map(Number).reduce((a, b) => a + b)))",
            "AC",
        ),
        "script": ("if (require.main === module) console.log(6)", "AC"),
        "deep recursion": (
            "function f(n) { return n ? f(n - 1) + 1 : 0 }\nconsole.log(f(50000) - 49994)",
            "AC",
        ),
        "thread": (
            "const { Worker } = require('worker_threads');"
            "new Worker('require(\"worker_threads\").parentPort.postMessage(6)', { eval: true })"
            ".on('message', (x) => console.log(x))",
            "AC",
        ),
        "no environment": ("console.log(Object.keys(process.env).length + 6)", "AC"),
        "its own folder": (
            "const fs = require('fs'); fs.writeFileSync('x', '6'); console.log(fs.readFileSync('x', 'utf8'))",
            "AC",
        ),
        "empty": ("", "WA"),
        "wrong": ("console.log(7)", "WA"),
        "right, then an exit code": ("console.log(6); process.exitCode = 1", "RE"),
        "the exit code that Python's runner uses": ("process.exit(78)", "RE"),
        "exception": ("null.x", "RE"),
        "rejection": ("Promise.reject(new Error('x'))", "RE"),
        "endless recursion": ("function f(n) { return f(n + 1) + 1 }\nf(0)", "RE"),
        "abort": ("process.abort()", "RE"),
        "does not parse": ("console.log(6", "CE"),
        "heap": ("const a = []; for (;;) a.push(new Array(1000).fill(1.5))", "MLE"),
        "buffers": ("const a = []; for (;;) a.push(Buffer.alloc(1 << 24, 1))", "MLE"),
        "too much output": ("for (;;) require('fs').writeSync(1, 'x'.repeat(65536))", "OLE"),
    },
}
HEADERS = """
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
"""


def whole(language: str, body: str) -> str:
    """The body of a program as a program."""
    library = "#include <atomic>\n#include <thread>\n#include <vector>\n" if "std::" in body else ""
    return f"{library}{HEADERS}int main(int argc, char **argv) {{ {body}\n}}" if language == "cpp" else body


def listed(table: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    return [(language, name) for language, rows in table.items() for name in rows]


@pytest.mark.parametrize(("language", "name"), listed(ENDINGS))
def test_every_ending_has_its_verdict(ask: Any, language: str, name: str) -> None:
    body, verdict = ENDINGS[language][name]
    assert judged(ask, language, whole(language, body)).verdict == verdict


ENDLESS = {
    "cpp": {
        "processor": "volatile int x = 0; for (;;) x = x + 1;",
        "sleep": "sleep(1000);",
        "stopped": 'raise(SIGSTOP); puts("6");',
        "ignored signals": "for (int n = 1; n < 65; ++n) signal(n, SIG_IGN); for (;;);",
        "longer limits": (
            "rlimit l{RLIM_INFINITY, RLIM_INFINITY}; setrlimit(RLIMIT_CPU, &l); signal(SIGXCPU, SIG_IGN); for (;;);"
        ),
        "has the kernel kill it": "rlimit l{0, 0}; setrlimit(RLIMIT_CPU, &l); for (;;);",
        "threads": "for (int i = 0; i < 8; ++i) std::thread([] { for (;;); }).detach(); for (;;);",
        "forks": "for (int i = 0; i < 9; ++i) fork(); sleep(20);",
    },
    "javascript": {
        "processor": "for (;;);",
        "sleep": "setTimeout(() => console.log(6), 1e6)",
        "stopped": "process.kill(process.pid, 'SIGSTOP'); console.log(6)",
        "compiled code": "/^(a+)+$/.test('a'.repeat(40) + 'b'); console.log(6)",
    },
}


@pytest.mark.parametrize(("language", "name"), listed(ENDLESS))
def test_time_runs_out(ask: Any, language: str, name: str) -> None:
    # Who uses the processor may have to wait for it: a starved machine must not give up first.
    wall_s = 2 if name in ("sleep", "stopped", "forks") else 20
    limits = Limits(cpu_s=1, wall_s=wall_s, memory_mb=512)
    assert judged(ask, language, whole(language, ENDLESS[language][name]), limits=limits).verdict == "TLE"


#: Each says OPEN when it came through.
CLOSED = {
    "cpp": {
        "a shell": 'char *a[] = {(char *)"sh", nullptr}; if (execv("/bin/sh", a) == 0) puts("OPEN");',
        "a shell, spawned": (
            'char *a[] = {(char *)"sh", nullptr}; pid_t p;'
            'if (posix_spawn(&p, "/bin/sh", nullptr, nullptr, a, environ) == 0) puts("OPEN");'
        ),
        "a shell, by system": 'if (system("true") == 0) puts("OPEN");',
        "itself": 'char *a[] = {nullptr}; if (argc && execv("/proc/self/exe", a) == 0) puts("OPEN");',
        "a descriptor, with any key": (
            'char *a[] = {nullptr}; int f = open("x", O_RDWR | O_CREAT, 0700);'
            "for (long key = -1000; key < 1000; ++key)"
            '  if (syscall(SYS_execveat, f, "", a, a, AT_EMPTY_PATH, key) == 0 || errno != EPERM) puts("OPEN");'
        ),
        "fork": 'if (fork() >= 0) puts("OPEN");',
        "vfork": 'if (vfork() >= 0) { puts("OPEN"); fflush(stdout); _exit(0); }',
        "clone": 'if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) >= 0) puts("OPEN");',
        "passwords": 'if (fopen("/etc/passwd", "r")) puts("OPEN");',
        "the parent's memory": (
            'char n[64]; sprintf(n, "/proc/%d/mem", getppid()); if (open(n, O_RDONLY) >= 0) puts("OPEN");'
        ),
        "the parent's environment": (
            'char n[64]; sprintf(n, "/proc/%d/environ", getppid()); if (open(n, O_RDONLY) >= 0) puts("OPEN");'
        ),
        "its own memory by name": 'if (open("/proc/self/mem", O_RDWR) >= 0) puts("OPEN");',
        "its own input, to write": (
            'int f = open("/proc/self/fd/0", O_RDWR); if (f >= 0 && write(f, "9", 1) == 1) puts("OPEN");'
        ),
        "its own image": (
            'int f = open("/proc/self/exe", O_RDWR); if (f >= 0 && write(f, "9", 1) == 1) puts("OPEN");'
        ),
        "TCP": 'if (socket(AF_INET, SOCK_STREAM, 0) >= 0) puts("OPEN");',
        "UDP": 'if (socket(AF_INET, SOCK_DGRAM, 0) >= 0) puts("OPEN");',
        "unix": 'if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0) puts("OPEN");',
        "writing elsewhere": 'if (fopen("/tmp/guerdon-language-marker", "w")) puts("OPEN");',
        "writing above": 'if (fopen("../../guerdon-language-marker", "w")) puts("OPEN");',
        "a link": 'if (symlink("/etc/shadow", "l") == 0 || link("/etc/passwd", "m") == 0) puts("OPEN");',
        "a folder": 'if (mkdir("d", 0700) == 0) puts("OPEN");',
        "everyone": 'if (kill(-1, 9) == 0 || kill(getppid(), 9) == 0 || kill(0, 9) == 0) puts("OPEN");',
        "itself, killed": 'if (kill(getpid(), 9) == 0 || raise(9) == 0) puts("OPEN");',
        "ptrace": 'if (ptrace(PTRACE_ATTACH, getppid(), 0, 0) == 0) puts("OPEN");',
        "memory of others": 'if (syscall(SYS_process_vm_readv, getppid(), 0, 0, 0, 0, 0) >= 0) puts("OPEN");',
        "memfd": 'if (syscall(SYS_memfd_create, "x", 0) >= 0) puts("OPEN");',
        "io_uring": 'char b[256] = {}; if (syscall(SYS_io_uring_setup, 4, b) >= 0) puts("OPEN");',
        "root": 'if (getuid() == 0 || setuid(0) == 0) puts("OPEN");',
        "mode": 'int f = open("x", O_RDWR | O_CREAT, 0600); if (fchmod(f, 04777) == 0) puts("OPEN");',
        "descriptors": 'for (int d = 3; d < 1024; ++d) if (fcntl(d, F_GETFD) >= 0) puts("OPEN");',
        "surviving the server": 'if (syscall(SYS_prctl, 1, 0, 0, 0, 0) == 0) puts("OPEN");',
        "more memory": 'rlimit l{RLIM_INFINITY, RLIM_INFINITY}; if (setrlimit(RLIMIT_AS, &l) == 0) puts("OPEN");',
    },
    "javascript": {
        "a shell": "if (!require('child_process').spawnSync('/bin/sh').error) console.log('OPEN')",
        "itself": "if (!require('child_process').spawnSync(process.execPath, ['-v']).error) console.log('OPEN')",
        "fork": (
            "const c = require('child_process').fork('program.js'); c.on('spawn', () => console.log('OPEN'));"
            "c.on('error', () => {})"
        ),
        "passwords": "require('fs').readFileSync('/etc/passwd'); console.log('OPEN')",
        "the parent's environment": (
            "require('fs').readFileSync(`/proc/${process.ppid}/environ`); console.log('OPEN')"
        ),
        "TCP": "require('net').connect(PORT, '127.0.0.1', () => console.log('OPEN')).on('error', () => {})",
        "UDP": "require('dgram').createSocket('udp4').bind(0, () => console.log('OPEN'))",
        "listening": "require('http').createServer().listen(0, () => console.log('OPEN'))",
        "writing elsewhere": "require('fs').writeFileSync('/tmp/guerdon-language-marker', ''); console.log('OPEN')",
        "its own source": "require('fs').appendFileSync(__filename, '//'); console.log('OPEN')",
        "everyone": "process.kill(-1, 9); console.log('OPEN')",
        "the server": "process.kill(process.ppid, 9); console.log('OPEN')",
        "itself, killed": "process.kill(process.pid, 9); console.log('OPEN')",
        "modules of others": "require('/usr/share/nodejs/undici'); console.log('OPEN')",
    },
}


@pytest.mark.parametrize(("language", "name"), listed(CLOSED))
def test_closed_doors(ask: Any, language: str, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        body = CLOSED[language][name].replace("PORT", str(listener.getsockname()[1]))
        tests = [CodeTest(input="1 2 3\n", output="OPEN\n")]
        assert judged(ask, language, whole(language, body), tests=tests).verdict in ("WA", "RE")


COMPILERS = {
    "a file by include": ("cpp", '#include "/etc/passwd"\nint main() {}'),
    "a secret by include": ("cpp", '#include "/etc/shadow"\nint main() {}'),
    "the environment by include": ("cpp", '#include "/proc/self/environ"\nint main() {}'),
    "the service's memory map": ("cpp", f'#include "/proc/{os.getpid()}/maps"\nint main() {{}}'),
    "a device that never ends": ("cpp", '#include "/dev/zero"\nint main() {}'),
    "random bytes": ("cpp", '#include "/dev/urandom"\nint main() {}'),
    "a file by the assembler": ("cpp", 'asm(".incbin \\"/etc/passwd\\"");\nint main() {}'),
    "a source by the assembler": ("cpp", 'asm(".include \\"/etc/passwd\\"");\nint main() {}'),
    "itself": ("cpp", "#include __FILE__\nint main() {}"),
    "macros": (
        "cpp",
        "#define A(x) x x x x x x x x x x\n#define B(x) A(A(A(A(x))))\nint main() { B(B(B(;))) }",
    ),
    "templates": (
        "cpp",
        "template <int n> struct X : X<n - 1>, X<n - 2> {};\ntemplate <int n> int f() { return f<n + 1>(); }\n"
        "int main() { return f<0>(); }",
    ),
    "constant evaluation": (
        "cpp",
        "constexpr int f() { int x = 0; for (long i = 0; i < (1l << 40); ++i) x ^= i; return x; }\n"
        "constexpr int v = f();\nint main() {}",
    ),
    "a big program": ("cpp", "char a[1u << 30] = {1};\nint main() {}"),
    "a big section": ("cpp", 'asm(".fill 2000000000, 1, 1");\nint main() {}'),
    "a long repetition": ("cpp", 'asm(".rept 100000000\\n nop\\n .endr");\nint main() {}'),
    "no entry": ("cpp", "int f() { return 1; }"),
    "nothing": ("cpp", ""),
    "errors without end": ("cpp", "int main() { " + "x = y; " * 100_000 + "}"),
    "nested brackets": ("javascript", "(" * 100_000),
    "no such syntax": ("javascript", "#include <cstdio>"),
}


@pytest.mark.parametrize("name", list(COMPILERS))
def test_what_does_not_build_is_a_compile_error_for_every_test(ask: Any, name: str) -> None:
    language, program = COMPILERS[name]
    tests = [CodeTest(input="1 2 3\n", output="6\n")] * 2
    result = score(ask, language, program, tests=tests)
    assert result.verdict, result.reason
    assert [test.verdict for test in result.verdict.tests] == ["CE", "CE"]
    message = result.verdict.tests[0].message or ""
    assert message
    assert "root:" not in message
    assert "PATH=" not in message


SLOW, HUNGRY = {"compile_cpu_s": 1.0}, {"compile_memory_mb": 96, "compile_cpu_s": 60.0}


@pytest.mark.parametrize(
    ("little", "limit"), [(SLOW, "processor time over"), (HUNGRY, "memory over")], ids=["time", "memory"]
)
def test_a_compiler_that_runs_into_a_limit_says_which(ask: Any, little: dict[str, Any], limit: str) -> None:
    """Each gets little of one thing only: which of two limits is met first depends on the machine."""
    needs(ask, "cpp")
    slow = "constexpr int f(int k) { int x = k; for (int i = 0; i < 250000; ++i) x ^= i; return x; }\n"
    slow += "".join(f"constexpr int v{k} = f({k});\n" for k in range(40)) + "int main() {}"
    hungry = (
        '#define A(x) x x x x x x x x x x\nconst char *s = A(A(A(A(A(A("'
        + "x" * 300
        + '"))))));\nint main() {}'
    )
    settings = {"workers": 1, "packages": (), "languages": ("cpp",), "compile_wall_s": 120.0}
    scorer = CodeScorer(CodeSettings.model_validate(settings | little))
    try:
        scorer.open()
        found = judged(type(ask)(scorer), "cpp", slow if little is SLOW else hungry)
    finally:
        scorer.close()
    assert found.verdict == "CE"
    assert f"the compiler: {limit}" in (found.message or ""), found.message


def test_what_a_program_leaves_is_gone_for_the_next(ask: Any) -> None:
    leave = 'fopen("left", "w"); fopen("program", "w"); fopen("program.cpp", "w"); puts("6");'
    look = 'puts(fopen("left", "r") || fopen("program", "r") || fopen("program.cpp", "r") ? "7" : "6");'
    tests = [CodeTest(input="1 2 3\n", output="6\n")] * 2
    for _ in ask.scorer.slots:
        assert judged(ask, "cpp", whole("cpp", leave)).verdict == "AC"
    found = score(ask, "cpp", whole("cpp", look + leave[: -len('puts("6");')]), tests=tests)
    assert found.verdict
    assert found.verdict.fraction == 1
    script = (
        "const fs = require('fs'); console.log(fs.readdirSync('.').join() === 'program.js' ? 6 : 7);"
        "fs.writeFileSync('node_modules', ''); fs.writeFileSync('package.json', '{\"type\": \"module\"}')"
    )
    found = score(ask, "javascript", script, tests=tests)
    assert found.verdict
    assert found.verdict.fraction == 1


def test_nothing_stays_on_the_machine(ask: Any) -> None:
    needs(ask, "cpp")
    programs = [
        ("cpp", whole("cpp", "for (;;) fork();")),
        (
            "cpp",
            whole("cpp", 'for (int i = 0; i < 9; ++i) std::thread([] { sleep(60); }).detach(); puts("6");'),
        ),
        ("cpp", '#include "/etc/passwd"'),
    ]
    limits = Limits(cpu_s=1, wall_s=1, memory_mb=256)

    def descriptors() -> int:
        for language, program in programs:
            judged(ask, language, program, limits=limits)
        return len(os.listdir("/proc/self/fd"))

    assert descriptors() == descriptors()
    servers = {slot.native.server_pid for slot in ask.scorer.slots} - {None}
    assert servers
    assert not [child for pid in servers for child in psutil.Process(pid).children(recursive=True)]
    deadline = time.monotonic() + 60
    while any(os.listdir(slot.native.scratch) for slot in ask.scorer.slots if slot.native.scratch):
        assert time.monotonic() < deadline


def test_a_killed_server_costs_no_verdict(ask: Any) -> None:
    needs(ask, "cpp")
    tests = [CodeTest(input="1 2 3\n", output="6\n")] * 3

    def kill() -> None:
        time.sleep(1)
        for slot in ask.scorer.slots:
            if slot.native.server_pid:
                psutil.Process(slot.native.server_pid).kill()

    thread = threading.Thread(target=kill)
    thread.start()
    result = score(ask, "cpp", whole("cpp", 'usleep(700000); puts("6");'), tests=tests)
    thread.join()
    assert result.verdict
    assert [test.verdict for test in result.verdict.tests] == ["AC", "AC", "AC"]


def test_a_checker_judges_what_a_program_in_another_language_prints(ask: Any) -> None:
    needs(ask, "cpp")
    task = CodeTask(
        kind="stdio",
        language="c++",
        tests=[CodeTest(input="1 2 3\n", output="6\n")],
        compare=Compare(mode="checker", checker="def check(given, got, expected): return int(got) == 6"),
    )
    result = ask.task(whole("cpp", 'puts("00006");'), task)
    assert result.value == 1


def test_the_last_block_in_the_language_is_the_program(ask: Any) -> None:
    program = whole("cpp", 'puts("6");')
    for tag in ("cpp", "C++", "cc"):
        response = f"```{tag}\n{program}\n```\nas in Python:\n```python\nprint(7)\n```\n"
        assert judged(ask, "cpp", response, extraction="last_block").verdict == "AC"
    response = "```python\nprint(7)\n```\n```js\nconsole.log(6)\n```\n```\n7\n```"
    assert judged(ask, "javascript", response, extraction="last_block").verdict == "AC"
    assert (
        judged(ask, "js", "```text\nno\n```\n```\nconsole.log(6)\n```", extraction="last_block").verdict
        == "AC"
    )


@pytest.mark.parametrize("kind", ["call", "assert", "unittest"])
def test_other_kinds_than_stdio_are_for_python(ask: Any, kind: Any) -> None:
    tests = [CodeTest(args=[1], expected=1, test="assert f(1) == 1")]
    result = ask.task("x", CodeTask(kind=kind, language="cpp", function="f", tests=tests))
    assert result.status is Status.INVALID_INPUT
    assert result.reason.startswith(f"code.kind: {kind!r} is for Python")


def test_set_up_code_is_for_python(ask: Any) -> None:
    tests = [CodeTest(input="", output="6")]
    result = ask.task("x", CodeTask(kind="stdio", language="cpp", setup="import os", tests=tests))
    assert result.status is Status.INVALID_INPUT
    assert result.reason.startswith("code.setup:")


def test_a_language_without_its_tool_is_refused_by_name(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    scorer = CodeScorer(CodeSettings(workers=1, packages=()))
    scorer.open()
    try:
        assert "cpp" not in scorer.details()["languages"]
        tests = [CodeTest(input="", output="6")]
        for language, tool in (("cpp", "g++"), ("js", "node")):
            result = type(ask)(scorer).task("x", CodeTask(kind="stdio", language=language, tests=tests))
            assert result.status is Status.INVALID_INPUT
            assert f"{tool} is not on this machine" in result.reason
    finally:
        scorer.close()
    with pytest.raises(Missing, match="cpp"):
        CodeScorer(CodeSettings(languages=("cpp",)))


def test_languages_can_be_switched_off_and_must_exist() -> None:
    found, missing = native.find_toolchains(())
    assert not found
    assert set(missing) == {"cpp", "javascript"}
    with pytest.raises(Missing, match="cobol"):
        native.find_toolchains(["cobol"])


def test_names_are_of_one_language_each() -> None:
    names = [name for language in LANGUAGES.values() for name in language.names]
    assert len(names) == len(set(names))
    assert named(" C++ ").name == "cpp"


def test_the_self_test_tells_a_wall_that_gives_way_from_a_tool_that_does_not_work(ask: Any) -> None:
    needs(ask, "cpp")
    toolchain = LANGUAGES["cpp"].find()  # type: ignore[misc]
    hostile = whole("cpp", 'puts("seccomp: fork"); puts("end");')
    harmless = whole("cpp", 'puts("6");')
    worker = Worker("host", [], "/tmp", 100, native.rooms({"cpp": toolchain}))

    def verify(probe: Probe) -> None:
        check(worker, Language("cpp", frozenset(), probe=probe), toolchain, "host")

    try:
        with pytest.raises(NotIsolated, match="seccomp: fork"):
            verify(Probe(hostile, harmless))
        with pytest.raises(NotIsolated, match="the compiler got through"):
            verify(Probe(hostile, harmless, (harmless,)))
        with pytest.raises(Missing, match="a harmless program could not run"):
            verify(Probe(hostile, hostile))
        verify(Probe(whole("cpp", 'puts("end");'), harmless))
    finally:
        worker.stop()


def test_a_program_as_big_as_memory_ran_out_of_it(ask: Any) -> None:
    program = "int a[1 << 28];\nint main() { return a[5]; }"
    assert judged(ask, "cpp", program).verdict == "MLE"
    assert judged(ask, "cpp", program, limits=Limits(cpu_s=20, wall_s=40, memory_mb=2048)).verdict == "WA"


def test_the_shared_rows_in_cpp(ask: Any) -> None:
    needs(ask, "cpp")
    folder = SHARED / "cases" / "code"
    if not folder.exists():
        pytest.skip(f"{folder} is not there: set GUERDON_SHARED")
    found = [
        json.loads(line)
        for name in ("benign", "hostile")
        for line in (folder / f"{name}.jsonl").read_text().splitlines()
    ]
    rows = [row for row in found if row["lang"] == "cpp"]
    assert rows

    def verify(row: dict[str, Any]) -> None:
        tests = [CodeTest(input=test["input"], output=test["output"]) for test in row["tests"]]
        limits = Limits(wall_s=float(row["limits"]["wall_s"]), memory_mb=row["limits"]["mem_mb"])
        result = score(ask, "cpp", row["code"], tests=tests, limits=limits)
        assert result.verdict, row["id"]
        verdicts = [test.verdict for test in result.verdict.tests]
        if "expected" in row:
            assert verdicts == row["expected"]["verdicts"], row["id"]
        else:
            assert not set(verdicts) & set(row["must_hold"]["verdict_not"]), row["id"]
            assert not any("root:" in (test.message or "") for test in result.verdict.tests)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(verify, rows))


def test_build_shares_one_limit_between_its_commands(ask: Any) -> None:
    needs(ask, "cpp")
    toolchain = LANGUAGES["cpp"].find()  # type: ignore[misc]
    worker = Worker("host", [], "/tmp", 1, native.rooms({"cpp": toolchain}))
    limits = RunLimits(cpu_s=20, wall_s=40, memory_mb=512, output_bytes=1 << 20)
    try:
        # Replaced after every run: but never between the commands of one build.
        built = native.build(worker, LANGUAGES["cpp"], toolchain, "int main() {}", limits)
        assert isinstance(built, native.Built)
        run, failure = native.run(worker, built, b"", limits)
        assert failure is None
        assert run.stdout == b""
        built.close()
    finally:
        worker.stop()
