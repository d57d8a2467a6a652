"""Renders the values of combinations.yaml: each must give valid objects, or be refused, in the words that stand there.

And a release of the values file alone can be upgraded to each, but for the changes that a case names.

Run by the tools' Python: combinations.py HELM CHART
"""

import functools
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import relations
import upgrades
import validate
import yaml

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def main(helm: str, chart: str) -> int:
    """Print each mistake; 1 when there is one."""

    def check(case: dict[str, Any]) -> list[str]:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as values:
            yaml.safe_dump(case.get("set", {}), values)
            values.flush()
            return _mistakes(case, [helm, "template", "{release}", chart], values.name, Path(chart))

    cases = [*CASES["works"], *({"values": "verifiers-only", **case} for case in CASES["wrong"])]
    with ThreadPoolExecutor(2) as threads:
        found = [one for mistakes in threads.map(check, cases) for one in mistakes]
    works, wrong = len(CASES["works"]), len(CASES["wrong"])
    print("\n".join(found) or f"{works} sets of values give valid objects, {wrong} are refused by name")
    return 1 if found else 0


def _mistakes(case: dict[str, Any], command: list[str], values: str, chart: Path) -> list[str]:
    namespace = case.get("namespace", "guerdon")
    name = case.get("name") or f"{case.get('set', '')} {case.get('release', '')}"
    items: list[dict[str, Any]] = []
    rendered = ""
    for release in (case.get("release", "guerdon"), case.get("beside")):
        if release is None:
            continue
        words = [word.format(release=release) for word in command]
        files = ["-f", str(chart / f"values-{case['values']}.yaml"), "-f", values]
        result = subprocess.run([*words, "-n", namespace, *files], capture_output=True, text=True)
        if "refused" in case:
            if result.returncode and case["refused"] in result.stderr:
                return []
            said = result.stderr.strip() or "nothing"
            return [f"{name}: not refused by {case['refused']!r}, helm said: {said}"]
        if result.returncode:
            return [f"{name}: {result.stderr.strip()}"]
        rendered += result.stdout
        items += list(yaml.load_all(result.stdout, yaml.CSafeLoader))
    wrong = [f"nothing shows {text!r}" for text in case.get("shows", []) if text not in rendered]
    wrong += [one for item in items for one in validate.mistakes(item, validate.VERSIONS[:1])]
    wrong += (
        _upgrade(case, command, chart, items) if not {"release", "namespace", "beside"} & case.keys() else []
    )
    return [f"{name}: {one}" for one in (*wrong, *relations.mistakes(items, namespace))]


def _upgrade(case: dict[str, Any], command: list[str], chart: Path, after: list[dict[str, Any]]) -> list[str]:
    """What is refused when a release of the values file gets the values of the case, and is not named there."""
    found = set(upgrades.refused(_release(tuple(command), chart / f"values-{case['values']}.yaml"), after))
    named = {text for text in case.get("anew", []) if any(text in one for one in found)}
    unexpected = [one for one in found if not any(text in one for text in named)]
    return [*unexpected, *(f"nothing refuses {text!r}" for text in set(case.get("anew", [])) - named)]


@functools.cache
def _release(command: tuple[str, ...], values: Path) -> list[dict[str, Any]]:
    words = [word.format(release="guerdon") for word in command]
    result = subprocess.run([*words, "-n", "guerdon", "-f", values], capture_output=True, check=True)
    return list(yaml.load_all(result.stdout, yaml.CSafeLoader))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
