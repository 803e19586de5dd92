"""What a mutant does to a function: an operation on its syntax tree, whatever file the function is in and however it is written.

A place is the qualified name of a function, class or constant, as "MarkSet.accept". It is "marks:MarkSet.accept" or
"replays/marks:MarkSet.accept" where other files have one of that name, too. Expressions and statements are compared by their
syntax trees, and must be in the function exactly once. Of a compound statement only the head is given: "if head.previous:".
`...` is for what does not matter: "for level in ...:", "check_same_id(...)". In a new expression, `...` is the expression that
it replaces: "reversed(...)".
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from textwrap import dedent, indent
from typing import Final, TypeVar, cast

T = TypeVar("T")
Edit = tuple[str, "Operation"]
"""A place, and what happens there."""
_FIRST_NAMES: Final = re.compile(r"^(?:class |def |async def )?(\w+)", re.MULTILINE)
_BLOCKS: Final = ("body", "orelse")
_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class MisplacedError(Exception):
    """A mutant cannot be put into the package any more: what it names is gone, or there twice."""


@dataclass(frozen=True)
class Operation:
    """What happens to a function.

    Attributes:
        text: its arguments, the input of the digest.
        change: changes a tree.
    """

    text: str
    change: Callable[[ast.AST], None] = field(compare=False)


def replace(old: str, new: str) -> Operation:
    """Replace an expression, or a statement.

    Args:
        old: the present expression, or statement.
        new: what is there then; several statements may replace one, and of two heads the blocks stay.
    """

    def change(tree: ast.AST) -> None:
        wanted, wrong = _expression(old), _expression(new)
        if wanted is not None and wrong is not None:
            owner, where, found = _sole(_expressions(tree, wanted), old)
            put(owner, where, _Filled(found).visit(wrong))
        elif _is_head(old) and _is_head(new):
            block, at = _statement_at(tree, old)
            _take_head(block[at], _statement(new))
        else:
            put(*_statement_at(tree, old), *_statements(new))

    return Operation(f"replace {old!r} {new!r}", change)


def argument(keyword: str, new: str) -> Operation:
    """Replace what is given for a keyword.

    Args:
        keyword: of one call of the function.
        new: what is given then; "": nothing.
    """

    def change(tree: ast.AST) -> None:
        calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
        call, given = _sole(
            ((one, key) for one in calls for key in one.keywords if key.arg == keyword), f"{keyword}="
        )
        if new:
            given.value = ast.parse(new, mode="eval").body
        else:
            call.keywords.remove(given)

    return Operation(f"argument {keyword!r} {new!r}", change)


def drop(*statements: str) -> Operation:
    """Drop statements; of a compound one its whole body, too."""

    def change(tree: ast.AST) -> None:
        for text in statements:
            put(*_statement_at(tree, text))

    return Operation(f"drop {statements!r}", change)


def before(statement: str, new: str) -> Operation:
    """Put statements before another one."""

    def change(tree: ast.AST) -> None:
        block, at = _statement_at(tree, statement)
        block[at:at] = _statements(new)

    return Operation(f"before {statement!r} {new!r}", change)


def swap(first: str, second: str) -> Operation:
    """Exchange two statements."""

    def change(tree: ast.AST) -> None:
        (block, at), (other, there) = (_statement_at(tree, text) for text in (first, second))
        block[at], other[there] = other[there], block[at]

    return Operation(f"swap {first!r} {second!r}", change)


def negate(condition: str) -> Operation:
    """Take the contrary of a condition."""
    return Operation(f"negate {condition!r}", replace(condition, f"not ({condition})").change)


def unguard(guard: str) -> Operation:
    """Do what a statement guards in any case: the body of an `if` takes its place.

    Args:
        guard: head of the `if`.
    """

    def change(tree: ast.AST) -> None:
        block, at = _statement_at(tree, guard)
        guarded = block[at]
        assert isinstance(guarded, ast.If), guard
        block[at : at + 1] = guarded.body

    return Operation(f"unguard {guard!r}", change)


def body(new: str) -> Operation:
    """Replace the whole body of a function."""

    def change(tree: ast.AST) -> None:
        assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef), new
        tree.body = _statements(new)

    return Operation(f"body {new!r}", change)


def text(old: str, new: str) -> Operation:
    """Replace a part of a text in one of a function's string constants, for example of a script."""

    def change(tree: ast.AST) -> None:
        found = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and _count(one, old)]
        if sum(_count(one, old) for one in found) != 1:
            raise MisplacedError(f"{old!r} is in {len(found)} texts there")
        found[0].value = str(found[0].value).replace(old, new)

    return Operation(f"text {old!r} {new!r}", change)


class Package:
    """Source files, in which places are found by their names; each is parsed once.

    Args:
        folder: where they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._texts = {file: file.read_text() for file in sorted(folder.rglob("*.py"))}
        self._trees: dict[Path, ast.Module] = {}
        self._with: dict[str, list[Path]] = {}
        for file, source in self._texts.items():
            for name in set(_FIRST_NAMES.findall(source)):
                self._with.setdefault(name, []).append(file)

    def find(self, place: str) -> tuple[Path, ast.stmt]:
        """The file in which a place is, and its tree.

        Args:
            place: a qualified name, with or without the stem of the file.

        Raises:
            MisplacedError: it is not there, or twice.
        """
        stem, _, qualified = place.rpartition(":")
        names = qualified.split(".")
        found = [
            (file, node)
            for file in self._with.get(names[0], ())
            if not stem or f"/{file.with_suffix('')}".endswith(f"/{stem}")
            for node in _named(self.tree(file), names)
        ]
        if len(found) != 1:
            files = ", ".join(str(file.relative_to(self.folder)) for file, _ in found)
            raise MisplacedError(f"{place} is {f'in {files}' if found else 'not in the package'}")
        return found[0]

    def files(self) -> list[Path]:
        """All source files."""
        return [*self._texts]

    def tree(self, file: Path) -> ast.Module:
        """The tree of a file."""
        if file not in self._trees:
            self._trees[file] = ast.parse(self._texts[file])
        return self._trees[file]

    def mutated(self, edits: Sequence[Edit]) -> dict[Path, str]:
        """File -> its text after edits, one after the other.

        Args:
            edits: what to do.

        Raises:
            MisplacedError: one cannot be done, or changes nothing.
        """
        changed: dict[str, tuple[Path, ast.stmt, ast.stmt]] = {}
        for place, operation in edits:
            if place not in changed:
                file, sound = self.find(place)
                changed[place] = file, sound, self._copy(file, sound)
            try:
                operation.change(changed[place][2])
            except MisplacedError as error:
                raise MisplacedError(f"{place}: {error}") from None
        texts: dict[Path, list[str]] = {}
        # From the end on, for the lines of what comes before to stay where they are.
        for file, sound, wrong in sorted(changed.values(), key=lambda one: -one[1].lineno):
            if ast.dump(sound) == ast.dump(wrong):
                raise MisplacedError(f"{file.stem}: nothing changes there")
            compile(ast.fix_missing_locations(ast.Module([wrong], [])), str(file), "exec")
            lines = texts.setdefault(file, self._texts[file].splitlines())
            lines[_begin(sound) : sound.end_lineno] = indent(
                ast.unparse(wrong), " " * sound.col_offset
            ).splitlines()
        return {file: "\n".join(lines) + "\n" for file, lines in texts.items()}

    def _copy(self, file: Path, node: ast.stmt) -> ast.stmt:
        """A tree of its own, of the same source; parsing is faster than copying."""
        lines = self._texts[file].splitlines()[_begin(node) : node.end_lineno]
        if not node.col_offset:
            return ast.parse("\n".join(lines)).body[0]
        (block,) = ast.parse("\n".join(["if block:", *lines])).body
        assert isinstance(block, ast.If)
        return block.body[0]


def digest_of(*trees: ast.AST | str) -> str:
    """Digest of trees, without their formatting."""
    texts = [tree if isinstance(tree, str) else ast.dump(tree) for tree in trees]
    return blake2b("\0".join(texts).encode(), digest_size=6).hexdigest()


def _begin(node: ast.stmt) -> int:
    """Index of its first line, with decorators."""
    decorators = node.decorator_list if isinstance(node, _DEFINITIONS) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)]) - 1


def _named(tree: ast.Module, names: Sequence[str]) -> Iterator[ast.stmt]:
    """What has a qualified name in a file: a function, class, or constant."""
    blocks: list[list[ast.stmt]] = [tree.body]
    for depth, name in enumerate(names, 1):
        found = [one for block in blocks for one in block if name in _names_of(one)]
        if depth == len(names):
            yield from found
        blocks = [one.body for one in found if isinstance(one, _DEFINITIONS)]


def _names_of(node: ast.stmt) -> list[str]:
    if isinstance(node, _DEFINITIONS):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


@lru_cache(maxsize=4096)
def _parsed(source: str) -> ast.expr | None:
    try:
        return ast.parse(f"({source.strip()}\n)", mode="eval").body
    except SyntaxError:
        return None


def _expression(source: str) -> ast.expr | None:
    return copy.deepcopy(_parsed(source))


def _statements(source: str) -> list[ast.stmt]:
    """Statements as a source states them; it has no `return` outside of a function, as it is not compiled."""
    return ast.parse(dedent(source)).body


def _is_head(source: str) -> bool:
    return source.rstrip().endswith(":")


def _statement(source: str) -> ast.stmt:
    (found,) = _statements(f"{source.rstrip()} ..." if _is_head(source) else source)
    return found


def _take_head(node: ast.stmt, other: ast.stmt) -> None:
    for name in {*other._fields} - {*_BLOCKS}:
        setattr(node, name, getattr(other, name))


class _Filled(ast.NodeTransformer):
    """Replaces `...` by an expression."""

    def __init__(self, found: ast.expr) -> None:
        self.found = found

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self.found if _is_anything(node) else node


def _is_anything(wanted: object) -> bool:
    return isinstance(wanted, ast.Constant) and wanted.value is ...


def _is_like(node: object, wanted: object) -> bool:
    """Whether a tree is the wanted one, in which `...` is for any part, and for all arguments of a call."""
    if _is_anything(wanted):
        return isinstance(node, ast.expr)
    if type(node) is not type(wanted):
        return False
    if isinstance(wanted, list):
        return len(cast("list[object]", node)) == len(wanted) and all(
            map(_is_like, cast("list[object]", node), wanted)
        )
    if (
        isinstance(node, ast.Call)
        and isinstance(wanted, ast.Call)
        and [*map(_is_anything, wanted.args)] == [True]
    ):
        return _is_like(node.func, wanted.func)
    if isinstance(wanted, ast.AST):
        return all(
            _is_like(getattr(node, name, None), getattr(wanted, name, None)) for name in wanted._fields
        )
    return node == wanted


def _expressions(tree: ast.AST, wanted: ast.expr) -> Iterator[tuple[object, object, ast.expr]]:
    """Where an expression is: in an attribute of a node, or in a list; and how it is written there."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.expr) and _is_like(value, wanted):
                yield node, name, value
            elif isinstance(value, list):
                for at, one in enumerate(value):
                    if isinstance(one, ast.expr) and _is_like(one, wanted):
                        yield value, at, one


def _statement_at(tree: ast.AST, source: str) -> tuple[list[ast.stmt], int]:
    """Where a statement is: a block, and the index in it."""
    headed, wanted = _is_head(source), _statement(source)
    if headed:
        wanted = _head(wanted)
    places = (
        (value, at)
        for node in ast.walk(tree)
        for _, value in ast.iter_fields(node)
        if isinstance(value, list)
        for at, one in enumerate(value)
        if type(one) is type(wanted) and _is_like(_head(one) if headed else one, wanted)
    )
    return _sole(places, source)


def _head(node: ast.stmt) -> ast.stmt:
    """A compound statement without its blocks."""
    head = copy.copy(node)
    for block in {*_BLOCKS} & {*node._fields}:
        setattr(head, block, [])
    return head


def _sole(places: Iterator[T], source: str) -> T:
    found = list(places)
    if len(found) != 1:
        raise MisplacedError(f"`{source}` is there {len(found)} times")
    return found[0]


def put(owner: object, where: object, *new: ast.AST) -> None:
    """Replace a node by others: in a list, or in an attribute."""
    if isinstance(owner, list):
        assert isinstance(where, int)
        owner[where : where + 1] = new
        if not owner:
            owner.append(ast.Pass())
    else:
        setattr(owner, str(where), *new)


def _count(node: ast.Constant, part: str) -> int:
    return node.value.count(part) if isinstance(node.value, str) else 0
