"""The transport benchmark runs: real processes, a real Redis, every kind of side. Its figures say nothing."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

#: Each way through a queue, and each protocol.
SIDES = ("guerdon queue", "raw streams", "raw pipelined", "guerdon http", "guerdon grpc", "grpc.aio models")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("peers.transport_runs")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_side_answers_and_is_measured(runs: Any) -> None:
    for side in SIDES:
        found = runs.run_pass(side, runs.Load(samples=3, in_flight=2, seconds=0.1), None)
        assert found.requests > 0
        assert len(found.latencies_ms) >= 5
        assert found.client_cpu_s > 0
        assert found.worker_cpu_s > 0
        assert (found.redis_cpu_s > 0) == (side in SIDES[:3])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_worker_loses_nothing(runs: Any) -> None:
    found = runs.run_kills("raw streams", 12, 1, None)
    assert (found.texts, found.unanswered, found.failed, found.never_run) == (12, 0, 0, 0)


def test_ratios_are_between_passes_of_the_same_turn(runs: Any) -> None:
    one = [runs.Pass(requests, 1.0, 0.5, 0.5, 0.0, [1.0, 3.0, 2.0], 0.0) for requests in (10, 20, 60)]
    other = [runs.Pass(requests, 1.0, 0.5, 0.5, 0.0, [4.0], 0.0) for requests in (10, 10, 20)]
    assert runs.ratio(one, other, lambda each: each.per_s) == 2.0
    found = runs.speed(one)
    assert (found.per_s, found.p50_ms, found.p99_ms) == (20.0, 2.0, 3.0)
    assert found.both_us == found.client_us + found.worker_us == 50_000.0


def test_an_unknown_side_is_refused() -> None:
    command = [sys.executable, str(BENCHMARKS / "transport.py"), "--only", "smoke signals"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "no such side: smoke signals" in refused.stderr
