"""Build a release and try it: archives, images and a bill of materials, each made twice and compared.

`make release` runs this. It needs git, a Python with `venv`, and for the images root or a Docker daemon. What it makes is in
`build/release/files`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from scripts.release.building import Tools, build_twice, check_page, write_materials
from scripts.release.trials import Trial, check_sizes

ROOT = Path(__file__).resolve().parents[2]
NO_DOCKER = 77
"""Exit status of the images' program when there is no Docker."""


def main() -> int:
    """Build and try the last commit; returns the exit status."""
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "release", help="where it works")
    parser.add_argument("--no-images", action="store_true", help="build no images")
    chosen = parser.parse_args()
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, check=True).stdout:  # noqa: S607
        print(
            "The work tree has changes: a release is made of the last commit. Commit them, or take them back."
        )
        return 2
    directory: Path = chosen.directory.resolve()
    shutil.rmtree(directory, ignore_errors=True)
    files = directory / "files"
    files.mkdir(parents=True)
    tools = Tools(ROOT, directory)
    wheel, source = build_twice(tools, files)
    check_page(tools, wheel)
    for line in check_sizes(tools, wheel):
        print(line)
    trials = [Trial(tools, archive) for archive in (wheel, source)]
    for trial in trials:
        trial.run_readme()
    write_materials(tools, [trial.full for trial in trials], files)
    for trial, engine in zip(trials, ("spark", "inprocess"), strict=True):
        trial.run_demo(engine)
    status = 0 if chosen.no_images else build_images(tools, trials[0])
    sums = [f"{sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in sorted(files.iterdir())]
    (files / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    print(*sums, f"Everything is in {files}", sep="\n")
    return status


def build_images(tools: Tools, trial: Trial) -> int:
    """Build and try the images in an environment that has the services' packages; returns the exit status."""
    command = [str(trial.full.python), "-m", "scripts.release.images", str(tools.epoch)]
    environment = {**tools.environment, "PYTHONPATH": str(tools.first), "PYTHON": str(tools.python)}
    status = subprocess.run(command, cwd=tools.first, env=environment, check=False).returncode
    if status == NO_DOCKER:
        print("IMAGES WERE NOT BUILT: there is no Docker. `make release ARGS=--no-images` leaves them out.")
    return status


if __name__ == "__main__":
    sys.exit(main())
