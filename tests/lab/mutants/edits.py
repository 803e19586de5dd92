"""What a mutant does to a function: an operation on its syntax tree, whatever file the function is in and however it is written.

A place is the qualified name of a function, class or constant, as "MarkSet.accept". It is "marks:MarkSet.accept" or
"replays/marks:MarkSet.accept" where other files have one of that name, too.

An operation names what it changes by identifiers: of attributes, functions, arguments and constants, as they are spelled
there, or with an owner: `mark.excused`. It takes the smallest condition, call, part or statement in which all of them occur,
and there must be one alone. `nth=2` takes the second one, in the order of the source. So formatting, comments, the code around it, and
the names of what is not named are free. New code is quoted, and in it `...` is what it replaces.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from textwrap import dedent, indent
from typing import Final

Edit = tuple[str, "Operation"]
"""A place, and what happens there."""
_FIRST_NAMES: Final = re.compile(r"^(?:class |def |async def )?(\w+)", re.MULTILINE)
_DEFINITIONS: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers")
_PARTS: Final = ("elts", "args", "keywords", "values", "left", "right")
"""Fields of a tree whose parts may be missing."""
_ASKED: Final = ("any", "all", "bool", "isinstance")
_OTHER_SIDE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip


class MisplacedError(Exception):
    """A mutant cannot be put into the package any more: what it names is gone, or there twice."""


@dataclass(frozen=True)
class Operation:
    """What happens to a function.

    Attributes:
        text: its name and arguments, the input of the digest.
        change: changes a tree.
    """

    text: str
    change: Callable[[ast.AST], None] = field(compare=False)


@dataclass(frozen=True)
class _Spot:
    """Where a node is: in a list, or in an attribute of the node above it.

    Attributes:
        owner: the list, or the node above.
        where: index, or name of the attribute.
        node: what is there.
        above: the node above.
        field: of the node above.
    """

    owner: object
    where: int | str
    node: ast.AST
    above: ast.AST
    field: str

    def put(self, *new: ast.AST) -> None:
        """Put others there."""
        put(self.owner, self.where, *new)


def operation(source: str) -> Operation:
    """Read an operation.

    Args:
        source: a call of one of `OPERATIONS`; identifiers as they are, with or without owners, new code in quotes.

    Raises:
        MisplacedError: there is no such operation.
    """
    match ast.parse(source.strip(), mode="eval").body:
        case ast.Call(ast.Name(name), given, keywords) if name in OPERATIONS:
            arguments = [_written(one) for one in given]
            nth = next((int(ast.unparse(one.value)) for one in keywords), 0)

            def change(tree: ast.AST) -> None:
                OPERATIONS[name](tree, arguments, nth)

            return Operation(
                " ".join([name, *map(repr, arguments), *([f"nth={nth}"] if nth else [])]), change
            )
        case _:
            raise MisplacedError(f"`{source}` is no operation. Expected one of {', '.join(OPERATIONS)}")


def _written(given: ast.expr) -> str:
    """Identifiers as they are, and what is in quotes without them."""
    return (
        given.value
        if isinstance(given, ast.Constant) and isinstance(given.value, str)
        else ast.unparse(given)
    )


def _always(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """The condition on these names holds."""
    _condition(tree, names, nth).put(ast.Constant(value=True))


def _never(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """It does not hold."""
    _condition(tree, names, nth).put(ast.Constant(value=False))


def _negate(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """The contrary holds."""
    spot = _condition(tree, names, nth)
    assert isinstance(spot.node, ast.expr)
    spot.put(ast.UnaryOp(ast.Not(), spot.node))


def _boundary(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """In a comparison on these names, the limit itself is on the other side: < is <=, >= is >."""
    found = [
        spot
        for spot in _spots(tree)
        if isinstance(spot.node, ast.Compare) and [type(op) in _OTHER_SIDE for op in spot.node.ops] == [True]
    ]
    compared = _sole(_smallest(found, names), "comparison", names, nth).node
    assert isinstance(compared, ast.Compare)
    compared.ops = [_OTHER_SIDE[type(compared.ops[0])]()]


def _drop(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """The statement with these names is gone; of a compound one they are in its head, and its blocks go, too."""
    _statement(tree, names, nth).put()


def _without(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """Of a list, call, sum, or condition with `and` or `or`, the part with these names is missing."""
    found = [
        spot
        for spot in _spots(tree)
        if (spot.field in _PARTS and not isinstance(spot.above, ast.Compare))
        or isinstance(spot.node, ast.Slice)
    ]
    spot = _sole(_smallest(found, names), "part", names, nth)
    if isinstance(spot.above, ast.BinOp):
        _spot_of(tree, spot.above).put(spot.above.left if spot.field == "right" else spot.above.right)
        return
    assert isinstance(spot.owner, list)
    del spot.owner[int(spot.where)]
    if isinstance(spot.above, ast.BoolOp) and len(spot.above.values) == 1:
        _spot_of(tree, spot.above).put(spot.above.values[0])


def _unchanged(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """A call of the first name gives its first argument unchanged; of a method without arguments, its object."""
    spot = _call(tree, names, nth)
    assert isinstance(spot.node, ast.Call)
    given, function = spot.node.args, spot.node.func
    spot.put(given[0] if given or not isinstance(function, ast.Attribute) else function.value)


def _gives(tree: ast.AST, arguments: Sequence[str], nth: int) -> None:
    """A call of the first name, with the others in it, gives the last argument."""
    *names, new = arguments
    spot = _call(tree, names, nth)
    spot.put(_expression(new, spot.node))


def _instead(tree: ast.AST, arguments: Sequence[str], nth: int) -> None:
    """In place of a name with its owner, or of the smallest operation with several names, is the last argument."""
    *names, new = arguments
    if len(names) > 1:
        found = [spot for spot in _spots(tree) if isinstance(spot.node, _OPERATIONS)]
        spot = _sole(_smallest(found, names), "expression", names, nth)
    else:
        spot = _by_name(tree, names[0], nth)
    expression = _expression(new, spot.node)
    if isinstance(spot.node, ast.Attribute) and isinstance(expression, ast.Name) and "." not in names[0]:
        spot.node.attr = expression.id
    else:
        spot.put(expression)


def _argument(tree: ast.AST, arguments: Sequence[str], nth: int) -> None:
    """What is given for a keyword is the last argument."""
    name, new = arguments
    found = [spot for spot in _spots(tree) if isinstance(spot.node, ast.keyword) and spot.node.arg == name]
    given = _sole(found, "keyword", [name], nth).node
    assert isinstance(given, ast.keyword)
    given.value = _expression(new, given.value)


def _assigned(tree: ast.AST, arguments: Sequence[str], nth: int) -> None:
    """What is assigned to a name is the last argument."""
    name, new = arguments
    found = [spot for spot in _spots(tree) if name in _targets(spot.node)]
    # Of a constant the tree is the assignment itself.
    node = tree if name in _targets(tree) else _sole(found, "assignment", [name], nth).node
    assert isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr | ast.AugAssign)
    assert node.value is not None
    node.value = _expression(new, node.value)


def _plus(tree: ast.AST, arguments: Sequence[str], nth: int) -> None:
    """A name, or what its call gives, is higher by the last argument."""
    name, by = arguments
    spot = _by_name(tree, name, nth)
    if isinstance(spot.above, ast.Call) and spot.field == "func":
        spot = _spot_of(tree, spot.above)
    assert isinstance(spot.node, ast.expr)
    sign = ast.Sub() if by.startswith("-") else ast.Add()
    spot.put(ast.BinOp(spot.node, sign, ast.parse(by.removeprefix("-"), mode="eval").body))


def _returns(tree: ast.AST, arguments: Sequence[str], nth: int) -> None:
    """The function does nothing but return this; with `nth`, one return statement returns this."""
    (new,) = arguments
    if nth:
        node = _sole(
            [spot for spot in _spots(tree) if isinstance(spot.node, ast.Return)], "return", ["it"], nth
        ).node
        assert isinstance(node, ast.Return)
        assert node.value is not None
        node.value = _expression(new, node.value)
        return
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef), new
    yields = any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(tree))
    tree.body = ast.parse(f"yield from {new}" if yields else f"return {new}").body


def _backwards(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """A loop over these names begins at the other end."""
    found = [spot for spot in _spots(tree) if spot.field == "iter" and {*names} <= _names(spot.node)]
    spot = _sole(found, "loop", names, nth)
    match spot.node:
        case ast.Call(ast.Name("reversed"), [given]):
            spot.put(given)
        case _:
            assert isinstance(spot.node, ast.expr)
            spot.put(ast.Call(ast.Name("reversed", ast.Load()), [spot.node], []))


def _swap(tree: ast.AST, names: Sequence[str], nth: int) -> None:
    """Two statements or parts in one list change places: each of them has one of two names, and none has both."""
    first, second = names
    pairs = [
        (value, at, there)
        for node in ast.walk(tree)
        for _, value in ast.iter_fields(node)
        if isinstance(value, list) and all(isinstance(one, ast.AST) for one in value)
        for at in _with_one(value, first, second)
        for there in _with_one(value, second, first)
    ]
    if len(pairs) < max(nth, 1) or (len(pairs) > 1 and not nth):
        raise MisplacedError(f"{len(pairs)} lists have parts with {first} and with {second}")
    block, at, there = pairs[max(nth, 1) - 1]
    block[at], block[there] = block[there], block[at]


def _before(tree: ast.AST, arguments: Sequence[str], nth: int) -> None:
    """Before the statement with these names, the last argument runs."""
    *names, new = arguments
    spot = _statement(tree, names, nth)
    spot.put(*ast.parse(dedent(new)).body, spot.node)


def _text(tree: ast.AST, arguments: Sequence[str], nth: int) -> None:
    """In one text of the function, as a script in SQL or Lua, the last argument stands for another part."""
    old, new = arguments
    found = [spot.node for spot in _spots(tree) if isinstance(spot.node, ast.Constant)]
    having = [one for one in found if isinstance(one.value, str) and old in one.value]
    if sum(str(one.value).count(old) for one in having) != 1:
        raise MisplacedError(f"{old!r} is in {len(having)} texts there")
    having[0].value = str(having[0].value).replace(old, new)


OPERATIONS: Final[dict[str, Callable[[ast.AST, Sequence[str], int], None]]] = {
    "always": _always, "never": _never, "negate": _negate, "boundary": _boundary, "plus": _plus,
    "drop": _drop, "without": _without, "swap": _swap, "backwards": _backwards,
    "unchanged": _unchanged, "gives": _gives, "returns": _returns, "instead": _instead, "argument": _argument,
    "assigned": _assigned, "before": _before, "text": _text,
}  # fmt: skip
"""All that can happen to a function, by name."""
_OPERATIONS: Final = (
    ast.Compare, ast.BoolOp, ast.BinOp, ast.Call, ast.IfExp, ast.Subscript, ast.Tuple, ast.UnaryOp, ast.ListComp,
    ast.DictComp, ast.SetComp, ast.Dict,
)  # fmt: skip


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


def _names(tree: ast.AST) -> set[str]:
    """All identifiers of a tree, with each owner that they are written with; texts count, too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(name) | ast.keyword(str() as name) | ast.Constant(str() as name):
                found.add(name)
            case ast.Attribute():
                parts = ast.unparse(node).split(".")
                whole = all(part.isidentifier() for part in parts)
                found |= {".".join(parts[at:]) for at in range(len(parts))} if whole else {node.attr}
    return found


def _targets(node: ast.AST) -> list[str]:
    """Names and attributes that a statement assigns to."""
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr | ast.AugAssign):
        targets = [node.target]
    else:
        return []
    return [str(getattr(one, "id", getattr(one, "attr", ""))) for one in targets]


def _spots(tree: ast.AST) -> Iterator[_Spot]:
    """All nodes below a tree, but for types and what an error is raised with."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for at, one in enumerate(value) if isinstance(value, list) else [(0, value)]:
            if isinstance(one, ast.AST):
                yield (
                    _Spot(value, at, one, tree, name)
                    if isinstance(value, list)
                    else _Spot(tree, name, one, tree, name)
                )
                if not isinstance(one, ast.Raise):
                    yield from _spots(one)


def _spot_of(tree: ast.AST, node: ast.AST) -> _Spot:
    return next(spot for spot in _spots(tree) if spot.node is node)


def _smallest(spots: Sequence[_Spot], names: Sequence[str]) -> list[_Spot]:
    """Those in which all names occur, but not in a smaller one."""
    found = [spot for spot in spots if {*names} <= _names(spot.node)]
    nodes = {id(spot.node) for spot in found}
    return [
        spot
        for spot in found
        if not any(id(node) in nodes for node in ast.walk(spot.node) if node is not spot.node)
    ]


def _sole(found: Sequence[_Spot], what: str, names: Sequence[str], nth: int) -> _Spot:
    """The one that is found, or the nth in the order of the source."""
    if len(found) < max(nth, 1) or (len(found) > 1 and not nth):
        raise MisplacedError(f"a {what} with {' and '.join(names)} is there {len(found)} times")
    ordered = sorted(found, key=lambda spot: _begins(spot.node))
    return ordered[max(nth, 1) - 1]


def _begins(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _condition(tree: ast.AST, names: Sequence[str], nth: int) -> _Spot:
    found = [spot for spot in _spots(tree) if isinstance(spot.node, ast.expr) and _decides(spot)]
    return _sole(_smallest(found, names), "condition", names, nth)


def _decides(spot: _Spot) -> bool:
    match spot.node:
        case ast.Compare() | ast.BoolOp() | ast.UnaryOp(ast.Not()):
            return True
        case ast.Call(ast.Name(name)) if name in _ASKED:
            return True
    return spot.field in ("test", "ifs") or isinstance(spot.above, ast.BoolOp | ast.UnaryOp)


def _statement(tree: ast.AST, names: Sequence[str], nth: int) -> _Spot:
    found = [
        spot
        for spot in _spots(tree)
        if isinstance(spot.node, ast.stmt) and {*names} <= _names(_head(spot.node))
    ]
    return _sole(found, "statement", names, nth)


def _head(node: ast.stmt) -> ast.AST:
    """A compound statement without its blocks."""
    heads = [
        part
        for name, value in ast.iter_fields(node)
        if name not in _BLOCKS
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, ast.AST)
    ]
    return ast.Module(heads, [])  # type: ignore[arg-type]  # only walked through


def _call(tree: ast.AST, names: Sequence[str], nth: int) -> _Spot:
    name, *rest = names
    found = [
        spot
        for spot in _spots(tree)
        if isinstance(spot.node, ast.Call)
        and f".{ast.unparse(spot.node.func)}".endswith(f".{name}")
        and {*rest} <= _names(spot.node)
    ]
    return _sole(found, "call", names, nth)


def _by_name(tree: ast.AST, name: str, nth: int) -> _Spot:
    found = [
        spot
        for spot in _spots(tree)
        if isinstance(spot.node, ast.Name | ast.Attribute)
        and isinstance(spot.node.ctx, ast.Load)
        and f".{ast.unparse(spot.node)}".endswith(f".{name}")
    ]
    return _sole(found, "name", [name], nth)


def _with_one(block: Sequence[ast.AST], name: str, other: str) -> list[int]:
    """Indexes of what has one name and not the other, if there is one alone."""
    found = [at for at, one in enumerate(block) if name in (own := _names(one)) and other not in own]
    return found if len(found) == 1 else []


class _Filled(ast.NodeTransformer):
    """Replaces `...` by what was there."""

    def __init__(self, found: ast.AST) -> None:
        self.found = found

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return self.found if node.value is ... else node


def _expression(source: str, found: ast.AST) -> ast.expr:
    filled: ast.expr = _Filled(found).visit(ast.parse(source, mode="eval").body)
    return filled


def put(owner: object, where: object, *new: ast.AST) -> None:
    """Replace a node by others: in a list, or in an attribute."""
    if isinstance(owner, list):
        assert isinstance(where, int)
        owner[where : where + 1] = new
        if not owner:
            owner.append(ast.Pass())
    else:
        setattr(owner, str(where), *new)
