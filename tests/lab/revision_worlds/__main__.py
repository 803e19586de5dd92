"""Run random worlds in which code is corrected under its name.

```
python -m tests.lab.revision_worlds --worlds 20000 --seed 0 --jobs 2
python -m tests.lab.revision_worlds --worlds 2000 --mutants             after how many worlds each wrong rule is found
```
"""

from __future__ import annotations

import sys

from tests.lab.revision_worlds.mutants import MUTANTS, mutated
from tests.lab.revision_worlds.world import verdict
from tests.lab.world_program import WorldProgram

PROGRAM = WorldProgram("revision_worlds", verdict, MUTANTS, mutated)

if __name__ == "__main__":
    sys.exit(PROGRAM.main())
