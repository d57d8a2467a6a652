"""Dashboards and alert rules ask for metrics, labels and values that the services really expose; runbooks exist."""

import json
import re
from pathlib import Path
from typing import Any

import pods
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from guerdon.queue import QueueStats
from guerdon.types import Status
from guerdon_services.runtime import connection, problem
from guerdon_services.runtime.metrics import Metrics

ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy/helm/guerdon/files"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"] for rule in group["rules"]
]
BOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((FILES / "dashboards").glob("*.json"))}
#: What Prometheus adds to every series of a pod, and to buckets.
TARGET_LABELS = {"namespace", "job", "pod", "le"}
#: What others tell of the queues, with the labels that their sources name.
OTHERS: dict[str, dict[str, set[str]]] = {
    "keda_scaler_metrics_value": {"exported_namespace": set(), "scaledObject": set(), "metric": set()},
    "redis_stream_length": {"db": set(), "stream": set()},
}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
SAMPLE = re.compile(r"\b((?:guerdon|process|keda|redis)_\w+)(?:\{((?:[^}\"]|\"[^\"]*\")*)\})?")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"([^\"]*)\"")


def exposed() -> dict[str, dict[str, set[str]]]:
    """Name of every sample -> its labels -> the values seen, of a process that has met everything."""
    metrics = Metrics()
    metrics.describe("math", "1", lambda: {"allocated": 1, "reserved": 2, "free": 3})
    for operation in ("score", "generate", "update"):
        metrics.operation(operation)
    metrics.queue_seen(QueueStats(queued=1, pending=1, dead=1, oldest_ms=1, workers=1))
    refusals = {words.outcome for _, words in problem._WORDS}  # pyright: ignore[reportPrivateUsage]
    early = set(connection._OUTCOMES.values())  # pyright: ignore[reportPrivateUsage]
    for outcome in {"ok", "cancelled"} | refusals | early:
        metrics.requests.labels("http", "score", outcome)
    for status in (*Status, "released"):
        metrics.worker_entries.labels(str(getattr(status, "value", status)))
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(metrics.exposition().decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


EXPOSED = exposed()
QUERIES = [pytest.param(rule["expr"], id=rule.get("alert", rule.get("record"))) for rule in RULES] + [
    pytest.param(target["expr"], id=f"{name}: {panel['title']} {target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_is_exposed(query: str) -> None:
    allowed = set(TARGET_LABELS)
    samples = SAMPLE.findall(query)
    assert samples
    for name, matchers in samples:
        labels = {} if name in RECORDED else {**EXPOSED, **OTHERS}[name]
        allowed |= set(labels)
        for label, wanted in MATCHER.findall(matchers):
            if label in TARGET_LABELS:
                continue
            values = labels[label]
            if name in OTHERS:
                continue
            assert set(wanted.split("|")) <= values, f"{name} never has {label}={wanted}"
    for group in re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", query):
        assert {label.strip() for label in group.split(",")} <= allowed


@pytest.mark.parametrize("manifest", ["cpu", "gpu", "verifiers-only"])
def test_a_prometheus_without_its_operator_finds_the_same_pods(manifest: str) -> None:
    """The relabelling of files/scrape.yaml against what Kubernetes tells of each port of each pod."""
    [job] = yaml.safe_load((FILES / "scrape.yaml").read_text())["scrape_configs"]
    found: list[str] = []
    for component, template in pods.workloads(pods.objects(manifest)).items():
        labels = template["metadata"]["labels"]
        for port in template["spec"]["containers"][0].get("ports", []):
            told = {
                f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', one)}": labels[one]
                for one in labels
            }
            told["__meta_kubernetes_pod_container_port_name"] = port["name"]
            rules = job["relabel_configs"]
            kept = [
                told[one["source_labels"][0]] == one["regex"] for one in rules if one.get("action") == "keep"
            ]
            if all(kept):
                [named] = [one for one in rules if one.get("target_label") == "job"]
                found.append(told[named["source_labels"][0]])
                assert found[-1] == component
    assert sorted(found) == sorted(set(pods.workloads(pods.objects(manifest))) - {"redis", "trainer"})
    assert {one["target_label"] for one in job["relabel_configs"] if "target_label" in one} <= TARGET_LABELS


@pytest.mark.parametrize("manifest", ["gpu", "verifiers-only"])
def test_what_keda_and_redis_call_a_queue_is_understood(manifest: str) -> None:
    """Names as KEDA's source makes them of a trigger, and as redis_exporter repeats a stream's."""
    [rule] = [one["expr"] for one in RULES if one.get("record") == "guerdon_queue_waiting"]
    scaled = [one for one in pods.objects(manifest) if one["kind"] == "ScaledObject"]
    assert scaled
    for one in scaled:
        component = one["metadata"]["labels"]["app.kubernetes.io/component"]
        for index, trigger in enumerate(one["spec"]["triggers"]):
            stream = trigger["metadata"]["stream"]
            named = {"stream": stream, "metric": re.sub("[/.:%()]", "-", f"s{index}-redis-streams-{stream}")}
            for label, text in named.items():
                matched = patterns(rule, rf'{label}=~"([^"]+)"')
                taken = patterns(rule, rf'"{label}", "([^"]+)"')
                assert all(re.fullmatch(pattern, text) for pattern in matched)
                assert [re.fullmatch(pattern, text)[1] for pattern in taken] == [component]  # pyright: ignore[reportOptionalSubscript]


def patterns(query: str, where: str) -> list[str]:
    """The regular expressions at a place of a query, without the escapes of PromQL's texts."""
    found = [one.replace("\\\\", "\\") for one in re.findall(where, query)]
    assert found
    return found


def test_every_metric_is_on_a_dashboard() -> None:
    shown = json.dumps(list(BOARDS.values()))
    families = {re.sub(r"_(bucket|sum|count|created)$", "", name) for name in EXPOSED}
    ours = {name for name in families if name.startswith("guerdon_")}
    # A counter's samples end in _total, and it is created without.
    assert len(ours) >= 18
    assert not {name for name in ours if name not in shown}


def test_every_alert_has_a_runbook() -> None:
    page = (ROOT / "docs/operations.md").read_text()
    anchors = {heading.lower() for heading in re.findall(r"^#+ (\w+)$", page, re.MULTILINE)}
    alerts = [rule for rule in RULES if "alert" in rule]
    assert len(alerts) >= 9
    for rule in alerts:
        address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (address, anchor in anchors) == ("RUNBOOKS", True), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_dashboards_have_their_own_names_and_full_panels() -> None:
    assert sorted(BOARDS) == ["queue", "services", "training"]
    assert len({board["uid"] for board in BOARDS.values()}) == 3
    for board in BOARDS.values():
        places = [tuple(panel["gridPos"][key] for key in "xy") for panel in board["panels"]]
        assert len(set(places)) == len(places)
        assert all(panel["title"] and panel["targets"] for panel in board["panels"])
