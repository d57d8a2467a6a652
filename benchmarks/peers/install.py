"""Peers too heavy to install: fetched without their dependencies, for the one file that is run."""

import subprocess
import sys
from pathlib import Path

VERL_VERSION = "0.9.1"
_GRADER = "verl/utils/reward_score/math_reward.py"


def verl_grader(folder: Path) -> Path | None:
    """verl's string grader under `folder`, downloaded when it is not there; None when that fails."""
    target = folder / f"verl-{VERL_VERSION}"
    grader = target / _GRADER
    if not grader.is_file():
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            "--no-deps",
        ]
        command += ["--no-compile", "--target", str(target), f"verl=={VERL_VERSION}"]
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return grader if grader.is_file() else None
