"""What an API server refuses to change of an object that is there: `helm upgrade` would fail half way."""

from collections.abc import Iterator
from typing import Any

Object = dict[str, Any]

#: Of these, the fields of `spec` that may change; of the others below, those that may not.
_MAY_CHANGE = {
    "StatefulSet": {
        "minReadySeconds",
        "ordinals",
        "persistentVolumeClaimRetentionPolicy",
        "replicas",
        "revisionHistoryLimit",
        "template",
        "updateStrategy",
    },
    # Room may grow.
    "PersistentVolumeClaim": {"resources"},
}
_MUST_STAY = {"Deployment": {"selector"}, "Service": {"clusterIP"}}
#: Whose fields lie beside `metadata`.
_FLAT = {"PriorityClass": {"value", "preemptionPolicy"}}


def refused(before: list[Object], after: list[Object]) -> Iterator[str]:
    """Each change that is refused, Jobs apart: docs/deploy.md says that they are deleted before an upgrade."""
    there = {_identity(item): item for item in before}
    for item in after:
        old, kind = there.get(_identity(item)), item["kind"]
        if old is None:
            continue
        names = _FLAT.get(kind, set()) or (
            _fixed(kind, old["spec"], item["spec"]) if "spec" in item else set()
        )
        old, new = (one if kind in _FLAT else one.get("spec", {}) for one in (old, item))
        for name in sorted(names):
            if old.get(name) != new.get(name):
                yield f"{kind}/{item['metadata']['name']}: an upgrade cannot change {name}"


def _fixed(kind: str, old: Object, new: Object) -> set[str]:
    """The fields of `spec` that stay as they are."""
    if kind in _MAY_CHANGE:
        return (old.keys() | new.keys()) - _MAY_CHANGE[kind]
    return _MUST_STAY.get(kind, set())


def _identity(item: Object) -> tuple[str, str, str]:
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]
