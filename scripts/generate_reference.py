"""Write `docs/reference/` from docstrings.

Pages are plain Markdown, the same on every machine: declared order, no addresses, no dates. Sections of
Google-style docstrings become lists, examples become code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from scripts.reference.commands import command_page
from scripts.reference.docstrings import markdown
from scripts.reference.names import ALONE, BRIEF, GIVEN, INTERFACES, PAGES
from sqe_chain import errors

DIRECTORY = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "<!-- Made by scripts/generate_reference.py from docstrings. Change those, then run it again. -->"

_SHOWN = {name for modules in PAGES.values() for names in modules.values() for name in names}
_ELSEWHERE = _SHOWN.union({"Topology", "ChainError"}, *BRIEF.values())
"""Base classes whose members are not repeated: they have their own entries, or are not for users."""

LINE = 90
"""Characters of a call that fits on a line."""

_UNQUOTED = re.compile(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'")
_ROW = re.compile(r"^- `([\w, *]+)`: ", re.MULTILINE)
_ROW_OF_ARGUMENT = re.compile(r"^- `(\*{0,2}\w+): .*`: ")
SEVERAL, SHORT = 3, 6
"""Entries that have an argument alike, and words of one that is not worth a reference."""


def pages() -> dict[str, str]:
    """File name -> text of every page."""
    made = {f"{name}.md": _page(name) for name in PAGES}
    made["sqe_chain.errors.md"] = _errors_page()
    made["command.md"] = command_page(NOTE)
    made["extending.md"] = _brief_page()
    made["index.md"] = _index(sorted(made))
    linked = {name: re.sub(r"\bdocs/([\w-]+)\.md\b", r"[\1](../\1.md)", text) for name, text in made.items()}
    return {name: re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n" for name, text in linked.items()}


def _index(names: list[str]) -> str:
    titles = {"command.md": "The `sqe-chain` command", "extending.md": "Names for extensions"}
    lines = [f"- [{titles.get(name, name.removesuffix('.md'))}]({name})" for name in names]
    head = "What a user types, from its docstring. `help(name)` in Python shows the same. A declaration that cannot work raises `FlowError`, with its line; wrong arguments or settings raise `ConfigurationError`. What ends a service is raised where one waits for it: see [errors](sqe_chain.errors.md)."
    rule = "Public are the names that these pages list, each in the module of its entry, and all errors. Everything else is internal: it may change in any version."
    return "\n".join(("# Reference", "", NOTE, "", head, "", rule, "", *lines))


def _page(title: str) -> str:
    parts = [f"# {title}", NOTE]
    for name, names in PAGES[title].items():
        module = importlib.import_module(name)
        parts.append(
            markdown(inspect.getdoc(module) or "")
            if name == title
            else f"The rest of this page is in `{name}`."
        )
        parts += [_member(member, getattr(module, member), name) for member in names]
    return _gathered("\n\n".join(part for part in parts if part))


def _gathered(page: str) -> str:
    """The page with arguments that several entries have alike at its end, each once."""
    rows = Counter(line for line in page.splitlines() if _ROW_OF_ARGUMENT.match(line))
    shared = [row for row, count in rows.items() if count >= SEVERAL and len(row.split()) > SHORT]
    lines, names = list[str](), list[str]()
    for line in page.splitlines():
        row = _ROW_OF_ARGUMENT.match(line)
        if row and line in shared:
            names.append(f"`{row[1]}`")
        else:
            if names and not row:
                lines.append(f"- {', '.join(names)}: [as below](#arguments-of-several-entries)")
                names = []
            lines.append(line)
    return "\n".join(lines + (["", "## Arguments of several entries", "", *shared] if shared else []))


def _errors_page() -> str:
    """Every error with its exit status, its text, and where the runbook has it."""
    _, _, intro = (inspect.getdoc(errors) or "").rpartition("\n\n")
    runbook = (DIRECTORY.parent / "runbook.md").read_text(encoding="utf-8")
    anchors = {
        name: re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^### (.*)$", runbook, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", heading)
    }
    rows = []
    for depth, error in _errors_below(errors.ChainError):
        name = next((base.__name__ for base in error.__mro__ if base.__name__ in anchors), "")
        shown = f"`{error.__name__}`"
        linked = f"[{shown}](../runbook.md#{anchors[name]})" if name else shown
        text = " ".join(markdown((inspect.getdoc(error) or "").partition("\n\n")[0]).split())
        rows.append(f"{'    ' * depth}- {linked} ({error.exit_status}): {text}")
    head = "The number is the exit status of a command that ends with the error. A link leads to the [runbook](../runbook.md)."
    own = _member("ChainError", errors.ChainError, errors.__name__)
    return "\n\n".join(("# sqe_chain.errors", NOTE, intro, head, "\n".join(rows), own))


def _errors_below(
    root: type[errors.ChainError], depth: int = 0
) -> Iterator[tuple[int, type[errors.ChainError]]]:
    """The subclasses of an error in the package, each before its own, and how far below the root they are."""
    for error in root.__subclasses__():
        if error.__module__ == errors.__name__:
            yield depth, error
            yield from _errors_below(error, depth + 1)


def _brief_page() -> str:
    head = "For packages that plug in, and for programs without flows. `help(name)` in Python shows methods, arguments, errors and bounds."
    parts = ["# Names for extensions", NOTE, head]
    for name, names in BRIEF.items():
        module = importlib.import_module(name)
        lines = [line for member in names for line in _brief(member, getattr(module, member), name)]
        listed = ", ".join(f"`{member}`" for member in names)
        parts += [f"## {name}", "\n".join(lines) if name in INTERFACES else f"{_text_of(module)}: {listed}."]
    return "\n\n".join(parts)


def _brief(name: str, value: Any, module: str) -> Iterator[str]:  # noqa: ANN401 - a module may export anything
    """A name with its first sentence."""
    if inspect.isclass(value) and hasattr(value, "DESCRIPTOR"):
        yield f"- `{name}`: a protobuf message, in `proto/{value.DESCRIPTOR.file.name}`."
    elif not inspect.isclass(value) and not inspect.isfunction(inspect.unwrap(value)):
        yield f"- `{name}`: {_sentence(_text_below(name, module))}"
    elif not inspect.isclass(value):
        yield f"- `{_call(name, value)}`: {_sentence(inspect.getdoc(value) or '')}"
    else:
        yield f"- `{name}`: {_sentence(inspect.getdoc(value) or '')}"


def _text_of(module: ModuleType) -> str:
    return _sentence(inspect.getdoc(module) or "").rstrip(".")


def _call(name: str, function: Any) -> str:  # noqa: ANN401 - anything that can be called
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]
    return f"{name}({', '.join(names)})"


def _sentence(doc: str) -> str:
    paragraph = " ".join(markdown(doc).partition("\n\n")[0].split())
    return re.split(r"(?<=\w[.:;])\s", paragraph)[0].rstrip(":;.") + "."


def _member(name: str, value: Any, module: str) -> str:  # noqa: ANN401 - a module may export anything
    if not inspect.isclass(value) and not inspect.isfunction(inspect.unwrap(value)):
        return f"## {name}\n\n{markdown(_text_below(name, module))}"
    if not inspect.isclass(value):
        return f"## {name}\n\n{_entry(name, value, markdown(inspect.getdoc(value) or ''))}"
    bases = [base.__name__ for base in value.__bases__ if base.__name__ in _SHOWN]
    inherits = f" ({', '.join(bases)})" if bases else ""
    parts = [f"## {name}{inherits}", _made(name, value)]
    hidden = name in ALONE or issubclass(value, BaseException)
    parts += [] if hidden else [_method(name, method, value, member) for method, member in _methods(value)]
    return re.sub(r"(?m)(?<=^- `\.)(.*)\n\n(?=- `\.)", r"\1\n", "\n\n".join(part for part in parts if part))


def _method(name: str, method: str, cls: type, member: Any) -> str:  # noqa: ANN401 - whatever a class has
    """A method: one line where its text is one paragraph, else a section."""
    text = markdown(inspect.getdoc(getattr(cls, method)) or "")
    function = getattr(member, "__func__", member)
    kind = isinstance(member, property)
    call = method if kind else _call_of(method, function)
    if "\n\n" not in text and "```" not in text and len(call) < LINE:
        return f"- `.{call}`: {' '.join(text.split())}"
    title = f"### `{name}.{method}`{' (property)' if kind else ''}"
    return f"{title}\n\n{text if kind else _entry(method, function, text)}"


def _text_below(name: str, module: str) -> str:
    """The text below a constant or a type, in the file that defines it."""
    path = Path(importlib.import_module(module).__file__ or "")
    for file in sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]:
        lines = ast.parse(file.read_text(encoding="utf-8")).body
        for line, following in pairwise(lines):
            targets = line.targets if isinstance(line, ast.Assign) else [getattr(line, "target", None)]
            named = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            said = following.value if named and isinstance(following, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                return inspect.cleandoc(said.value)
    raise SystemExit(f"{module}: {name} has no text below it")


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, including those of base classes without their own entry."""
    members = dict(vars(cls))
    elsewhere = [base for base in cls.__mro__[1:] if base.__name__ in _ELSEWHERE]
    for base in cls.__mro__[1:]:
        own = base.__module__.startswith("sqe_chain.")
        if own and not any(base in other.__mro__ for other in elsewhere):
            members = {
                **members,
                **{name: value for name, value in vars(base).items() if name not in members},
            }
    for name, value in members.items():
        described = isinstance(value, property | classmethod | staticmethod) or inspect.isfunction(value)
        if not name.startswith("_") and described:
            yield name, value


def _made(name: str, cls: type) -> str:
    """The constructor, and the class docstring; users do not create errors and protocols."""
    text = markdown(inspect.getdoc(cls) or "")
    made = vars(cls).get("__init__")
    if made is None or name in GIVEN or issubclass(cls, BaseException) or getattr(cls, "_is_protocol", False):
        return text
    own = made.__doc__ if made.__doc__ != object.__init__.__doc__ else ""
    return _entry(name, made, f"{text}\n\n{markdown(inspect.cleandoc(own or ''))}")


def _entry(name: str, function: Any, text: str) -> str:  # noqa: ANN401 - anything that can be called
    """The text with the types of the arguments that it lists; the call, if it does not list all."""
    parameters = {parameter.name: parameter for parameter in _parameters(function)}
    title = "**Args**" if "**Args**" in text else "**Attributes**"
    before, args, after = text.partition(f"{title}\n\n")
    listed, _, rest = after.partition("\n\n")
    documented = [name.strip(" *") for names in _ROW.findall(listed) for name in names.split(",")]
    if "for arguments see `" in text:
        return text
    if sorted(documented) != sorted(parameters):
        return f"```text\n{_call_of(name, function)}\n```\n\n{text}"
    typed = {
        name: _unquoted(str(parameter)).replace(" | None = None", " = None")
        for name, parameter in parameters.items()
    }
    rows = _ROW.sub(lambda row: f"- `{', '.join(typed[n.strip(' *')] for n in row[1].split(','))}`: ", listed)
    made = _unquoted(str(inspect.signature(function))).rpartition(" -> ")[2]
    if made != "None" and not name[:1].isupper():
        rest = (
            rest.replace("**Returns**", f"**Returns** `{made}`")
            if "**Returns**" in rest
            else f"Returns `{made}`.\n\n{rest}"
        )
    return f"{before}{title}\n\n{rows}\n\n{rest}" if args else f"{text}\n\n{rest}"


def _parameters(function: Any) -> list[inspect.Parameter]:  # noqa: ANN401 - anything that can be called
    parameters = [_plain(p) for p in inspect.signature(function).parameters.values()]
    return parameters[1:] if parameters and parameters[0].name in ("self", "cls") else parameters


def _unquoted(text: str) -> str:
    return _UNQUOTED.sub(lambda quoted: quoted[1] or quoted[2] or "", text)


def _call_of(name: str, function: Any) -> str:  # noqa: ANN401 - anything that can be called
    """Name, parameters and result on one line."""
    text = _unquoted(str(inspect.signature(function).replace(parameters=_parameters(function))))
    if name[:1].isupper():
        text = text.rpartition(" -> ")[0] or text
    return name + text.removesuffix(" -> None")


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    default = parameter.default
    if default is not parameter.empty and (" at 0x" in repr(default) or repr(default).startswith("<")):
        default = _Ellipsis()
    return parameter.replace(default=default)


class _Ellipsis:
    """A default that has no readable text."""

    def __repr__(self) -> str:
        return "..."


def main() -> None:
    """Write all pages; a page that is no longer made goes."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    made = pages()
    for name, text in made.items():
        (DIRECTORY / name).write_text(text, encoding="utf-8")
    for path in DIRECTORY.glob("*.md"):
        if path.name not in made:
            path.unlink()


if __name__ == "__main__":
    main()
