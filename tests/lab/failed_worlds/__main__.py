"""Run random worlds in which records fail.

```
python -m tests.lab.failed_worlds --worlds 20000 --seed 0 --jobs 2
python -m tests.lab.failed_worlds --worlds 2000 --mutants             after how many worlds each wrong rule is found
```
"""

from __future__ import annotations

import sys

from tests.lab.failed_worlds.mutants import MUTANTS, mutated
from tests.lab.failed_worlds.world import verdict
from tests.lab.world_program import WorldProgram

PROGRAM = WorldProgram("failed_worlds", verdict, MUTANTS, mutated)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
