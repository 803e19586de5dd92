"""What a mutant is: a bug as text, the tests that have to notice it, and whether the simulator does."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True)
class Replacement:
    """A bug as a replacement of source text.

    Attributes:
        file: path inside the package.
        new: the present, correct text; stands there once.
        old: the wrong text.
    """

    file: str
    new: str
    old: str


@dataclass(frozen=True)
class Mutant:
    """A bug that is put into a copy of the package.

    Attributes:
        name: what it does, in plain words.
        replacements: that bring it in.
        tests: tests that fail then, as pytest names them; one is enough.
        schedules: the simulator finds it within so many schedules from seed 0; 0: it does not look there.
        unsimulated: why it does not: what it breaks is outside of the simulator's world; or by how many schedules it was not found.
        servers: its tests need real servers.
    """

    name: str
    replacements: tuple[Replacement, ...]
    tests: tuple[str, ...]
    schedules: int
    unsimulated: str = ""
    servers: bool = False

    @property
    def digest(self) -> str:
        """Digest of all that it replaces: what was judged is this."""
        texts = [text for one in self.replacements for text in (one.file, one.new, one.old)]
        return blake2b("\0".join(texts).encode(), digest_size=6).hexdigest()


def mutant(
    name: str,
    *texts: tuple[str, str, str],
    tests: tuple[str, ...] = (),
    schedules: int = 0,
    unsimulated: str = "",
    servers: bool = False,
) -> Mutant:
    """Make a mutant.

    Args:
        name: what it does, in plain words.
        texts: file inside the package, present text, wrong text.
        tests: see `Mutant`.
        schedules: see `Mutant`.
        unsimulated: see `Mutant`.
        servers: see `Mutant`.
    """
    return Mutant(name, tuple(Replacement(*one) for one in texts), tests, schedules, unsimulated, servers)
