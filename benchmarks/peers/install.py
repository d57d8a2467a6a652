"""Peers that are not installed with the rest: too heavy for the one file that is run, or at odds with our packages."""

import subprocess
import sys
from pathlib import Path

VERL_VERSION = "0.9.1"
_GRADER = "verl/utils/reward_score/math_reward.py"
_REQUIREMENTS = Path(__file__).parent / "requirements"


def verl_grader(folder: Path) -> Path | None:
    """verl's string grader under `folder`, downloaded when it is not there; None when that fails."""
    target = folder / f"verl-{VERL_VERSION}"
    grader = target / _GRADER
    if not grader.is_file():
        _install(target, f"verl=={VERL_VERSION}")
    return grader if grader.is_file() else None


def pinned(name: str, folder: Path) -> Path | None:
    """A folder under `folder` with all that `requirements/NAME.txt` pins; None when it cannot be had."""
    file, target = _REQUIREMENTS / f"{name}.txt", folder / name
    wanted, done = file.read_text(), target / "installed.txt"
    if not done.is_file() or done.read_text() != wanted:
        if not _install(target, "--upgrade", "--requirement", str(file)):
            return None
        done.write_text(wanted)
    return target


def _install(target: Path, *what: str) -> bool:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    command += ["--no-compile", "--target", str(target), *what]
    done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0
