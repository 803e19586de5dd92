"""The schemas of Kubernetes for the kinds that the manifests use, without their descriptions.

    python -m tests.support.kubernetes_schemas kubernetes_validate-1.37.0-py3-none-any.whl

writes `kubernetes_schemas.json` from a wheel of that package, which has the published schemas (Apache License 2.0).
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import fastjsonschema

FILE: Final = Path(__file__).with_suffix(".json")
KINDS: Final = {
    "Deployment": "io.k8s.api.apps.v1.Deployment",
    "Job": "io.k8s.api.batch.v1.Job",
    "PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "Service": "io.k8s.api.core.v1.Service",
    "StatefulSet": "io.k8s.api.apps.v1.StatefulSet",
}
"""Kind -> its definition."""
VERSION: Final = "v1.37.0"
_FOLDER: Final = f"kubernetes_validate/kubernetes-json-schema/{VERSION}-local-strict"


def check_manifest(manifest: dict[str, Any]) -> None:
    """Check a manifest; unknown fields are errors.

    Raises:
        fastjsonschema.JsonSchemaValueException: it is not what its kind's schema describes.
    """
    _checker(str(manifest["kind"]))(manifest)


@cache
def _checker(kind: str) -> Any:
    schemas = json.loads(FILE.read_text(encoding="utf-8"))
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": f"#/$defs/{KINDS[kind]}"}
    return fastjsonschema.compile(schema | {"$defs": schemas})


def _needed(schemas: dict[str, Any]) -> dict[str, Any]:
    """The definitions of the kinds, and all that these refer to."""
    needed, left = dict[str, Any](), list(KINDS.values())
    while left:
        name = left.pop()
        if name not in needed:
            needed[name] = _without_descriptions(schemas[name])
            left += re.findall(r"#/\$defs/([^\"]+)\"", json.dumps(needed[name]))
    return dict(sorted(needed.items()))


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_descriptions(value)
        for name, value in schema.items()
        if not (name == "description" and isinstance(value, str)) and not name.startswith("x-kubernetes")
    }


if __name__ == "__main__":
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        every = json.loads(wheel.read(f"{_FOLDER}/_definitions.json"))["$defs"]
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in _needed(every).items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
