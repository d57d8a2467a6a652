"""What the README tells a newcomer to type does what it says."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from guerdon.supervisor import free_ports
from tests.waiting import PATIENCE_S, until

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def guerdon_up(folder: Path) -> Iterator[list[str]]:
    """The example's services on free ports, as `guerdon up` starts them; yields the URLs of math's three doors."""
    config = yaml.safe_load((ROOT / "examples/services.yaml").read_text())
    ports = iter(free_ports(2 * len(config["services"])))
    for service in config["services"].values():
        service |= {"http": f"127.0.0.1:{next(ports)}", "grpc": f"127.0.0.1:{next(ports)}"}
    file = folder / "services.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "guerdon", "up", str(file), "--logs", str(folder / "logs")]
    output = folder / "up.txt"
    with output.open("w") as stdout:
        process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.STDOUT, env=None)
    try:
        until(lambda: "grpc://" in output.read_text() or process.poll() is not None, said=output.read_text)
        text = output.read_text()
        redis = re.search(r"redis://\S+", text)
        assert redis, text
        math = config["services"]["math"]
        yield [f"http://{math['http']}", f"grpc://{math['grpc']}", redis[0]]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, output.read_text()


@pytest.mark.timeout(1200)
def test_a_math_answer_scores_the_same_through_all_three_doors(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    assert "guerdon up examples/services.yaml" in readme
    assert "examples/score_math.py" in readme
    with guerdon_up(tmp_path) as urls:
        script = [sys.executable, str(ROOT / "examples/score_math.py"), *urls]
        answer = subprocess.run(script, capture_output=True, text=True, timeout=PATIENCE_S)
        shell = [sys.executable, "-m", "guerdon", "score", "--url", urls[0]]
        wrong = subprocess.run(
            [*shell, "--response", r"\boxed{2/4}", "--reference", "0.75"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    assert len(lines) == 3
    assert len(set(lines)) == 1
    assert lines[0].startswith("ok 1.0 ")
    assert '"value": 0.0' in wrong.stdout
    assert wrong.returncode == 0


def test_the_readme_names_only_what_exists() -> None:
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)\)", readme)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
    targets = re.findall(r"^make ([a-z-]+)", readme, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)] == []
