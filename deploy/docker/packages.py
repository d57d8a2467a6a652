"""Which packages each target of the Dockerfile gets: python deploy/docker/packages.py [TARGET...] [--pip]

Followed through the requirements of what is installed in this environment: neither Docker nor network is needed.
With --pip, pip resolves each target anew, as the build of its image does, and installs nothing.
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
_INSTALLED = re.compile(
    r"^FROM build AS ([a-z-]+)-packages\nRUN install-guerdon '([^']+)'(?: torch)?$", re.MULTILINE
)


def targets() -> dict[str, str]:
    """The requirement of each target."""
    return dict(_INSTALLED.findall(DOCKERFILE.read_text()))


def packages(requirement: str) -> dict[str, str]:
    """Versions by name of everything that a requirement brings, from what is installed here.

    Raises:
        importlib.metadata.PackageNotFoundError: a package of it is not installed here.
    """
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
    command = [*pip, "--ignore-installed", "--report", "-", "-c", str(ROOT / "constraints.txt"), *local]
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
