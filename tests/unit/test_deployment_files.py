"""Goal: the files for process managers do what the docs promise. Method: the managers' own checks and published schemas."""

from __future__ import annotations

import configparser
import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import fastjsonschema
import pytest
import yaml

from tests.support import docs_examples
from tests.support.kubernetes_schemas import check_manifest
from tests.support.parsed_commands import parse_command

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "docker" / "systemd" / "totals.service"
MANIFESTS: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "docker" / "kubernetes" / "totals.yaml").read_text(encoding="utf-8"))
)
DEPLOYMENT, BUDGET = MANIFESTS
JOB_FILE = ROOT / "docker" / "kubernetes" / "command.yaml"
JOB: dict[str, Any] = yaml.safe_load(JOB_FILE.read_text(encoding="utf-8"))
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]


def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=True)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(UNIT.read_text(encoding="utf-8"))
    return parsed


def test_the_unit_runs_a_command_that_the_service_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQE_CHAIN_KAFKA", "localhost:9092")
    program, *arguments = unit()["Service"]["ExecStart"].split()
    assert program.endswith("/sqe-chain")
    parse_command(arguments)
    assert unit()["Service"]["RestartPreventExitStatus"].split() == ["2", "3", "4"]


def verify(directory: Path, text: str) -> subprocess.CompletedProcess[str]:
    """What systemd reports of a unit whose program is that of this environment."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed: apt-get install systemd")
    written = directory / UNIT.name
    installed = str(Path(sys.executable).with_name("sqe-chain"))
    written.write_text(text.replace("/srv/totals/.venv/bin/sqe-chain", installed), encoding="utf-8")
    return subprocess.run(
        [program, "verify", "--man=no", "--recursive-errors=one", str(written)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    verified = verify(tmp_path, UNIT.read_text(encoding="utf-8"))
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("TimeoutStopSec=120", "TimeoutStopSec=soon"), ("KillMode=", "KilMode="), ("Type=exec", "Type=fork")],
)
def test_systemd_would_refuse_a_wrong_unit(tmp_path: Path, right: str, wrong: str) -> None:
    text = UNIT.read_text(encoding="utf-8")
    assert right in text
    assert verify(tmp_path, text.replace(right, wrong)).stderr


@pytest.mark.parametrize("manifest", [*MANIFESTS, JOB], ids=lambda manifest: str(manifest["kind"]))
def test_a_manifest_is_what_the_schemas_of_kubernetes_describe(manifest: dict[str, Any]) -> None:
    check_manifest(manifest)


def misspell_a_probe(deployment: Any) -> None:
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["livenesProbe"] = container.pop("livenessProbe")


def write_a_number_as_text(deployment: Any) -> None:
    deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = "120"


def forget_the_selector(deployment: Any) -> None:
    del deployment["spec"]["selector"]


@pytest.mark.parametrize("break_it", [misspell_a_probe, write_a_number_as_text, forget_the_selector])
def test_the_schemas_refuse_a_wrong_manifest(break_it: Callable[[Any], None]) -> None:
    broken = copy.deepcopy(DEPLOYMENT)
    break_it(broken)
    with pytest.raises(fastjsonschema.JsonSchemaValueException):
        check_manifest(broken)


def test_names_and_labels_of_the_manifests_agree() -> None:
    spec = DEPLOYMENT["spec"]
    labels = spec["template"]["metadata"]["labels"]
    (spread,) = POD["topologySpreadConstraints"]
    selectors = [spec["selector"], BUDGET["spec"]["selector"], spread["labelSelector"]]
    assert selectors == [{"matchLabels": labels}] * 3
    (container,) = POD["containers"]
    volumes = {volume["name"] for volume in POD["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_one_pod_is_always_left_and_none_is_started_beside_the_two() -> None:
    assert DEPLOYMENT["spec"]["replicas"] - BUDGET["spec"]["maxUnavailable"] == 1
    rolling = DEPLOYMENT["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_service_may_take_as_long_to_stop_everywhere() -> None:
    assert int(unit()["Service"]["TimeoutStopSec"]) == POD["terminationGracePeriodSeconds"] == 120


def test_secrets_are_files_of_mounted_volumes() -> None:
    (container,) = POD["containers"]
    store = next(variable["value"] for variable in container["env"] if variable["name"] == "SQE_CHAIN_STORE")
    path = Path(re.findall(r"password_file=([^&]+)", store)[0])
    (mount,) = [mount for mount in container["volumeMounts"] if mount["mountPath"] == str(path.parent)]
    (volume,) = [volume for volume in POD["volumes"] if volume["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "redis"
    # Others may not read it, and the group of the pod may.
    assert volume["secret"]["defaultMode"] == 0o440
    assert POD["securityContext"]["fsGroup"] == POD["securityContext"]["runAsUser"]
    assert not any("valueFrom" in variable for variable in container["env"])


def test_the_image_of_the_docs_takes_the_arguments_of_the_manifest() -> None:
    (container,) = POD["containers"]
    (port,) = container["ports"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]
    dockerfile = docs_examples.block_with(ROOT / "docs" / "production.md", "ENTRYPOINT")
    program, *arguments = json.loads(re.findall(r"^ENTRYPOINT (.*)$", dockerfile.text, re.MULTILINE)[0])
    assert program == "sqe-chain"
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    with mock.patch.dict(os.environ, variables):
        parse_command([*arguments, *container["args"]])
    assert arguments[arguments.index("--metrics-port") + 1] == str(port["containerPort"])


def test_the_job_runs_commands_that_exist_with_the_image_and_the_secret_of_the_service() -> None:
    job = JOB["spec"]["template"]["spec"]
    (command,), (service,) = job["containers"], POD["containers"]
    assert [command[name] for name in ("image", "volumeMounts")] == [
        service[name] for name in ("image", "volumeMounts")
    ]
    assert job["volumes"] == POD["volumes"]
    assert job["securityContext"] == POD["securityContext"]
    assert [variable for variable in command["env"] if variable in service["env"]] == command["env"]
    # Else the arguments would follow those of the image's ENTRYPOINT.
    assert command["command"] == ["sqe-chain"]
    others = re.findall(r"^ +# args: (.*)$", JOB_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(others) == 2
    with mock.patch.dict(os.environ, {variable["name"]: variable["value"] for variable in command["env"]}):
        for arguments in (command["args"], *map(yaml.safe_load, others)):
            parse_command(arguments)
