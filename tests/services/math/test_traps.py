"""Answers that hang, bloat or execute elsewhere, asked of the real service over HTTP by 32 clients at once."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from guerdon import Client, Result, Sample, Status
from guerdon.services_file import ServicesConfig, process_specs, with_addresses
from guerdon.supervisor import Supervisor

CLIENTS = 32
#: Seconds that an answer may take once it has a worker; 32 of them share two cores, so the wait itself says little.
LIMIT_S = 1.0
MEMORY_MB = 512


@dataclass(frozen=True)
class Trap:
    """An answer and whether it is the reference."""

    reference: str
    answer: str
    right: bool = False


def nested(opening: str, depth: int, core: str = "1", closing: str = "}") -> str:
    return opening * depth + core + closing * depth


HANGING = [
    Trap("1000!", "1001!"),
    Trap("1", "2^{-2^{2^{2^{30}}}}"),
    Trap("65536", "2^{2^{2^{2^{16}}}}"),
    Trap("10^{1000}", "10^{1001}"),
    Trap("7", "4^{111111111111111111111111111111111/2222222222222}"),
    Trap("2^{100000}", "2^{100000}+1"),
    Trap("2^{100000}", "4^{50000}", right=True),
    Trap("9^{9^{9}}", "9^{9^{9}}+1"),
    Trap("9^{9^{9}}", "9^{9^{9}}", right=True),
    Trap("9^{9^{9}}", "3^{2\\cdot 9^{9}}", right=True),
    Trap("1", "9^9^9^9"),
    Trap("1", "\\sum_{k=1}^{10^{9}} \\frac{1}{k}"),
    Trap("1", "\\prod_{k=1}^{10^{7}} k"),
    Trap("1", "factorial(10**9)"),
    Trap("1", "((20!)!)!"),
    Trap("1", "\\log(10^{10^{10^{10}}})"),
    Trap("7", "\\sin(\\sin(\\exp(\\exp(\\exp(3)))+3))"),
    Trap("1", "\\int_0^{\\infty} \\frac{\\sin(x^3) e^{-x}}{1+x^5+\\sqrt{x}} dx"),
    Trap("1", "\\int_0^1 x^{x^{x^{x}}} dx"),
    Trap("1", "\\binom{10^{12}}{5\\cdot 10^{11}}"),
    Trap("0", "\\gcd(10^{100000}+1, 10^{99999}+7)"),
    Trap("x^2", "(x+1)^{10^{10}}"),
    Trap("(x+1)^{100}", "(1+x)^{100}", right=True),
    Trap("\\dfrac{5^{5^{5^{5^5}}-4}-5}{16}", "7"),
    Trap("x<2", "x^{10^{9}}<2"),
    Trap("\\{1,2\\}", "\\{" + ",".join(f"x_{n}^{{{n}}}" for n in range(400)) + "\\}"),
    Trap(
        ",".join(f"{n}x" for n in range(300)), ",".join(f"{n}x+0" for n in reversed(range(300))), right=True
    ),
]
BLOATED = [
    Trap("1", nested("(", 3000, closing=")"), right=True),
    Trap("1", nested("{", 3000), right=True),
    Trap("1", nested("[", 1000, closing="]")),
    Trap("1", "(1," * 4000 + "1" + ")" * 4000),
    Trap("1", nested("\\sin(", 1200, closing=")")),
    Trap("1", nested("\\sqrt{", 300)),
    Trap("1", nested("\\frac{1}{", 300)),
    Trap("1", "\\frac" * 9000),
    Trap("1", "-" * 40000 + "1", right=True),
    Trap("20000", "+".join(["1"] * 20000), right=True),
    Trap("1", "+".join(["1"] * 20000)),
    Trap("1", "1" * 45000),
    Trap("1" * 45000, "1" * 45000, right=True),
    Trap("1", "$" * 45000),
    Trap("1", "\u200b" * 45000),
    Trap("1", "\n" * 45000),
    Trap("1", "a " * 20000),
    Trap("1", "\\begin{pmatrix}" + "&".join(["1"] * 3000) + "\\end{pmatrix}"),
    Trap("1", "9" * 3000 + "^{" + "9" * 3000 + "}"),
]
EXECUTING = [
    Trap("7", "__import__('pathlib').Path('PWNED').touch()"),
    Trap("7", "exec('open(\\'PWNED\\',\\'w\\')')"),
    Trap("2\\pi", "2*\\pi+0*len(str(open('PWNED','w')))"),
    Trap("2\\pi", "\\pi if open('PWNED','w') else 1"),
    Trap("7", "\\immediate\\write18{touch PWNED}"),
    Trap("7", "[x for x in ().__class__.__base__.__subclasses__()]"),
    Trap("7", "__import__('os')._exit(0)"),
    Trap("7", "lambda: open('PWNED','w')"),
]
TRAPS = HANGING + BLOATED + EXECUTING


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a math service in a process of its own, with two workers."""
    folder = tmp_path_factory.mktemp("traps")
    settings = {"workers": 2, "memory_mb": MEMORY_MB, "time_limit_s": 5 * LIMIT_S}
    config = with_addresses(ServicesConfig.model_validate({"services": {"math": {"settings": settings}}}))
    specs = process_specs(config, "redis://127.0.0.1:1", folder)
    with Supervisor(specs) as supervisor:
        supervisor.wait_ready(60)
        yield f"http://{config.services['math'].http}"


def ask(url: str, trap: Trap) -> Result:
    with Client(url, service="math", timeout_s=120) as client:
        return client.score([Sample(response=f"\\boxed{{{trap.answer}}}", references=[trap.reference])])[0]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # ended between two looks, or a zombie
        return []


def processes() -> list[psutil.Process]:
    """The service and its workers."""
    [server] = [child for child in psutil.Process(os.getpid()).children() if "serve" in _words(child)]
    return [server, *server.children()]


@pytest.mark.slow
def test_every_trap_is_answered_under_load(service: str) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        results = list(clients.map(lambda trap: ask(service, trap), TRAPS * 3))
    for trap, result in zip(TRAPS * 3, results, strict=True):
        assert result.status is Status.OK, (trap.answer[:60], result)
        assert result.value == float(trap.right), (trap.reference[:60], trap.answer[:60], result.reason[:200])
    workers = [process for process in processes() if "guerdon_services.math.worker" in _words(process)]
    assert len(workers) == 2
    assert all(worker.memory_info().rss < MEMORY_MB * 2**20 for worker in workers)
    assert not any(Path(process.cwd(), "PWNED").exists() for process in processes())


@pytest.mark.slow
def test_each_trap_alone_takes_less_than_a_second(service: str) -> None:
    slowest = 0.0
    for trap in TRAPS:
        start = sum(sum(process.cpu_times()[:2]) for process in processes())
        assert ask(service, trap).status is Status.OK
        slowest = max(slowest, sum(sum(process.cpu_times()[:2]) for process in processes()) - start)
    assert slowest < LIMIT_S
