"""What a mutant is: a bug as operations on functions, the tests that have to notice it, and whether the simulator does."""

from __future__ import annotations

from dataclasses import dataclass

from tests.lab.mutants.edits import Edit, digest_of


@dataclass(frozen=True)
class Mutant:
    """A bug that is put into a copy of the package.

    Attributes:
        name: the rule that it breaks, in plain words.
        edits: that bring it in.
        tests: tests that fail then, as "test_file::test_name[values]"; "folder/test_file" where a name is not unique.
        schedules: the number of schedules from seed 0 in which the simulator finds it; 0: it does not try.
        servers: its tests need real servers.
    """

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...] = ()
    schedules: int = 0
    servers: bool = False

    @property
    def digest(self) -> str:
        """Digest of functions and operations, whatever files they are in: what was judged is this."""
        texts = [
            text for place, operation in self.edits for text in (place.rpartition(":")[2], operation.text)
        ]
        return digest_of(*texts)


def mutant(
    name: str, *edits: Edit, killed_by: str | tuple[str, ...] = (), schedules: int = 0, servers: bool = False
) -> Mutant:
    """Make a mutant.

    Args:
        name: the rule that it breaks, in plain words.
        edits: place and operation, one after the other.
        killed_by: one test or several; see `Mutant.tests`.
        schedules: see `Mutant`.
        servers: see `Mutant`.
    """
    return Mutant(name, edits, (killed_by,) if isinstance(killed_by, str) else killed_by, schedules, servers)
