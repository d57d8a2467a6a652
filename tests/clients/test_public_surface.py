"""`import guerdon`: what it offers, and that it stays light."""

import inspect
import json
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import guerdon
from guerdon import errors, types
from guerdon.blocking import Client
from guerdon.client import AsyncClient
from tests.waiting import PATIENCE_S


def test_everything_offered_is_there_and_sorted() -> None:
    assert guerdon.__all__ == sorted(set(guerdon.__all__))
    for name in guerdon.__all__:
        assert hasattr(guerdon, name), name


def test_every_error_is_offered() -> None:
    tree = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.GuerdonError)
    }
    assert tree <= set(guerdon.__all__)
    assert all(name in (errors.__doc__ or "") for name in tree)


def test_what_samples_and_results_are_made_of_is_offered() -> None:
    wire_only = {"Message", "ScoreRequest", "ScoreResponse", "GenerateRequest", "GenerateResponse"}
    wire_only |= {"IndexedResult", "IndexedGeneration", "VersionsRequest"}
    messages = {
        name
        for name, value in vars(types).items()
        if isinstance(value, type) and issubclass(value, types.Message)
    }
    assert messages - wire_only <= set(guerdon.__all__)


def test_both_clients_take_the_same_arguments() -> None:
    for name in (
        "score",
        "score_stream",
        "generate",
        "generate_stream",
        "update",
        "versions",
        "wait_for_version",
        "info",
        "ping",
    ):
        awaited, blocking = getattr(AsyncClient, name), getattr(Client, name)
        assert inspect.signature(awaited).parameters == inspect.signature(blocking).parameters, name
    assert inspect.signature(AsyncClient).parameters == inspect.signature(Client).parameters


#: What takes seconds to import, or is not installed beside the client.
_HEAVY = ["torch", "transformers", "vllm", "numpy", "fastapi", "trl", "datasets", "pyarrow", "pandas"]
_LIGHT = [
    "guerdon",
    "guerdon.testing",
    "guerdon.client",
    "guerdon.blocking",
    "guerdon.queue",
    "guerdon.codec",
    "guerdon.bulk_files",
    "guerdon.integrations.target",
    "guerdon.integrations.trl",
    "guerdon.integrations.verl",
    "guerdon.integrations.openrlhf",
    "guerdon.integrations.slime",
    "guerdon.integrations.verifiers",
    "guerdon.integrations.areal",
]


def test_importing_needs_no_ml_stack() -> None:
    loaded = _loaded_by(_LIGHT, [*_HEAVY, "guerdon_services", "guerdon_trainer"])
    assert loaded == {module: [] for module in _LIGHT}


def test_the_command_needs_no_ml_stack() -> None:
    # It loads the commands of the distributions that are installed, which put off what is heavy.
    assert _loaded_by(["guerdon.cli"], _HEAVY) == {"guerdon.cli": []}


def _loaded_by(modules: list[str], names: list[str]) -> dict[str, list[str]]:
    """Which of the named modules are there once each of `modules` has been imported, one after the other."""
    program = f"""
import importlib, json, sys
loaded = {{}}
for module in {modules}:
    importlib.import_module(module)
    loaded[module] = [name for name in {names} if name in sys.modules]
print(json.dumps(loaded))
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert finished.returncode == 0, finished.stderr
    return json.loads(finished.stdout)


def test_each_transport_is_imported_only_when_used() -> None:
    program = (
        "import sys, guerdon; print([name for name in ('grpc', 'httpx', 'redis') if name in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (finished.returncode, finished.stdout) == (0, "[]\n"), finished.stderr


def test_the_package_is_typed_and_has_a_command() -> None:
    assert guerdon.__file__ is not None
    assert inspect.getdoc(guerdon)
    assert "guerdon" in {script.name for script in entry_points(group="console_scripts")}


def test_the_example_in_the_docstring_runs(capsys: pytest.CaptureFixture[str]) -> None:
    from guerdon.testing import StubService

    lines = (guerdon.__doc__ or "").splitlines()
    example = "\n".join(line[4:] for line in lines if line.startswith("    "))
    with StubService(
        lambda sample: types.Result(status=types.Status.OK, value=1.0, reason="3/4 is 0.75")
    ) as stub:
        exec(example.replace("http://127.0.0.1:8101", stub.url), {})
        [request] = stub.requests
    assert capsys.readouterr().out == "1.0 3/4 is 0.75\n"
    assert isinstance(request, types.ScoreRequest)
    assert request.samples[0].response == r"So it is \boxed{3/4}."
