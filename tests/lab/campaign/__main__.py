"""Run a piece of the campaign: real services on real servers through faults drawn from a seed.

```
python -m tests.reliability run campaign --store postgres --engine workers --faults 200 --seed 1
```

Servers and services are started here, on free ports. Where this user may not mount disks, none is full.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import closing
from pathlib import Path

from tests.lab.campaign.piece import ENGINES, Piece
from tests.lab.campaign.servers import STORES, running
from tests.lab.figures import report


def main(arguments: list[str] | None = None) -> int:
    """Run a piece, print its figures, and 1 as exit status if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults")
    parser.add_argument("--store", choices=STORES, default="redis")
    parser.add_argument("--engine", choices=sorted(ENGINES), default="inprocess")
    parser.add_argument("--json", type=Path, help="write the figures there, as one JSON object")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="campaign-") as directory,
        running(options.store, Path(directory)) as servers,
        closing(Piece(servers, Path(directory), options.engine, options.seed)) as piece,
    ):
        wrong = piece.run(options.faults)
    figures = {
        "tool": "campaign",
        "counts": dict(piece.found),
        "seed": options.seed,
        "seconds": round(time.perf_counter() - began, 1),
        "store": options.store,
        "engine": options.engine,
    }
    return report(figures, wrong, options.json)


if __name__ == "__main__":
    raise SystemExit(main())
