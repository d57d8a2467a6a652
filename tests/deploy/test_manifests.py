"""What every manifest promises, and that the real command lines understand each container's arguments."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pods
import pytest
import yaml
from torch.distributed.run import get_args_parser

from guerdon_trainer.config import load_recipe

MANIFESTS = ("cpu", "gpu", "verifiers-only")
WORKLOADS = [
    pytest.param(name, component, id=f"{name}-{component}")
    for name in MANIFESTS
    for component in pods.workloads(pods.objects(name))
]
SERVICES = [one for one in WORKLOADS if one.values[1] not in ("redis", "trainer")]


def template(manifest: str, component: str) -> dict[str, Any]:
    return pods.workloads(pods.objects(manifest))[component]["spec"]


def option(arguments: list[str], name: str) -> str:
    return next(one.split("=", 1)[1] for one in arguments if one.startswith(f"--{name}="))


@pytest.mark.parametrize(("manifest", "component"), WORKLOADS)
def test_pods_keep_to_the_restricted_profile(manifest: str, component: str) -> None:
    spec = template(manifest, component)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    allowed = {"configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    assert all(set(volume) - {"name"} <= allowed for volume in spec.get("volumes", []))
    for container in (*spec["containers"], *spec.get("initContainers", [])):
        context = container["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert {"cpu", "memory"} <= set(container["resources"]["limits"])


@pytest.mark.parametrize(("manifest", "component"), SERVICES)
def test_the_service_understands_its_arguments(
    manifest: str, component: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsed by `guerdon serve` itself, up to the point where the service would open."""
    spec = template(manifest, component)
    [container] = spec["containers"]
    (tmp_path / "token").write_text(pods.TOKEN)
    words = [one.replace("/etc/guerdon/token", str(tmp_path)) for one in container["args"]]
    environment = {"GUERDON_QUEUE_URL": "redis://:x@guerdon-redis:6379/0"}
    service, settings = pods.served(words, environment, monkeypatch)
    assert service.name == component
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings.http is not None
    assert settings.grpc is not None
    assert {"http": settings.http.port, "grpc": settings.grpc.port} == ports
    assert settings.queue == environment["GUERDON_QUEUE_URL"]
    # What was admitted is finished before the kubelet loses patience.
    assert spec["terminationGracePeriodSeconds"] >= settings.drain_delay_s + settings.drain_s + 10
    startup = container["startupProbe"]
    assert startup["httpGet"]["path"] == container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    # A pod is restarted by its own watchdog before a probe could.
    assert settings.exit_when_stuck


@pytest.mark.parametrize("manifest", ["cpu", "gpu"])
def test_the_trainer_understands_its_arguments(manifest: str, tmp_path: Path) -> None:
    words = template(manifest, "trainer")["containers"][0]["args"]
    recipe, *overrides = words[words.index("train") + 1 :]
    for item in pods.objects(manifest):
        if item["kind"] == "ConfigMap" and item["metadata"]["name"] == "guerdon-recipes":
            for name, text in item["data"].items():
                (tmp_path / name).write_text(text)
    config = load_recipe(recipe.replace("/etc/guerdon/recipes", str(tmp_path)), overrides)
    # No pod reaches a model hub.
    for named in (getattr(config.policy, "path", None), config.data.name, config.eval_data.name):
        assert named is None or str(named).startswith("/data/"), named
    # Every service that the recipe asks is in the manifest, and learner, policy and trainer mean the same folders.
    assert set(config.sources) <= set(pods.workloads(pods.objects(manifest)))
    arguments = {
        component: template(manifest, component)["containers"][0]["args"]
        for component in ("process_reward", "rollout")
    }
    assert f"model={config.run_folder}/policy" in arguments["process_reward"]
    assert f"weights_dir={config.run_folder}/weights/process_reward" in arguments["process_reward"]
    assert f"model={config.run_folder}/weights/policy" in arguments["rollout"]


def test_what_no_other_attempt_mends_ends_the_job_of_torchrun_too() -> None:
    """torchrun itself ends with 1 whatever its processes end with, and the Job would try again and again."""
    [job] = [one for one in pods.objects("gpu") if one["kind"] == "Job"]
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [rule] = [one for one in job["spec"]["podFailurePolicy"]["rules"] if one["action"] == "FailJob"]
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [2]}
    assert pod["restartPolicy"] == "Never"
    launcher = container["args"][: container["args"].index("guerdon")]

    def ended(rank_1: str) -> int:
        """What torchrun makes of it: two processes of one node, where the manifest has two nodes of eight."""
        here = [
            "--nnodes=1",
            "--nproc-per-node=2",
            "--node-rank=0",
            "--master-addr=127.0.0.1",
            "--master-port=0",
        ]
        program = ["sh", "-c", f'[ "$RANK" = 1 ] && {rank_1}; exec sleep 600']
        words = [one.replace("$(NODE_RANK)", "0") for one in launcher[1:-1]]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *words, *here, launcher[-1], *program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=pods.PATIENCE_S,
        )
        assert "rank      : 1 (local_rank: 1)" in done.stderr
        return done.returncode

    # What `guerdon train` ends with when: tests/trainer/test_launch.py.
    assert (ended("exit 2"), ended("exit 7")) == (2, 1)


def test_rollouts_on_gpus_are_vllms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = template("gpu", "rollout")
    [container] = spec["containers"]
    (tmp_path / "token").write_text(pods.TOKEN)
    words = [one.replace("/etc/guerdon/token", str(tmp_path)) for one in container["args"]]
    service, _ = pods.served(words, {}, monkeypatch)
    assert (service.settings.engine, service.settings.device, service.settings.dtype) == (
        "vllm",
        "cuda",
        "bfloat16",
    )
    # The build with CUDA is the one that has vLLM (test_images.py).
    assert container["image"].endswith("-cuda")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    folders = {one["name"]: one["emptyDir"] for one in spec["volumes"] if "emptyDir" in one}
    # Its caches of compiled kernels are gigabytes; its processes share memory.
    assert (folders["tmp"]["sizeLimit"], folders["shm"]) == ("20Gi", {"medium": "Memory", "sizeLimit": "4Gi"})
    # New weights may take that long, and so may the longest generation: SIGKILL comes after.
    assert service.settings.update_limit_s < spec["terminationGracePeriodSeconds"]


def test_nodes_of_one_training_find_each_other() -> None:
    items = pods.objects("gpu")
    [job] = [one for one in items if one["kind"] == "Job"]
    name, spec = job["metadata"]["name"], job["spec"]["template"]["spec"]
    [service] = [one for one in items if one["kind"] == "Service" and one["metadata"]["name"] == name]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert (job["spec"]["completionMode"], spec["subdomain"]) == ("Indexed", name)
    words = spec["containers"][0]["args"]
    assert words[:2] == ["python", "-c"]
    assert option(words, "nnodes") == str(job["spec"]["completions"])
    # The pod of index 0, by the name that an Indexed Job gives its host.
    assert option(words, "master-addr") == f"{name}-0.{name}"
    assert option(words, "master-port") == str(service["spec"]["ports"][0]["port"])
    understood = get_args_parser().parse_args([one.replace("$(NODE_RANK)", "1") for one in words[3:]])
    assert (understood.no_python, understood.training_script) == (True, "guerdon")
    # It must not kill a process that still writes its checkpoint.
    assert 500 < understood.shutdown_timeout < spec["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_selectors_find_their_pods(manifest: str) -> None:
    items = pods.objects(manifest)
    labels = [one["metadata"]["labels"] for one in pods.workloads(items).values()]
    for item in items:
        spec = item.get("spec", {})
        selector = spec.get("selector") or spec.get("podSelector")
        if item["kind"] in ("Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"):
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= one.items() for one in labels), item["metadata"]["name"]


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_every_pod_has_a_policy_and_programs_reach_redis_alone(manifest: str) -> None:
    policies = {
        one["metadata"]["name"]: one["spec"]
        for one in pods.objects(manifest)
        if one["kind"] == "NetworkPolicy"
    }
    denied = policies.pop("guerdon-deny")
    assert denied["policyTypes"] == ["Ingress", "Egress"]
    assert not {"ingress", "egress"} & set(denied)
    components = pods.workloads(pods.objects(manifest))
    assert {name.replace("-", "_") for name in policies} == {f"guerdon_{one}" for one in components}
    if "code" in components:
        code = policies["guerdon-code"]
        # Metrics for Prometheus in; Redis and name lookups out.
        assert [[port["port"] for port in rule["ports"]] for rule in code["ingress"]] == [[8101]]
        assert [[port["port"] for port in rule["ports"]] for rule in code["egress"]] == [[6379], [53, 53]]
        assert all("namespaceSelector" in peer for rule in code["ingress"] for peer in rule["from"])


def test_the_namespace_refuses_others() -> None:
    [namespace] = yaml.safe_load_all((pods.MANIFESTS / "namespace.yaml").read_text())
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
