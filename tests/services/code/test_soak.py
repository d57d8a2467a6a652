"""A few hundred programs of every sort in a row leave nothing behind and are judged as ever."""

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[3] / "benchmarks/code_soak.py"


@pytest.mark.timeout(900)
def test_a_short_soak_finds_neither_leak_nor_mismatch() -> None:
    command = [sys.executable, str(SOAK), "--programs", "300", "--every", "100", "--workers", "2"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1].split()[0] == "300"
