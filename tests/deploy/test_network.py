"""Who reaches whom by the network policies of the manifests, by the rules that Kubernetes documents for them."""

from collections.abc import Iterator, Mapping
from typing import Any

import pods
import pytest

NAME, CLIENT = "kubernetes.io/metadata.name", {"guerdon.dev/client": "true"}
#: Pods of others: namespace and labels.
OUTSIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "a client": ("guerdon", CLIENT),
    "a client elsewhere": ("default", CLIENT),
    "a neighbour": ("guerdon", {}),
    "prometheus": ("monitoring", {}),
    "keda": ("keda", {}),
    "dns": ("kube-system", {"k8s-app": "kube-dns"}),
    "the api server": ("kube-system", {"component": "kube-apiserver"}),
}
PORTS = {"http": 8101, "grpc": 9101, "redis": 6379, "dns": 53, "rendezvous": 29500, "https": 443}


class Network:
    """The pods of a manifest, those of others, and the policies."""

    def __init__(self, manifest: str) -> None:
        items = pods.objects(manifest)
        self.policies = [one["spec"] for one in items if one["kind"] == "NetworkPolicy"]
        self.ours = {
            name: ("guerdon", template["metadata"]["labels"])
            for name, template in pods.workloads(items).items()
        }
        self.all = {**self.ours, **OUTSIDERS}

    def reaches(self, source: str, target: str, port: int) -> bool:
        """Both ends must let a connection pass; outsiders let everything."""
        return self._lets("Egress", source, target, port) and self._lets("Ingress", target, source, port)

    def _lets(self, direction: str, pod: str, peer: str, port: int) -> bool:
        namespace, labels = self.all[pod]
        rules: list[Mapping[str, Any]] | None = None
        for policy in self.policies:
            if namespace == "guerdon" and selects(policy["podSelector"], labels):
                rules = [*(rules or []), *policy.get(direction.lower(), [])]
        return rules is None or any(
            any(self._is(peer, one) for one in rule["to" if direction == "Egress" else "from"])
            and ("ports" not in rule or port in [one["port"] for one in rule["ports"]])
            for rule in rules
        )

    def _is(self, pod: str, peer: Mapping[str, Any]) -> bool:
        namespace, labels = self.all[pod]
        if "ipBlock" in peer:
            return False
        where = peer.get("namespaceSelector", {"matchLabels": {NAME: "guerdon"}})
        return selects(where, {NAME: namespace}) and selects(peer.get("podSelector", {}), labels)


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def wanted(network: Network) -> Iterator[tuple[str, str, str]]:
    """Everything that has to go, and nothing else may."""
    services = network.ours.keys() - {"redis", "trainer"}
    for one in (*services, *(network.ours.keys() & {"trainer"})):
        yield from ((one, "redis", "redis"), (one, "dns", "dns"))
    for one in services:
        yield "prometheus", one, "http"
        if one != "code":
            yield from (("a client", one, "http"), ("a client", one, "grpc"))
    yield from (("a client", "redis", "redis"), ("keda", "redis", "redis"))
    if "trainer" in network.ours:
        # Ranks: the rendezvous, and ports of NCCL's choice.
        yield from (("trainer", "trainer", port) for port in PORTS)


@pytest.mark.parametrize("manifest", ["cpu", "gpu", "verifiers-only"])
def test_each_pod_reaches_what_it_must_and_nothing_else(manifest: str) -> None:
    network = Network(manifest)
    found = {
        (source, target, port)
        for source in network.all
        for target in network.all
        for port, number in PORTS.items()
        if {source, target} & network.ours.keys() and network.reaches(source, target, number)
    }
    assert found == set(wanted(network))
