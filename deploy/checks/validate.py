"""Validates every object of the files named against the schemas of several Kubernetes releases.

Run by the tools' Python. Unknown fields are mistakes. Custom resources have schemas of our own in crds/.
"""

import functools
import json
import sys
from pathlib import Path

import jsonschema
import yaml
from kubernetes_validate import utils

CRDS = Path(__file__).with_name("crds")
VERSIONS = ("1.35", "1.36", "1.37")


def main(paths: list[str]) -> int:
    """Print each mistake once; 1 when there is one."""
    utils.schema_contents = functools.cache(utils.schema_contents)
    mistakes: set[str] = set()
    counts = {version: 0 for version in VERSIONS}
    custom = 0
    for path in paths:
        for item in yaml.load_all(Path(path).read_text(), yaml.CSafeLoader):
            where = f"{Path(path).name}: {item['kind']}/{item['metadata']['name']}"
            schema = CRDS / f"{item['kind']}.json"
            try:
                if schema.exists():
                    jsonschema.validate(item, json.loads(schema.read_text()))
                    custom += 1
                    continue
                for version in VERSIONS:
                    utils.validate(item, version, strict=True)
                    counts[version] += 1
            except (jsonschema.ValidationError, utils.SchemaNotFoundError) as error:
                field = ".".join(str(part) for part in getattr(error, "absolute_path", ()))
                mistakes.add(f"{where}: {field}: {error.message}")
    print(
        "\n".join(sorted(mistakes)) or f"valid: {counts} objects by Kubernetes release, {custom} custom ones"
    )
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
