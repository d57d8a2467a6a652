"""Validates every object of the files named against the schemas of several Kubernetes releases, and among each other.

Run by the tools' Python. Unknown fields are mistakes. Custom resources have schemas of our own in crds/.
"""

import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import relations
import yaml
from kubernetes_validate import utils

CRDS = {path.stem: json.loads(path.read_text()) for path in Path(__file__).with_name("crds").glob("*.json")}
VERSIONS = ("1.35", "1.36", "1.37")
utils.schema_contents = functools.cache(utils.schema_contents)


def mistakes(item: dict[str, Any], versions: Sequence[str] = VERSIONS) -> Iterator[str]:
    """What the schemas find wrong with one object."""
    schema = CRDS.get(item["kind"])
    for version in versions if schema is None else versions[:1]:
        try:
            if schema is None:
                utils.validate(item, version, strict=True)
            else:
                jsonschema.validate(item, schema)
        except (jsonschema.ValidationError, utils.SchemaNotFoundError) as error:
            field = ".".join(str(part) for part in getattr(error, "absolute_path", ()))
            yield f"{item['kind']}/{item['metadata']['name']}: {field}: {error.message}"


def main(paths: list[str]) -> int:
    """Print each mistake once; 1 when there is one."""
    found: set[str] = set()
    count = 0
    for path in map(Path, paths):
        items = list(yaml.load_all(path.read_text(), yaml.CSafeLoader))
        count += len(items)
        wrong = [one for item in items for one in mistakes(item)]
        found |= {f"{path.name}: {one}" for one in (*wrong, *relations.mistakes(items))}
    print("\n".join(sorted(found)) or f"{count} objects are valid for Kubernetes {', '.join(VERSIONS)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
