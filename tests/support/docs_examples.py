"""Extract the code blocks of the documentation, so that tests can run them.

Conventions for pages (checked by tests/unit/test_docs.py):

* The `python` blocks of a page are run in order, in one namespace, without servers.
* A block of any language whose first line is a comment with a file name (`# screws.py`, `// screws.proto`) is that
  file: it is written first, so that later blocks can import it and commands can use it.
* A `console` block has commands after `$ `, each followed by its output, in which `...` stands for anything. On a page
  with `<!-- run the commands of this page -->` they are run one after another on real servers
  (tests/integration/test_docs_commands.py); on other pages they are checked without being run.
* Every other block is `text`.

Run as a program, this runs the python blocks of one page in the working directory.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
RUN_MARK = "<!-- run the commands of this page -->"
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"(?:#|//) ([\w.-]+\.\w+)\n")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line on which the text begins (from 1)."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """Name of the file that this block is; None when it is not a file."""
        found = _FILE.match(self.text)
        return found[1] if found else None


@dataclass(frozen=True)
class Command:
    """A command, its expected output ("" when it does not matter), and its line."""

    text: str
    shown: str
    line: int


def pages() -> list[Path]:
    """All pages for users."""
    names = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "proto/README.md")
    found = [ROOT / name for name in names]
    return [*found, *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    """A page's path as it appears in test ids."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    return [Block(f[1], f[2], text.count("\n", 0, f.start(2)) + 1) for f in _FENCE.finditer(text)]


def block_with(page: Path, text: str) -> Block:
    """The block of a page that contains a text."""
    (block,) = [block for block in blocks(page) if text in block.text]
    return block


def commands(page: Path) -> Iterator[Command]:
    """The commands of a page, in order; a backslash at the end of a line continues the command."""
    for block in blocks(page):
        if block.language != "console":
            continue
        lines = block.text.splitlines()
        index = 0
        while index < len(lines):
            start, command = index, lines[index].removeprefix("$ ")
            while command.endswith("\\"):
                index += 1
                command = command[:-1] + lines[index].strip()
            index += 1
            shown = index
            while index < len(lines) and not lines[index].startswith("$ "):
                index += 1
            yield Command(command, "\n".join(lines[shown:index]).strip(), block.line + start)


def write_files(page: Path, directory: Path) -> None:
    """Write the files that a page shows; a .proto file is also compiled to a module."""
    for block in blocks(page):
        if block.file:
            (directory / block.file).write_text(block.text, encoding="utf-8")
            if block.file.endswith(".proto"):
                compiler = [sys.executable, "-m", "grpc_tools.protoc", "-I.", "--python_out=."]
                subprocess.run([*compiler, block.file], cwd=directory, check=True)


def matches(shown: str, expected: str) -> bool:
    """Whether output matches that of the page; white space at line ends is ignored."""
    wanted = "".join(".*?" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", expected))
    lines = [line.rstrip() for line in shown.splitlines() if not re.match(r"%\d\|", line)]  # librdkafka's
    return re.fullmatch(wanted, "\n".join(lines).strip(), re.DOTALL) is not None


def run_python(page: Path) -> None:
    """Run the python blocks of a page; a traceback names the page and the line."""
    sys.path.insert(0, "")
    module = ModuleType("__page__")
    sys.modules[module.__name__] = module  # dataclasses look for the module of their class
    for block in blocks(page):
        if block.language == "python" and not block.file:
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            exec(code, vars(module))  # noqa: S102 - our own pages


def exists(module: str) -> bool:
    """Whether `python -m` finds a module."""
    return importlib.util.find_spec(module) is not None


if __name__ == "__main__":
    write_files(Path(sys.argv[1]), Path.cwd())
    run_python(Path(sys.argv[1]))
