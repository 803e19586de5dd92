"""Run random worlds of windows of windows.

```
python -m tests.lab.moment_worlds --worlds 5000 --seed 0 --jobs 2
python -m tests.lab.moment_worlds --worlds 500 --mutants             after how many worlds each wrong rule is found
```
"""

from __future__ import annotations

import sys

from tests.lab.moment_worlds.mutants import MUTANTS, mutated
from tests.lab.moment_worlds.world import verdict
from tests.lab.world_program import WorldProgram

PROGRAM = WorldProgram("moment_worlds", verdict, MUTANTS, mutated)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
