"""What the Dockerfile puts into each image, without Docker: the closure of each requirement as installed here."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pods
import pytest
import yaml

from guerdon_trainer.config import load_recipe

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy/docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
VERIFIERS = ("math", "rules", "code")
ML = {"torch", "transformers", "vllm", "triton", "safetensors", "tokenizers"}


def load() -> Any:
    spec = importlib.util.spec_from_file_location("packages", DOCKER / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


packages = load()
TARGETS: dict[str, str] = packages.targets()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line.split(" ;")[0].split("==") for line in lines if line and not line.startswith("#")]
    return {name.lower().replace("_", "-"): version for name, version in pins}


@pytest.mark.parametrize("target", VERIFIERS)
def test_no_verifier_brings_an_ml_stack(target: str) -> None:
    assert not ML & set(packages.packages(TARGETS[target]))


@pytest.mark.parametrize("target", TARGETS)
def test_every_package_is_pinned(target: str) -> None:
    pins = pinned()
    found = packages.packages(TARGETS[target])
    ours = {"guerdon", "guerdon-services", "guerdon-trainer"}
    assert not {name for name in found if name not in pins} - ours
    assert "guerdon" in found


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in (*VERIFIERS, "trainer")])
def test_services_with_a_model_bring_torch_and_no_trainer(target: str) -> None:
    found = set(packages.packages(TARGETS[target]))
    assert {"torch", "transformers"} <= found
    assert "guerdon-trainer" not in found


def test_every_image_of_the_manifests_and_of_compose_is_a_target() -> None:
    stages = set(re.findall(r"^FROM \S+ AS ([a-z-]+)$", DOCKERFILE, re.MULTILINE))
    assert set(TARGETS) <= stages
    images = {
        match[1]
        for name in ("cpu", "gpu", "verifiers-only")
        for match in re.finditer(
            r"image: \S+/guerdon-([a-z-]+):\d\S*$", (pods.MANIFESTS / f"{name}.yaml").read_text(), re.M
        )
    }
    assert images <= set(TARGETS)
    built = {one["build"]["target"] for one in COMPOSE["services"].values() if "build" in one}
    assert built <= set(TARGETS)


def test_every_final_stage_runs_as_nobody_in_particular() -> None:
    for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE):
        users = re.findall(r"^USER (\S+)$", stage, re.MULTILINE)
        assert not users or users[-1] == "10001:10001"


def test_compose_takes_as_much_away_as_the_manifests() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "mem_limit" in service, name
        # Doors are for this host alone.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name


@pytest.mark.parametrize(
    "name", [name for name, one in COMPOSE["services"].items() if one["command"][:2] == ["guerdon", "serve"]]
)
def test_the_service_understands_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = COMPOSE["services"][name]
    environment = {key: re.sub(r"\$\{[^}]*\}", "x", value) for key, value in one["environment"].items()}
    service, settings = pods.served(one["command"], environment, monkeypatch)
    assert service.name == name
    # What the images' health check asks.
    assert settings.http.port == 8101
    assert float(one["stop_grace_period"].removesuffix("s")) >= settings.drain_s + 10
    for port in one.get("ports", []):
        assert int(port.rpartition(":")[2]) in (settings.http.port, settings.grpc.port)


def test_the_trainer_understands_its_command() -> None:
    recipe, *overrides = COMPOSE["services"]["trainer"]["command"][2:]
    config = load_recipe(recipe, overrides)
    assert set(config.sources) <= set(COMPOSE["services"])
