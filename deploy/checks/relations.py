"""What an API server or a cluster refuses and no schema says: names, references, ports, volumes, variables."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Object = dict[str, Any]

#: Labels of the recorded metric guerdon_queue_backlog (files/alerts.yaml; alerts_test.yaml holds it to them).
BACKLOG_LABELS = {"namespace", "job"}
WORKLOADS = ("Deployment", "StatefulSet", "Job")
CLUSTER_WIDE = ("Namespace", "PriorityClass")
_LABEL = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_SERVICE = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
#: Longest names. StatefulSets and Jobs: what Kubernetes appends for pods and their labels must fit into 63.
_LONGEST = {"Service": 63, "StatefulSet": 52, "Job": 57, "Deployment": 63}
_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
#: Bytes of a container's logs that the kubelet keeps by default: 5 files of 10 MiB.
LOGS = 50 * 2**20
#: Options by which a process says how long it takes to end.
_PATIENCE = ("--drain-s", "--drain-delay-s", "--shutdown-timeout")


def mistakes(items: list[Object], namespace: str = "guerdon") -> Iterator[str]:
    """Everything wrong among the objects of one or several releases in a namespace."""
    twice = Counter((item["kind"], item["metadata"]["name"]) for item in items)
    yield from (f"{kind}/{name}: there are {count}" for (kind, name), count in twice.items() if count > 1)
    for item in items:
        where = f"{item['kind']}/{item['metadata']['name']}"
        yield from (f"{where}: {one}" for one in _named(item, namespace))
        if item["kind"] in WORKLOADS:
            yield from (f"{where}: {one}" for one in _workload(item, items))
        elif item["kind"] == "Service":
            yield from (f"{where}: {one}" for one in _service(item, items))
        elif item["kind"] in ("ScaledObject", "HorizontalPodAutoscaler"):
            yield from (f"{where}: {one}" for one in _scaler(item, items))


def quantity(text: object) -> float:
    """Bytes of 64Mi, cores of 500m."""
    match = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", str(text))
    assert match, text
    return float(match[1]) * (0.001 if match[2] == "m" else _UNITS[match[2]])


def _named(item: Object, namespace: str) -> Iterator[str]:
    kind, metadata = item["kind"], item["metadata"]
    name = metadata["name"]
    pattern = _SERVICE if kind == "Service" else _SUBDOMAIN
    if not pattern.match(name) or len(name) > _LONGEST.get(kind, 253):
        yield f"{len(name)} characters, or signs that a {kind} may not have"
    if kind not in CLUSTER_WIDE and metadata.get("namespace") != namespace:
        yield f"in namespace {metadata.get('namespace')}"
    for labels in (metadata.get("labels", {}), _template(item).get("metadata", {}).get("labels", {})):
        yield from (f"label {key}: {text!r}" for key, text in labels.items() if not _LABEL.match(str(text)))


def _template(item: Object) -> Object:
    return item["spec"]["template"] if item["kind"] in WORKLOADS else {}


def _workload(item: Object, items: list[Object]) -> Iterator[str]:
    spec, template = item["spec"], item["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    wanted = spec.get("selector", {}).get("matchLabels", {})
    if not wanted.items() <= labels.items():
        yield "its selector does not select its pods"
    if "helm.sh/chart" in labels:
        yield "its pods' labels hold the chart's version: each new chart would restart them, and cannot change a Job"
    services = _names(items, "Service")
    for key, name in (("serviceName", spec.get("serviceName")), ("subdomain", pod.get("subdomain"))):
        if name and name not in services:
            yield f"{key}: there is no Service {name}"
    yield from _references(pod, items)
    claims = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    names = {one["name"] for one in containers}
    for rule in spec.get("podFailurePolicy", {}).get("rules", []):
        if (named := rule.get("onExitCodes", {}).get("containerName")) and named not in names:
            yield f"podFailurePolicy: there is no container {named}"
    used = {mount["name"] for one in containers for mount in one.get("volumeMounts", [])}
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    yield from (f"volume {name} is nobody's" for name in volumes.keys() - used)
    yield from (f"there is no volume {name}" for name in used - volumes.keys() - claims)
    for container in containers:
        yield from (f"{container['name']}: {one}" for one in _container(container, volumes))
    yield from _patience(pod)
    yield from _one_node(template, items)


def _one_node(template: Object, items: list[Object]) -> Iterator[str]:
    """Pods that share a claim which one node alone can mount must be drawn to each other."""
    alone = {
        one["metadata"]["name"]
        for one in items
        if one["kind"] == "PersistentVolumeClaim" and one["spec"]["accessModes"] == ["ReadWriteOnce"]
    }
    pod, labels = template["spec"], template["metadata"]["labels"]
    volumes = (volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod.get("volumes", []))
    rules = (
        pod.get("affinity", {})
        .get("podAffinity", {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", [])
    )
    for name in alone.intersection(volumes):
        if not any(rule["labelSelector"]["matchLabels"].items() <= labels.items() for rule in rules):
            yield f"another node's pods may have the claim {name}: nothing draws it to them"


def _references(pod: Object, items: list[Object]) -> Iterator[str]:
    asked = [("ServiceAccount", pod["serviceAccountName"]), ("PriorityClass", pod.get("priorityClassName"))]
    for volume in pod.get("volumes", []):
        asked.append(("ConfigMap", volume.get("configMap", {}).get("name")))
        asked.append(("PersistentVolumeClaim", volume.get("persistentVolumeClaim", {}).get("claimName")))
    for kind, name in asked:
        there = _names(items, kind)
        # A release without claims or classes of its own names those of others.
        own = kind in ("ServiceAccount", "ConfigMap") or there
        if name and own and name not in there:
            yield f"there is no {kind} {name}"


def _container(container: Object, volumes: Mapping[str, Object]) -> Iterator[str]:
    ports = {port["name"] for port in container.get("ports", [])}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container.get(probe, {})
        port = (asked.get("httpGet") or asked.get("tcpSocket") or {}).get("port")
        if port is not None and port not in ports:
            yield f"{probe} asks the port {port}"
    paths = Counter(mount["mountPath"] for mount in container.get("volumeMounts", []))
    yield from (f"two volumes at {path}" for path, count in paths.items() if count > 1)
    known = Counter[str]()
    for variable in container.get("env", []):
        yield from (
            f"{variable['name']} names {one}, which does not stand before it"
            for one in re.findall(r"\$\((\w+)\)", variable.get("value", ""))
            if one not in known
        )
        known[variable["name"]] += 1
    yield from (f"the variable {name} is there {count} times" for name, count in known.items() if count > 1)
    words = " ".join(container.get("args", []))
    yield from (f"its arguments name {one}" for one in re.findall(r"\$\((\w+)\)", words) if one not in known)
    yield from _room(container, volumes)


def _room(container: Object, volumes: Mapping[str, Object]) -> Iterator[str]:
    """Folders that vanish with the pod have a size: in memory it counts to that limit, else to the one of the disk."""
    resources = container["resources"]
    limits, requests = resources["limits"], resources["requests"]
    for name in requests.keys() & limits.keys():
        if quantity(requests[name]) > quantity(limits[name]):
            yield f"it requests more {name} than its limit"
    mounted = (volumes.get(mount["name"], {}) for mount in container.get("volumeMounts", []))
    room = {"Memory": 0.0, "": 0.0}
    for folder in (one["emptyDir"] for one in mounted if "emptyDir" in one):
        if "sizeLimit" not in folder:
            yield "a folder of its pod has no size"
        room[folder.get("medium", "")] += quantity(folder.get("sizeLimit", 0))
    if room["Memory"] >= quantity(limits["memory"]):
        yield "its folders in memory may take all of its memory"
    if not room[""] + LOGS <= quantity(limits.get("ephemeral-storage", 0)):
        yield "its folders and logs may take more than its limit of ephemeral-storage: the pod would be evicted"
    if "ephemeral-storage" not in requests:
        yield "it requests no ephemeral-storage: its node's disk may fill"


def _patience(pod: Object) -> Iterator[str]:
    """SIGKILL comes after what runs has given up by itself: a service, or torchrun with its processes."""
    words = [word.partition("=") for word in pod["containers"][0].get("args", [])]
    given = {name: float(text) for name, _, text in words if name in _PATIENCE}
    if sum(given.values()) + 10 > pod["terminationGracePeriodSeconds"]:
        yield f"{pod['terminationGracePeriodSeconds']} s of grace, and it drains for {given}"


def _service(item: Object, items: list[Object]) -> Iterator[str]:
    wanted = item["spec"]["selector"]
    pods = [
        _template(one)
        for one in items
        if one["kind"] in WORKLOADS and wanted.items() <= _template(one)["metadata"]["labels"].items()
    ]
    if len(pods) != 1:
        yield f"it selects the pods of {len(pods)} workloads"
        return
    ports = {port["name"] for one in pods[0]["spec"]["containers"] for port in one.get("ports", [])}
    for port in item["spec"]["ports"]:
        if isinstance(port.get("targetPort"), str) and port["targetPort"] not in ports:
            yield f"no container has the port {port['targetPort']}"


def _scaler(item: Object, items: list[Object]) -> Iterator[str]:
    spec, target = item["spec"], item["spec"]["scaleTargetRef"]
    if target["name"] not in _names(items, target["kind"]):
        yield f"there is no {target['kind']} {target['name']}"
        return
    least = spec.get("minReplicaCount", spec.get("minReplicas"))
    if least > spec.get("maxReplicaCount", spec.get("maxReplicas")):
        yield "its least is above its most"
    for metric in spec.get("metrics", []):
        asked = metric["external"]["metric"]["selector"]["matchLabels"]
        yield from (f"its metric has no label {label}" for label in asked.keys() - BACKLOG_LABELS)
    [workload] = [
        one for one in items if (one["kind"], one["metadata"]["name"]) == (target["kind"], target["name"])
    ]
    if "replicas" in workload["spec"]:
        yield "the workload sets replicas too: each upgrade would undo the scaling"


def _names(items: list[Object], kind: str) -> set[str]:
    return {item["metadata"]["name"] for item in items if item["kind"] == kind}
