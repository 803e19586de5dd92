"""Mutants that nobody has thought of: in the core each comparison, condition, number, call and return is changed, one at a time.

They are made again each time, so nothing has to be kept up: only those that change nothing are listed, with the reason.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Final

from tests.lab.mutants.edits import Operation, put
from tests.lab.mutants.injection import PACKAGE, TREE, Copy, Finding, package
from tests.lab.mutants.mutant import Mutant

CORE: Final = (
    "chain", "envelope/marks", "envelope/mark", "envelope/runs", "task/level", "task/outputs", "task/records", "task/gate",
    "task/event_times", "task/states", "task/exclusion", "protocol/with_plans", "protocol/claim",
    "features/closing", "features/ticking", "features/timing", "features/event_times", "features/waiting",
    "protocol/entering", "protocol/finish",
    "plans/plan", "features/rebuilding", "plans/planning", "protocol/processing",
    "protocol/redo", "plans/same_inputs", "plans/layout", "memory/store",
)  # fmt: skip
"""Files that decide what counts once."""
EQUIVALENT: Final[dict[str, str]] = {}
"""Name of a mutant -> why it changes nothing that anybody could notice."""
_CONTRARY: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_FAST: Final = ("--suite", "fast", "--timeout", "20")
"""A fast test takes no seconds, unless a mutant makes it wait without end."""
_UNTOUCHED: Final = ("annotation", "returns", "decorator_list")
_TEXTS: Final = ("__str__", "__repr__")
_LONGEST: Final = 160
"""Characters of what a mutant is called."""
_Place = tuple[object, object, ast.AST, str]
"""Owner of a node, the place in it, the node, and the line that it belongs to."""


def core_files() -> list[Path]:
    """The files of the core, wherever they are."""
    files = [*PACKAGE.rglob("*.py")]
    return [file for name in CORE for file in files if f"/{file.with_suffix('')}".endswith(f"/{name}")]


def made(
    only: Sequence[str] = (), count: int = 0, *, draw: int = 0, files: Sequence[Path] = ()
) -> list[Mutant]:
    """Mutants of the core.

    Args:
        only: texts; a file's path, or a mutant's name, must have one of them. All by default.
        count: how many of them, always the same; 0: all.
        draw: another number gives others.
        files: instead of those of the core.
    """
    found = [
        one
        for file in files or core_files()
        for one in _of_file(file)
        if not only or any(text in str(file) or text in one.name for text in only)
    ]
    found = [one for one in found if one.name not in EQUIVALENT]
    if count:
        found = sorted(found, key=lambda one: blake2b(f"{draw or ''}{one.name}".encode()).digest())[:count]
    return found


def judged(copy: Copy, mutant: Mutant) -> Finding:
    """Look for a fast test that notices a mutant: in files of its module's name, in those that import it, and then everywhere."""
    (place, _), *_ = mutant.edits
    with copy.injected(mutant.edits):
        for files in _tests_of(package().find(place)[0]):
            finding = copy.tested([*files, *_FAST]) if files else None
            if finding is not None and not finding.green:
                return finding
        return copy.tested(["tests/unit", "tests/protocol", *_FAST])


def _of_file(file: Path) -> Iterator[Mutant]:
    stem, names = f"{file.parent.name}/{file.stem}", Counter[str]()
    for qualified in _functions(package().tree(file).body):
        place = f"{stem}:{qualified}"
        for at, (_, _, node, line) in enumerate(_places(package().find(place)[1])):
            for which, (_, what) in enumerate(_variants(node)):
                source = f"{what} in `{line}`" if isinstance(node, ast.Constant) else what
                name = f"{place}: {source if len(source) <= _LONGEST else source[:_LONGEST] + '…'}"
                names[name] += 1
                number = f" ({names[name]})" if names[name] > 1 else ""
                yield Mutant(name + number, ((place, _operation(at, which, what)),))


def _operation(at: int, which: int, what: str) -> Operation:
    def change(tree: ast.AST) -> None:
        owner, where, node, _ = [*_places(tree)][at]
        new, _ = [*_variants(node)][which]
        put(owner, where, new)

    return Operation(what, change)


def _functions(block: Sequence[ast.stmt], outer: str = "") -> Iterator[str]:
    """Qualified names; not those that are there twice, as overloads and setters are."""
    names = Counter(one.name for one in block if isinstance(one, ast.FunctionDef))
    for node in block:
        if isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{outer}{node.name}.")
        elif isinstance(node, ast.FunctionDef) and names[node.name] == 1 and node.name not in _TEXTS:
            yield f"{outer}{node.name}"


def _places(node: ast.AST, line: str = "") -> Iterator[_Place]:
    """Expressions and statements of a function that may be changed: neither types, nor texts, nor errors."""
    for name, value in ast.iter_fields(node):
        owner = value if isinstance(value, list) else node
        for where, one in enumerate(value) if isinstance(value, list) else [(name, value)]:
            if name in _UNTOUCHED or not isinstance(one, ast.AST) or isinstance(one, ast.JoinedStr):
                continue
            own = ast.unparse(one).partition("\n")[0] if isinstance(one, ast.stmt) else line
            yield owner, where, one, own
            if not isinstance(one, ast.Raise):
                yield from _places(one, own)


def _variants(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What may take the place of a node, and how that is called."""
    if isinstance(node, ast.expr):
        source = ast.unparse(node)
        yield from ((new, f"{source} -> {ast.unparse(new)}") for new in _expressions(node))
    elif isinstance(node, ast.stmt):
        source = ast.unparse(node).partition("\n")[0]
        yield from ((new, f"{source} {what}") for new, what in _statements(node))


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(left, ops, others):
            for at, one in enumerate(ops):
                yield ast.Compare(left, [*ops[:at], _CONTRARY[type(one)](), *ops[at + 1 :]], others)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(int() as number) if not isinstance(number, bool):
            yield from (ast.Constant(number + 1), ast.Constant(number - 1))
        case ast.Call(ast.Name("max" | "min")) | ast.Call(ast.Attribute(attr="at")):
            return
        case ast.Call(function, [first, second, *rest], keywords) if not isinstance(first, ast.Starred):
            if not isinstance(second, ast.Starred) and ast.dump(first) != ast.dump(second):
                yield ast.Call(function, [second, first, *rest], keywords)


def _statements(node: ast.stmt) -> Iterator[tuple[ast.stmt, str]]:
    match node:
        case ast.If(test) | ast.While(test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            new = copy.copy(node)
            new.test = ast.UnaryOp(ast.Not(), test)
            yield new, "-> not"
        case ast.Return(ast.Constant(None)):
            return
        case ast.Return(ast.Constant(bool() as value)):
            yield ast.Return(ast.Constant(not value)), f"-> {not value}"
        case ast.Return(ast.expr()):
            yield ast.Return(ast.Constant(None)), "-> None"
        case (
            ast.Expr(ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Raise() | ast.Delete()
        ):
            yield ast.Pass(), "dropped"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield ast.Pass(), "dropped"


@cache
def _texts_of_tests() -> dict[str, str]:
    files = [
        file
        for folder in ("unit", "protocol")
        for file in sorted((TREE / "tests" / folder).rglob("test_*.py"))
    ]
    return {str(file.relative_to(TREE)): file.read_text() for file in files}


def _tests_of(file: Path) -> tuple[list[str], list[str]]:
    """Test files that have a module's name, and others that import it."""
    module = ".".join(file.relative_to(TREE).with_suffix("").parts)
    imports = re.compile(rf"^from {re.escape(module)} import", re.MULTILINE)
    found = [name for name, source in _texts_of_tests().items() if imports.search(source)]
    named = [name for name in found if Path(name).stem.startswith(f"test_{file.stem}")]
    return named, [name for name in found if name not in named]
