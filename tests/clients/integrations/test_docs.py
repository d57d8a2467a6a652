"""The pages say what is there, their one lines among it, and the examples run."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from guerdon.rewards import parts_from_yaml
from guerdon.testing import StubService
from guerdon.types import ScoreRequest
from guerdon_services.compat import nemo_gym, openrlhf, roll, slime
from tests.waiting import until

REPOSITORY = Path(__file__).parents[3]
DOCS = REPOSITORY / "docs" / "integrations"
EXAMPLES = REPOSITORY / "examples" / "integrations"
HANG_S = 1000.0
INDEX = (DOCS / "README.md").read_text()


def rows(header: str) -> list[list[str]]:
    """The cells of the table that begins with a header."""
    lines = INDEX.split(f"| {header} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_page_begins_with_the_one_line_of_the_index() -> None:
    pages = set[str]()
    for _, line, page in rows("trainer | the one line"):
        [file] = re.findall(r"\((\w+\.md)\)", page)
        text = (DOCS / file).read_text()
        first_block = text.split("```")[1]
        assert line.strip("`") in first_block, file
        pages.add(file)
    assert pages == {file.name for file in DOCS.glob("*.md")} - {"README.md"}


def test_every_row_of_failures_has_a_test() -> None:
    tests = {
        "TRL": ("test_trl", "test_a_failure_is_none"),
        "verl": ("test_verl", "test_a_failure_is_raised"),
        "OpenRLHF, URL": ("compat", "test_a_failure_is_a_status_and_no_number"),
        "OpenRLHF, file": ("test_openrlhf", "test_a_failure_is_raised_and_logged_as_an_error"),
        "slime, group": ("test_slime", "test_a_failure_in_a_group_is_removed_and_leaves_the_baseline"),
        "slime, single": ("test_slime", "test_without_a_group_a_failure_is_raised"),
        "slime, URL": ("compat", "test_a_failure_is_a_status_and_no_number"),
        "verifiers": ("test_verifiers", "test_a_failure_is_raised"),
        "NeMo Gym, server": ("test_nemo_gym", "test_a_failure_is_gyms_own"),
        "NeMo Gym, URL": ("compat", "test_a_failure_is_a_status_and_no_number"),
        "NeMo RL": ("test_nemo_rl", "test_a_failure_is_raised"),
        "SkyRL": ("test_skyrl", "test_a_failure_is_raised"),
        "AReaL": ("test_areal", "test_a_failure_is_raised"),
        "ROLL": ("compat", "test_roll_tries_again_for_as_long_as_it_is_asked"),
    }
    assert [row[0] for row in rows("trainer | timeout")] == list(tests)
    for file, name in tests.values():
        here = Path(__file__).parent
        path = (
            REPOSITORY / "tests/services/compat/test_routes.py" if file == "compat" else here / f"{file}.py"
        )
        assert f"def {name}(" in path.read_text()


def test_every_variable_is_read() -> None:
    source = "".join(file.read_text() for file in (REPOSITORY / "clients/guerdon/integrations").glob("*.py"))
    for [name, *_] in rows("variable | meaning"):
        for variable in re.findall(r"GUERDON_\w+", name):
            assert f'"{variable}"' in source or f"{variable}" in source, variable
    assert set(re.findall(r'"(GUERDON_\w+)"', source)) <= set(re.findall(r"GUERDON_\w+", INDEX))


def test_the_routes_are_named() -> None:
    text = "".join(file.read_text() for file in DOCS.glob("*.md"))
    for module in (openrlhf, slime, nemo_gym, roll):
        assert module.__file__ is not None
        [path, *_] = re.findall(r'routes\.add\(router, "(/\w+)"', Path(module.__file__).read_text())
        assert path in text


def test_the_mixes_are_mixes(tmp_path: Path) -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", (DOCS / "python.md").read_text(), re.DOTALL)
    file = tmp_path / "rewards.yaml"
    file.write_text(block)
    for one in (file, EXAMPLES / "rewards.yaml"):
        format, right = parts_from_yaml(one)
        assert (format.gate, right.counts_as) == (1.0, {"timeout": 0.0})
        assert yaml.safe_load(one.read_text())["rewards"][0]["options"]["rules"][0]["tags"] == [
            "think",
            "answer",
        ]


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "GUERDON_RETRIES": "0"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def served_math(folder: Path) -> subprocess.Popen[bytes]:
    """A math service as a process of its own."""
    command = [sys.executable, "-m", "guerdon", "serve", "math", "workers=1", "--http", "127.0.0.1:0"]
    return subprocess.Popen(
        [*command, "--ready-file", str(folder / "ready.json")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_trainers_question_is_answered_by_a_math_service(tmp_path: Path) -> None:
    child = served_math(tmp_path)
    try:
        ready = tmp_path / "ready.json"
        until(lambda: ready.exists() or child.poll() is not None, patience_s=HANG_S)
        lines = run(
            EXAMPLES / "every_trainer.py", json.loads(ready.read_text())["http"], cwd=tmp_path
        ).splitlines()
    finally:
        child.terminate()
        child.wait(HANG_S)
    assert {line[:14].strip(): line[14:].strip() for line in lines} == dict.fromkeys(
        ["TRL", "verl", "slime", "verifiers", "AReaL", "OpenRLHF", "slime by URL", "NeMo Gym", "ROLL"], "1.0"
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_run_of_trl(tmp_path: Path, tiny_llama: Path) -> None:
    with StubService(lambda sample: float(len(sample.response or "") % 2)) as stub:
        lines = run(EXAMPLES / "trl_grpo.py", stub.url, tiny_llama, "2", cwd=tmp_path).splitlines()
        samples = [
            s for request in stub.requests if isinstance(request, ScoreRequest) for s in request.samples
        ]
    # Step, mean reward, share without.
    steps = [line.split() for line in lines if line[0].isdigit() and len(line.split()) == 3]
    assert [(step, without) for step, _, without in steps] == [("1", "0.0"), ("2", "0.0")]
    assert len(samples) == 8
    assert all(sample.references and sample.prompt for sample in samples)
