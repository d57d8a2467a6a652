"""Renders the chart and checks what comes out, offline: python deploy/checks/check.py [--write]

Helm renders each values file; the result must be what deploy/manifests holds (--write puts it there). Every object,
also those of further variants, is validated for several Kubernetes releases and scanned by checkov; values that people
set give valid objects or are refused (combinations.yaml); promtool, where it is to be had, parses rules and queries.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import Tools, fetch

DEPLOY = Path(__file__).resolve().parent.parent
CHART = DEPLOY / "helm/guerdon"
MANIFESTS = DEPLOY / "manifests"
CHECKS = DEPLOY / "checks"
#: What deploy/manifests holds, by values file.
PLAIN = ("cpu", "gpu", "verifiers-only")
#: And what is written there by hand.
WRITTEN = ("namespace", "files")
DIGEST = f"sha256:{'0' * 64}"
#: Rendered for the checks alone: the values file, and what is set beside it.
VARIANTS = {
    "hpa": ("gpu", "autoscaling=hpa"),
    "external": (
        "verifiers-only",
        "redis.enabled=false,redis.external.address=redis.example:6380,redis.external.tls=true,"
        "redis.external.cidr=10.0.0.5/32,redis.external.port=6380,tls.secret=guerdon-tls",
    ),
    "reference": (
        "cpu",
        "data.claim=models,services.reference_reward.enabled=true,services.reference_reward.network.store=true,"
        "networkPolicy.store.cidrs={10.0.0.0/8},networkPolicy.clientNamespaces={trainers},"
        "networkPolicy.otlp.namespace=tracing,image.pullSecrets={registry}",
    ),
    "secrets": (
        "verifiers-only",
        "services.code.secrets.token=code-token,services.code.secrets.queue=code-queue,redis.users={code on ~*}",
    ),
    "digests": ("verifiers-only", f"serviceDefaults.image.digest={DIGEST}"),
}


def main() -> int:
    """0 when all is well; each mistake is printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write deploy/manifests anew")
    write = parser.parse_args().write
    tools = fetch()
    with tempfile.TemporaryDirectory() as folder:
        rendered = Path(folder)
        for name in PLAIN:
            (rendered / f"{name}.yaml").write_text(render(tools, name))
        if write:
            for name in PLAIN:
                shutil.copy(rendered / f"{name}.yaml", MANIFESTS)
        passed = _same(rendered)
        for name, (values, settings) in VARIANTS.items():
            (rendered / f"{name}.yaml").write_text(render(tools, values, "--set", settings))
        for name in WRITTEN:
            shutil.copy(MANIFESTS / f"{name}.yaml", rendered)
        files = sorted(rendered.glob("*.yaml"))
        passed &= "@sha256:" in (rendered / "digests.yaml").read_text()
        passed &= all([_notes(tools, name, (rendered / f"{name}.yaml").read_text()) for name in PLAIN])
        passed &= all([_run(command) for command in _commands(tools, rendered, files)])
    return 0 if passed else 1


def render(tools: Tools, values: str, *options: str) -> str:
    """What helm makes of a values file, for release and namespace `guerdon`."""
    result = _helm(tools, "template", values, *options)
    if result.returncode:
        raise SystemExit(f"helm cannot render {values} {options}: {result.stderr}")
    return result.stdout


def _helm(tools: Tools, verb: str, values: str, *options: str) -> subprocess.CompletedProcess[str]:
    chosen = CHART / f"values-{values}.yaml"
    command = [tools.helm, verb, "guerdon", CHART, "-n", "guerdon", "-f", chosen, *options]
    return subprocess.run(command, capture_output=True, text=True)


def _same(rendered: Path) -> bool:
    stale = [
        name
        for name in PLAIN
        if not (kept := MANIFESTS / f"{name}.yaml").exists()
        or kept.read_text() != (rendered / f"{name}.yaml").read_text()
    ]
    if stale:
        print(
            f"deploy/manifests is not what the chart gives ({', '.join(stale)}): make manifests ARGS=--write"
        )
    return not stale


def _notes(tools: Tools, values: str, rendered: str) -> bool:
    """Whether what helm says after an install names only what there is: services by their address, jobs."""
    result = _helm(tools, "install", values, "--dry-run=client")
    _, _, notes = result.stdout.partition("NOTES:\n")
    named = re.findall(r"https?://([a-z0-9-]+)\.guerdon:|\bjob[/ ](guerdon-[a-z0-9-]+)", notes)
    unknown = [one for one in map("".join, named) if f"\n  name: {one}\n" not in rendered]
    if result.returncode or not named or unknown:
        print(f"the notes of {values} name {unknown or 'nothing'}: {result.stderr or notes}")
    return not result.returncode and bool(named) and not unknown


def _commands(tools: Tools, rendered: Path, files: list[Path]) -> list[list[str | Path]]:
    commands: list[list[str | Path]] = [
        [tools.helm, "lint", "--quiet", "--strict", CHART, "-f", CHART / f"values-{name}.yaml"]
        for name in PLAIN
    ]
    commands.append([tools.python, CHECKS / "validate.py", *files])
    commands.append([tools.python, CHECKS / "combinations.py", tools.helm, CHART])
    scan = [tools.checkov, "--directory", rendered, "--config-file", CHECKS / "checkov.yaml"]
    docker = [tools.checkov, "--directory", DEPLOY / "docker", "--config-file", CHECKS / "checkov.yaml"]
    commands.append([*scan, "--framework", "kubernetes"])
    commands.append([*docker, "--framework", "dockerfile"])
    if tools.promtool:
        commands.append([tools.promtool, "test", "rules", CHECKS / "alerts_test.yaml"])
        commands.append([tools.promtool, "check", "rules", CHART / "files/alerts.yaml", _queries(rendered)])
    else:
        print("promtool is not to be had here: the alert rules are not parsed")
    return commands


def _queries(folder: Path) -> Path:
    """The dashboards' queries as recording rules, for promtool to parse."""
    boards = [json.loads(path.read_text()) for path in (CHART / "files/dashboards").glob("*.json")]
    queries = [target["expr"] for board in boards for panel in board["panels"] for target in panel["targets"]]
    rules = [{"record": f"query_{index}", "expr": query} for index, query in enumerate(queries)]
    path = folder / "queries.rules"
    path.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    return path


def _run(command: list[str | Path]) -> bool:
    """Whether a command is content; what it says is shown in one line then, in full otherwise."""
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = result.stdout if result.returncode else " ".join(result.stdout.split()) or "nothing to say"
    print(f"{Path(command[0]).name}: {said}", flush=True)
    return result.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
