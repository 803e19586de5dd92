"""The chart of docker/helm, and what helm makes of it for two releases, which is kept beside this module.

    python -m tests.support.helm_chart

writes `helm_chart.FLOW.yaml` again, with a helm on the path. `make helm` builds one into the cache.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from sqe_chain.ext.dev import cache_directory

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "docker" / "helm"
RELEASES: Final[dict[str, dict[str, Any]]] = {
    "totals": {"podAnnotations": {"company/team": "torque"}},
    "clean": {
        "flow": {
            "stages": False,
            "store": "",
            "args": ["--kafka-config", "/run/secrets/kafka/client.properties"],
        },
        "secrets": [{"name": "kafka", "secretName": "clean-kafka"}],
        "tolerations": [{"key": "spot", "operator": "Exists"}],
    },
}
"""Name of a release -> its values: a flow with stages, and one without."""
_KUBERNETES: Final = "1.37.0"


def find_helm() -> str | None:
    """The program, from the path or the cache."""
    return shutil.which("helm") or shutil.which(str(cache_directory() / "bin" / "helm"))


def chart_digest() -> str:
    """Changes with each file of the chart."""
    digest = hashlib.sha256()
    for file in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(CHART)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def kept_file(release: str) -> Path:
    """Where the rendered release is kept."""
    return Path(__file__).with_suffix(f".{release}.yaml")


def kept(release: str) -> tuple[str, list[dict[str, Any]]]:
    """The digest of the chart from which a kept release was made, and its manifests."""
    text = kept_file(release).read_text(encoding="utf-8")
    return text.splitlines()[0].removeprefix("# "), [one for one in yaml.safe_load_all(text) if one]


def render(helm: str, release: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """What helm makes of the chart.

    Args:
        helm: the program.
        release: its name.
        values: what differs from the chart's own.
    """
    command = [helm, "template", release, str(CHART), "--kube-version", _KUBERNETES, "--values", "-"]
    return subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, check=False)


if __name__ == "__main__":
    program = find_helm()
    if program is None:
        raise SystemExit("There is no helm. Run: make helm")
    for name, given in RELEASES.items():
        done = render(program, name, given)
        if done.returncode:
            raise SystemExit(done.stderr)
        kept_file(name).write_text(f"# {chart_digest()}\n{done.stdout}", encoding="utf-8")
