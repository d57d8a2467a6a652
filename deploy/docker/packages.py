"""Which packages each target of the Dockerfile gets: python deploy/docker/packages.py [TARGET...] [--pip]

Followed through the requirements of what is installed in this environment: neither Docker nor network is needed. What
is never installed here, rollout with vLLM's CUDA build, is its lock. With --pip, pip resolves each target anew, as the
build of its image does, and installs nothing.
"""

import argparse
import json
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = Path(__file__).with_name("Dockerfile")
#: Distributions of this repository that services consist of.
OURS = ("guerdon", "guerdon-services")
#: The versions of each build: everything of ours goes well together but vLLM's CUDA build.
CONSTRAINTS = ROOT / "constraints.txt"
VLLM_LOCK = Path(__file__).with_name("constraints-vllm-cuda.txt")
_INSTALLED = re.compile(
    r"^FROM build AS ([a-z-]+)-packages\nRUN --mount=\S+ install-guerdon '([^']+)'(?: (torch|vllm))?$",
    re.MULTILINE,
)


def targets() -> dict[str, str]:
    """The requirement of each target; rollout has two, `rollout-cpu` and `rollout-cuda` (--build-arg TORCH)."""
    return {name: requirement for name, requirement, _ in _INSTALLED.findall(DOCKERFILE.read_text())}


def has_vllm(requirement: str) -> bool:
    """Whether vLLM is asked for, whose lock then holds every version."""
    return "vllm" in Requirement(requirement).extras


def locked() -> dict[str, str]:
    """Versions by name in the lock of vLLM's CUDA build."""
    lines = (line.partition(" ;")[0] for line in VLLM_LOCK.read_text().splitlines() if line[:1] not in "#")
    pins = (line.split("==") for line in lines)
    return {canonicalize_name(name): version.strip() for name, version in pins}


def packages(requirement: str) -> dict[str, str]:
    """Versions by name of everything that a requirement brings, from what is installed here or from vLLM's lock.

    Raises:
        importlib.metadata.PackageNotFoundError: a package of it is not installed here.
    """
    if has_vllm(requirement):
        return dict(sorted({**locked(), **{one: distribution(one).version for one in OURS}}.items()))
    found: dict[str, str] = {}
    waiting, met = [Requirement(requirement)], set[tuple[str, frozenset[str]]]()
    while waiting:
        wanted = waiting.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in met:
            continue
        met.add((name, extras))
        installed = distribution(wanted.name)
        found[name] = installed.version
        for text in installed.requires or []:
            needed = Requirement(text)
            # "" stands for what is needed without any extra.
            if needed.marker is None or any(needed.marker.evaluate({"extra": one}) for one in {"", *extras}):
                waiting.append(needed)
    return dict(sorted(found.items()))


def resolved(requirement: str) -> dict[str, str]:
    """The same by pip, which asks the registries.

    Raises:
        subprocess.CalledProcessError: there is no solution.
    """
    extras = Requirement(requirement)
    ours = {"guerdon-services": "services", "guerdon-trainer": "trainer"}[extras.name]
    local = [str(ROOT / "clients"), f"{ROOT / ours}[{','.join(sorted(extras.extras))}]"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-qq", "--dry-run"]
    constraints = VLLM_LOCK if has_vllm(requirement) else CONSTRAINTS
    command = [*pip, "--ignore-installed", "--report", "-", "-c", str(constraints), *local]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:  # torch's CPU build is not on PyPI
        command += ["--extra-index-url", "https://download.pytorch.org/whl/cpu"]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
    report = json.loads(result.stdout)
    found = {
        canonicalize_name(one["metadata"]["name"]): one["metadata"]["version"] for one in report["install"]
    }
    return dict(sorted(found.items()))


def main() -> None:
    """Print the list of each target asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", nargs="*", help="default: all")
    parser.add_argument("--pip", action="store_true", help="have pip resolve it; needs the registries")
    arguments = parser.parse_args()
    known = targets()
    for name in arguments.target or known:
        found = (resolved if arguments.pip else packages)(known[name])
        print(f"{name}: {known[name]}: {len(found)} packages")
        print("  " + " ".join(f"{package}=={version}" for package, version in found.items()))


if __name__ == "__main__":
    main()
