"""Goal: the chart gives what the docs' manifest has. Method: what helm made of it is kept, and compared with the manifest and published schemas.

Where there is a helm, it renders the chart again.
"""

from __future__ import annotations

import json
import os
import tomllib
from typing import Any
from unittest import mock

import fastjsonschema
import pytest
import yaml

from tests.support import docs_examples, helm_chart
from tests.support.helm_chart import CHART, RELEASES, ROOT
from tests.support.kubernetes_schemas import check_manifest
from tests.support.parsed_commands import parse_command

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
MANIFEST = ROOT / "docker" / "kubernetes" / "totals.yaml"


def manifests(release: str) -> dict[str, dict[str, Any]]:
    """Kind -> manifest."""
    return {manifest["kind"]: manifest for manifest in helm_chart.kept(release)[1]}


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_kept_was_made_of_this_chart(release: str) -> None:
    assert helm_chart.kept(release)[0] == helm_chart.chart_digest(), "run python -m tests.support.helm_chart"


def test_the_chart_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["version"] == chart["appVersion"] == project["version"]


@pytest.mark.parametrize("release", RELEASES)
def test_it_is_what_the_schemas_of_kubernetes_describe(release: str) -> None:
    for manifest in manifests(release).values():
        check_manifest(manifest)


def test_a_flow_with_stages_gets_what_the_manifest_of_the_docs_has() -> None:
    deployment, budget = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
    ours = manifests("totals")
    assert set(ours) == {"Deployment", "PodDisruptionBudget"}
    spec = ours["Deployment"]["spec"]
    pod, wanted = spec["template"]["spec"], deployment["spec"]["template"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert pod.pop("topologySpreadConstraints")[0]["labelSelector"] == {"matchLabels": labels}
    assert spec["selector"] == ours["PodDisruptionBudget"]["spec"].pop("selector") == {"matchLabels": labels}
    del wanted["topologySpreadConstraints"], budget["spec"]["selector"]
    (container,) = pod["containers"]
    assert container.pop("imagePullPolicy") == "IfNotPresent"
    container["name"] = "totals"
    assert pod == wanted
    assert ours["PodDisruptionBudget"]["spec"] == budget["spec"]
    for name in ("replicas", "strategy"):
        assert spec[name] == deployment["spec"][name]


def test_a_flow_without_stages_is_one_pod_that_never_has_a_second_beside_it() -> None:
    ours = manifests("clean")
    assert set(ours) == {"StatefulSet", "Service"}
    spec = ours["StatefulSet"]["spec"]
    assert spec["replicas"] == 1
    assert spec["serviceName"] == ours["Service"]["metadata"]["name"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"] == {"matchLabels": labels}
    assert ours["Service"]["spec"]["selector"] == labels


@pytest.mark.parametrize("release", RELEASES)
def test_the_image_of_the_docs_takes_the_arguments(release: str) -> None:
    (workload,) = (one for one in manifests(release).values() if "template" in one["spec"])
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    dockerfile = docs_examples.block_with(ROOT / "docs" / "production.md", "ENTRYPOINT").text
    (line,) = (line for line in dockerfile.splitlines() if line.startswith("ENTRYPOINT "))
    program, *arguments = json.loads(line.removeprefix("ENTRYPOINT "))
    assert program == "sqe-chain"
    with mock.patch.dict(os.environ, {one["name"]: one["value"] for one in container["env"]}):
        parse_command([*arguments, *container["args"]])
    (port,) = container["ports"]
    assert arguments[arguments.index("--metrics-port") + 1] == str(port["containerPort"])
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert all(path.rpartition("/")[0] in mounted for path in _files(container))


def _files(container: dict[str, Any]) -> list[str]:
    values = [one["value"].rpartition("=")[2] for one in container["env"]]
    return [text for text in (*values, *container["args"]) if text.startswith("/run/")]


WRONG: dict[str, dict[str, Any]] = {
    "stages without a store": {"flow": VALUES["flow"] | {"store": ""}},
    "no image": {"image": VALUES["image"] | {"repository": ""}},
    "no broker": {"flow": VALUES["flow"] | {"kafka": ""}},
    "a name that nothing reads": {"replicas": 3},
    "a number as an argument": {"flow": VALUES["flow"] | {"args": ["--workers", 2]}},
    "root": {"runAsUser": 0},
}


def test_the_values_of_the_chart_are_what_its_schema_describes() -> None:
    check = fastjsonschema.compile(SCHEMA)
    check(VALUES)
    for release in RELEASES.values():
        flow = VALUES["flow"] | release.get("flow", {})
        check(VALUES | release | {"flow": flow})


@pytest.mark.parametrize("mistake", WRONG)
def test_wrong_values_are_refused(mistake: str) -> None:
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        fastjsonschema.compile(SCHEMA)(VALUES | WRONG[mistake])


@pytest.fixture
def helm() -> str:
    program = helm_chart.find_helm()
    if program is None:
        pytest.skip("helm is not installed: run `make helm`, which needs Go")
    return program


@pytest.mark.parametrize("release", RELEASES)
def test_helm_makes_what_is_kept(helm: str, release: str) -> None:
    done = helm_chart.render(helm, release, RELEASES[release])
    assert done.returncode == 0, done.stderr
    assert [one for one in yaml.safe_load_all(done.stdout) if one] == helm_chart.kept(release)[1]


@pytest.mark.parametrize("mistake", WRONG)
def test_helm_refuses_wrong_values(helm: str, mistake: str) -> None:
    done = helm_chart.render(helm, "totals", WRONG[mistake])
    assert done.returncode != 0
    assert "schema" in done.stderr
