"""Prose of the repository, and what docs/contributing/writing.md asks of it: `python -m tests.support.prose PATH...` lists what is left."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
MOST_WORDS: Final = 25
"""Words of one sentence."""
_S: Final = r"(?:s|ed|ing)?"
WORDS: Final[dict[str, str]] = {
    r"(?:un)?(?:said|sa(?:y|ys|ying))": "report, publish, emit",
    r"(?:tell|tells|telling|told)": "report, publish, emit",
    r"beat(?:s|en|ing)?": "inject faults into",
    r"(?:the|a) way of an?": "the path, the life of",
    r"who(?:so)?ever": "name the actor",
    r"of which": "start a new sentence, or name the thing",
    r"what is wanted": "name the thing",
    r"so many|that long": "the number, the time",
    r"suspects?|on trial|acquit\w*|spar(?:e|es|ed)": "candidate, retry alone, clear",
    r"done (?:again|over)": "redone, re-executed",
    r"misplaced?|strays?": "mis-partitioned key",
    r"brakes?": "limit on skipped records",
    r"in place(?! of)": "without a shuffle",
    r"home stores?": "metadata store",
    r"left out|lea(?:ve|ves|ving) out|exclud(?:e|es|ed|ing)": "skip, skipped",
    r"(?<!first )(?<!small )(?<!capital )(?<!dead-)letters?(?! records?)(?!,? (?:and |or )?(?:digits|numbers|dots))": "dead-letter record",
    r"announc(?:e|es|ed|ing|er|ements?)": "republish states",
    r"let(?:s|ting)? go": "mark idle",
    r"ways? out": "what to do",
    r"stand(?:s|ing)?(?! for| alone|-in|-ins|-by|-alone)": "is stored, is written",
    rf"mend{_S}": "fix",
    r"for good|for ever|forever": "durably, permanently",
    r"anew|once more": "again",
    rf"witness(?:es|{_S})": "consistency check",
}
"""Words that the style page replaces, and what it says instead."""
_BANNED: Final = {re.compile(rf"\b(?:{words})\b", re.IGNORECASE): instead for words, instead in WORDS.items()}
_ANY: Final = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)
ALLOWED: Final[dict[str, str]] = {
    "docs/contributing/writing.md": "lists the words",
    "tests/support/prose.py": "lists the words",
    "tests/unit/test_writing.py": "breaks the rules on purpose",
}
"""Files that may use them, and why."""
EXCEPTIONS: Final[dict[tuple[str, str], str]] = {
    ("docs/reference/command.md", "announce"): "the name of a command",
    (
        "tests/plugins/folder_store/folder_store.py",
        "beat",
    ): "a method of the port of homes: the beat of a heart",
    (
        "sqe_chain/ext/wal/record.py",
        "Record",
    ): "public beside `sqe_chain.stages.Record`: each is what its module is about",
}
"""Single words of a file that stay, and why."""
VAGUE: Final = frozenset({"found", "one"})
"""Names that say nothing of what they are bound to."""
_KINDS: Final = ("*.py", "*.md", "*.proto", "Makefile", "*.yml", "Dockerfile", "*.toml", ".ci/run")
_SECTION: Final = re.compile(r"^\s*(?:Args|Attributes|Raises|Returns|Yields|Examples?|Note):\s*$")
_ITEM: Final = re.compile(r"^\s*(?:[-*]|\d+\.|\*{0,2}[\w`.]+(?: \([^)]*\))?:(?= ))\s")
_CODE: Final = re.compile(r"``[^`]+``|`[^`]+`")
_TREE: Final = re.compile(r"[│├└]")
_LINK: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_END: Final = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_`]*[A-Z0-9X])")
_SPOKEN: Final = frozenset({"text", "help", "description", "epilog"})


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph, item, cell, comment or text."""

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A passage that the style page does not allow."""

    passage: Passage
    rule: str

    def __str__(self) -> str:
        return f"{self.passage.file}:{self.passage.line}: {self.rule}: {self.passage.text[:160]}"


def _clean(text: str) -> str:
    """The text as words: code is one word, a link its text."""
    text = _CODE.sub("X", _LINK.sub(r"\1", text))
    return re.sub(r"<[^>]+>|https?://\S+", "X", text).strip()


def sentences(text: str) -> list[str]:
    """Sentences of a cleaned text."""
    return [sentence for sentence in _END.split(text) if sentence]


def count_words(sentence: str) -> int:
    """Words of a sentence; a number or a piece of code is one."""
    return len(re.findall(r"[\w][\w'.,/@:-]*", sentence))


def _paragraphs(file: str, first: int, text: str) -> Iterator[Passage]:
    """Paragraphs, items and cells of Markdown or of a docstring, without its code blocks."""
    held: list[str] = []
    start, fence = first, False
    for number, line in enumerate([*text.splitlines(), ""], first):
        bare = "" if _TREE.search(line) else line.strip()
        if bare.startswith(("```", "~~~")):
            fence = not fence
        ends = not bare or bare.startswith(("```", "~~~", "|", "#", ">>>", "...")) or _SECTION.match(line)
        if (ends or fence or _ITEM.match(line)) and held:
            yield Passage(file, start, _clean(" ".join(held)))
            held = []
        if fence or bare.startswith(("```", "~~~", ">>>", "...")) or _SECTION.match(line):
            continue
        if bare.startswith("|"):
            yield from (
                Passage(file, number, _clean(cell))
                for cell in bare.strip("|").split("|")
                if cell.strip(" -:")
            )
        elif bare.startswith("#"):
            yield Passage(file, number, _clean(bare.lstrip("# ")))
        elif bare:
            start = start if held else number
            held.append(_ITEM.sub("", line).strip() if _ITEM.match(line) and not held else bare)


def _comments(file: str, source: str) -> Iterator[Passage]:
    """Comments of Python source: a block of lines as one, and each comment beside code."""
    held: list[str] = []
    start, last = 0, -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = re.sub(r"^#!?\s?|\s*(?:noqa|type: ignore|pragma|fmt:|pyright:).*$", "", token.string)
        alone = not token.line[: token.start[1]].strip()
        if held and (token.start[0] != last + 1 or not alone):
            yield Passage(file, start, _clean(" ".join(held)))
            held = []
        start = start if held else token.start[0]
        last = token.start[0] if alone else -1
        held.append(text)
    if held:
        yield Passage(file, start, _clean(" ".join(held)))


def _spoken(node: ast.AST) -> list[ast.AST]:
    """What an expression shows to a person: error texts, notices, help."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return list(node.exc.args)
    if isinstance(node, ast.Call):
        return [keyword.value for keyword in node.keywords if keyword.arg in _SPOKEN]
    return []


def _string(node: ast.AST) -> str:
    """A text with X for each value that is put in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else "X"
    if isinstance(node, ast.JoinedStr):
        return "".join(_string(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _string(node.left) + _string(node.right)
    return "X"


def _python(file: str, source: str) -> Iterator[Passage]:
    tree = ast.parse(source)
    yield from _comments(file, source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield from _paragraphs(file, node.lineno, node.value.value)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and file.startswith("tests/"):
            yield Passage(file, node.lineno, node.name.replace("_", " "))
        for part in _spoken(node):
            text = _string(part)
            if " " in text.strip():
                yield Passage(file, part.lineno, _clean(text))  # type: ignore[attr-defined]


def passages(file: str) -> Iterator[Passage]:
    """All prose of one file of the repository."""
    source = (ROOT / file).read_text(encoding="utf-8")
    if file.endswith(".py"):
        yield from _python(file, source)
    elif file.endswith(".md"):
        yield from _paragraphs(file, 1, source)
    else:
        for number, line in enumerate(source.splitlines(), 1):
            comment = re.match(r"^\s*(?:#|//)+\s*(.*)$|^.*\s(?:#|##|//)\s+(.*)$", line)
            if comment:
                yield Passage(file, number, _clean(comment[1] or comment[2] or ""))


def faults(file: str) -> Iterator[Fault]:
    """What one file does that the style page does not allow."""
    if file in ALLOWED:
        return
    for passage in passages(file):
        for banned, instead in _BANNED.items() if _ANY.search(passage.text) else ():
            if (hit := banned.search(passage.text)) and (file, hit[0]) not in EXCEPTIONS:
                yield Fault(passage, f"'{hit[0]}' (write: {instead})")
        for sentence in sentences(passage.text):
            if (words := count_words(sentence)) > MOST_WORDS:
                yield Fault(Passage(passage.file, passage.line, sentence), f"a sentence of {words} words")


def vague_names(file: str) -> Iterator[Fault]:
    """Variables of one file of the package that do not name a thing."""
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        name = node.id if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ""
        name = node.arg if isinstance(node, ast.arg) else name
        if name in VAGUE:
            yield Fault(Passage(file, node.lineno, name), "a variable that does not name the thing")  # type: ignore[attr-defined]


def repeated_classes(listed: Sequence[str]) -> Iterator[Fault]:
    """Classes of the package that share a name."""
    first: dict[str, str] = {}
    for file in listed:
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef) or (file, node.name) in EXCEPTIONS:
                continue
            if first.setdefault(node.name, file) != file:
                yield Fault(
                    Passage(file, node.lineno, node.name), f"a class of this name is in {first[node.name]}"
                )


def package(listed: Sequence[str]) -> list[str]:
    """Those files that are Python of the package."""
    return [file for file in listed if file.startswith("sqe_chain/") and file.endswith(".py")]


def all_faults(*under: str) -> Iterator[Fault]:
    """What the files under some paths do that the style page does not allow; without a path, all files."""
    listed = files(*under)
    for file in listed:
        yield from faults(file)
    for file in package(listed):
        yield from vague_names(file)
    yield from repeated_classes(package(listed))


def files(*under: str) -> list[str]:
    """Files with prose that git knows, without what is generated."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *(under or _KINDS)],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    return [
        file
        for file in listed
        if any(Path(file).match(kind) for kind in _KINDS)
        and "_proto/" not in file
        and (ROOT / file).is_file()
    ]


if __name__ == "__main__":
    for fault in all_faults(*sys.argv[1:]):
        sys.stdout.write(f"{fault}\n")
