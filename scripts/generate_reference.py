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
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

from sqe_chain import errors
from sqe_chain.cli.commands import application

DIRECTORY = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "<!-- Made by scripts/generate_reference.py from docstrings. Change those, then run it again. -->"

PAGES: dict[str, dict[str, tuple[str, ...]]] = {
    "sqe_chain": {
        "sqe_chain": (
            *(
                "run",
                "running",
                "RunningService",
                "TableFlushed",
                "Settings",
                "settings_of",
                "get",
                "states",
                "States",
            ),
            *("wrap", "read", "republish", "Envelope", "Chain", "Link", "Coordinates", "ReplayFilter"),
        ),
    },
    "sqe_chain.flow": {
        "sqe_chain.flow": (
            *("Flow", "Stream", "Stage", "Filter", "WindowStage", "CustomStage", "Context", "Timer", "Csv"),
            *("count", "sum_", "min_", "max_", "mean", "first", "last"),
        ),
        "sqe_chain.stages": ("Tumbling", "Hopping", "Calendar", "Sessions", "Window", "JumpGuard"),
    },
    "sqe_chain.errors": {"sqe_chain.errors": ("ChainError",)},
    "sqe_chain.testing": {
        "sqe_chain.testing": (
            *("Rehearsal", "Arming", "prove", "prove_schedule", "Feed", "Schedule", "Fault"),
        ),
    },
}
"""Page -> module -> what a user types, in the order of the page."""

ALONE = (
    *("Tumbling", "Hopping", "Calendar", "Sessions", "JumpGuard"),
    *("Settings", "TableFlushed", "Schedule"),
)
"""Classes whose methods a user does not call."""

BRIEF: dict[str, tuple[str, ...]] = {
    "sqe_chain.ports": (
        *("TopicPartition", "Headers", "Output", "Rows", "ViewKind", "Shown", "NO_LIMIT", "Views"),
        *("Message", "TopicInfo", "Bounds", "Range", "Commit", "Writer", "Log"),
        *("Home", "Location", "Locations", "Header", "StateStore", "WithSchema"),
        *("Sink", "SinkState", "SinkClaim", "Flush", "ReplacingSink", "Staged", "Replacement", "replacing"),
    ),
    "sqe_chain.stages": (
        *("RecordKind", "RecordStage", "RecordFunctions", "Given", "DeclaredFunction"),
        *("StageKind", "StageTraits", "StageWork", "StageTask", "StageTable", "LiveState", "StoredState"),
        *(
            "Record",
            "records_of",
            "Spot",
            "NOWHERE",
            "Verdict",
            "Reason",
            "RowTable",
            "MemoryTable",
            "SqeKey",
        ),
        *("SqeReplays", "RootReplays", "StaleSequences", "Deduplicate", "Distinct"),
        *("from_value", "from_key", "from_header", "number_in_text", "by_key", "by_key_and"),
        *("WindowedAggregate", "TimedAggregate", "Result", "Span", "results_in", "TableJoin", "StreamJoin"),
        *("Dropped", "WindowResult", "remembered", "Remembered", "ProducerMark", "RootSeen", "SequenceSeen"),
        *("Sighting", "FirstSeen"),
    ),
    "sqe_chain.adapters": ("open_store", "SCHEMES", "Address"),
    "sqe_chain.adapters.kafka": ("KafkaLog", "load_config"),
    "sqe_chain.adapters.memory": ("MemoryLog",),
    "sqe_chain.codecs": (
        *("Codec", "Field", "FieldKind", "Shape", "register", "codec_for", "codec_named", "codec_name"),
    ),
    "sqe_chain.flow": ("Aggregation",),
    "sqe_chain.testing": (
        *("MemoryStore", "Zombie", "SteppingClock", "ValueChanged", "Crash", "Proof", "Finding"),
    ),
    "sqe_chain.chain": ("read_lane", "written_lane", "root_position", "next_position", "stored_epoch"),
    "sqe_chain.envelope.replays": ("PartitionMarks", "process_id", "read_sqe_key", "murmur_hash_64a"),
    "sqe_chain.envelope.partitioner": ("murmur2", "partition_of", "key_of_each", "cell_of", "key_bytes"),
    "sqe_chain.ext.tables": (
        *("open_table", "Table", "Scan", "Compaction", "Column", "TableSchema"),
        *("Memtable", "Flushed", "ChunkIndex", "ChunkInfo", "ChunkName", "chunk_id", "ReaderOffsets"),
        *("Description", "StatePartition"),
    ),
    "sqe_chain.ext.files": ("FileRows", "Row", "FileLoad", "FilesLog", "FileSource"),
    "sqe_chain.ext.telemetry": ("trace_headers",),
    "sqe_chain.ext.wal": (
        *("DurableProducer", "Receipt", "Pending", "Status", "Limits", "sequence_of", "epoch_of", "log_of"),
        *("WriteAheadLog", "Record", "Entry", "Publisher", "Files", "LocalFiles", "MemoryFiles"),
    ),
    "sqe_chain.ext.wal.metrics": ("ProducerMetrics",),
}
"""Module -> names for extensions and programs without flows: one page has the first sentence of each."""

INTERFACES = (
    "sqe_chain.ports",
    "sqe_chain.stages",
    "sqe_chain.adapters",
    "sqe_chain.codecs",
    "sqe_chain.testing",
)
"""Modules for extensions: each name has a sentence. Of the others the page lists the names."""

_SHOWN = {name for modules in PAGES.values() for names in modules.values() for name in names}
_ELSEWHERE = _SHOWN.union({"Topology", "ChainError"}, *BRIEF.values())
"""Base classes whose members are not repeated: they have their own entries, or are not for users."""

MENTIONED_ONCE = ("- `FlowError`: ", "- `ConfigurationError`: ", "- `ChainError`: ")
"""What nearly every declaration, or call, may raise: the index mentions it once."""

OFTEN = ("--traceback", "--log-json", "--json", "--kafka-config")
"""Options of nearly all commands: their lists do not repeat them."""

GIVEN = (
    *("Stream", "Stage", "Filter", "WindowStage", "CustomStage", "Context", "Timer"),
    *("RunningService", "States", "TableFlushed", "Envelope", "Zombie", "Proof", "Finding"),
)
"""Classes that a user gets and never makes."""

LINE = 90
"""Characters of a call that fits on a line."""

FLOW = "MODULE:FLOW"
"""The argument that most commands take."""

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):$")
_UNQUOTED = re.compile(r"(?<=: )'([^']*)'|(?<=-> )'([^']*)'")
_ROW = re.compile(r"^- `([\w, *]+)`: ", re.MULTILINE)
_ROW_OF_ARGUMENT = re.compile(r"^- `(\*{0,2}\w+): .*`: ")
SEVERAL, SHORT = 3, 6
"""Entries that have an argument alike, and words of one that is not worth a reference."""
_FIELD = re.compile(r"(\*{0,2}[\w, ()]+?):\s+(.*)")


def pages() -> dict[str, str]:
    """File name -> text of every page."""
    made = {f"{name}.md": _page(name) for name in PAGES}
    made["sqe_chain.errors.md"] = _errors_page()
    made["command.md"] = _command_page()
    made["extending.md"] = _brief_page()
    made["index.md"] = _index(sorted(made))
    linked = {name: re.sub(r"\bdocs/([\w-]+)\.md\b", r"[\1](../\1.md)", text) for name, text in made.items()}
    return {name: re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n" for name, text in linked.items()}


def _index(names: list[str]) -> str:
    titles = {"command.md": "The `sqe-chain` command", "extending.md": "Names for extensions"}
    lines = [f"- [{titles.get(name, name.removesuffix('.md'))}]({name})" for name in names]
    head = "What a user types, from its docstring. `help(name)` in Python shows the same. A declaration that cannot work raises `FlowError`, with its line; wrong arguments or settings raise `ConfigurationError`. What ends a service is raised where one waits for it: see [errors](sqe_chain.errors.md)."
    return "\n".join(("# Reference", "", NOTE, "", head, "", *lines))


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


def markdown(doc: str) -> str:
    """A Google-style docstring as Markdown."""
    out: list[str] = []
    lines = doc.replace("``", "`").splitlines()
    index = 0
    while index < len(lines):
        line = lines[index]
        section = _SECTION.match(line)
        if section:
            index, body = _block(lines, index + 1)
            rows = [row for row in _fields(body, section.group(1)) if not row.startswith(MENTIONED_ONCE)]
            out += [f"**{section.group(1)}**", "", *rows, ""] if rows else []
        elif line.startswith((">>>", "    ")) and (not out or out[-1] == "" or line.startswith(">>>")):
            index, body = _example(lines, index)
            out += ["```text", *body, "```", ""]
        else:
            out.append(line)
            index += 1
    return "\n".join(out).strip()


def _block(lines: list[str], index: int) -> tuple[int, list[str]]:
    """The indented lines from here, and where they end."""
    start = index
    while index < len(lines) and (not lines[index] or lines[index].startswith(" ")):
        index += 1
    return index, [line[4:] for line in lines[start:index]]


def _example(lines: list[str], index: int) -> tuple[int, list[str]]:
    """Lines of an example or a drawing: until text at the margin follows an empty line."""
    start, doctest = index, lines[index].startswith(">>>")
    while index < len(lines) and (
        lines[index].startswith("    ")
        or (doctest and lines[index])
        or (not lines[index] and index + 1 < len(lines) and lines[index + 1].startswith("    "))
    ):
        index += 1
    return index, inspect.cleandoc("\n" + "\n".join(lines[start:index])).splitlines()


def _fields(body: list[str], section: str) -> list[str]:
    """`name: text` entries as a list; lines with more indentation continue an entry."""
    rows: list[str] = []
    for line in body:
        entry = _FIELD.match(line) if section != "Returns" else None
        if entry and not line.startswith(" "):
            rows.append(f"- `{entry.group(1)}`: {entry.group(2)}")
        elif not line.strip():
            continue
        elif (line.startswith(" ") and rows) or (rows and section == "Returns"):
            rows[-1] += f" {line.strip()}"
        else:
            rows.append(f"- {line.strip()}")
    return rows


# --- the command ------------------------------------------------------------------------------------


def _command_page() -> str:
    root: Any = typer.main.get_command(application())
    commands = dict(_leaves(root, ""))
    takers = Counter(
        (_names(option), _row(option))
        for command in commands.values()
        for option in _options(command)
        if not _is_required_kafka(option)
    )
    most = {name: row for (name, row), count in reversed(takers.most_common()) if count > 1}
    shared = [row for name, row in takers if most.get(name) == row]
    parts = [
        "# The command `sqe-chain`",
        NOTE,
        root.help or "",
        f"`{FLOW}` names the flow, as in `services.fastening:totals`.",
        "Some options may also be set in the environment, under the name given with them.",
        *(_command(f"sqe-chain {name}", command, shared) for name, command in commands.items()),
        "\n".join(("## Options of several commands", "", *shared)),
    ]
    return "\n\n".join(parts)


def _leaves(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - typer's own classes
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _options(command: Any) -> list[Any]:  # noqa: ANN401 - typer's own classes
    return [p for p in command.params if p.param_type_name == "option" and p.name != "help"]


def _is_required_kafka(option: Any) -> bool:  # noqa: ANN401 - typer's own classes
    return bool(option.required) and option.opts[0] == "--kafka"


def _row(option: Any) -> str:  # noqa: ANN401 - typer's own classes
    return f"- {_names(option)}: {_cell(option)}"


def _command(name: str, command: Any, shared: Sequence[str]) -> str:  # noqa: ANN401 - typer's own classes
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join((name, *(p.metavar or p.name.upper() for p in arguments)))
    rows = [f"- `{p.metavar or p.name.upper()}`: {_cell(p)}" for p in arguments if p.metavar != FLOW]
    needs_kafka = any(map(_is_required_kafka, _options(command)))
    shown = [option for option in _options(command) if not _is_required_kafka(option)]
    rows += [row for row in map(_row, shown) if row not in shared]
    others = [f"`{o.opts[0]}`" for o in shown if _row(o) in shared and o.opts[0] not in OFTEN]
    if needs_kafka:
        others.insert(0, "`--kafka` (required)")
    table = ["", *rows] if rows else []
    return "\n".join(
        (
            f"## `{usage}`",
            "",
            inspect.cleandoc(command.help or ""),
            *table,
            "",
            f"[Also](#options-of-several-commands): {', '.join(others)}." if others else "",
        )
    )


def _names(option: Any) -> str:  # noqa: ANN401 - typer's own classes
    takes = "" if option.is_flag else option.metavar or _choices(option)
    return ", ".join(f"`{name} {takes}`".replace(" `", "`") for name in option.opts)


def _choices(option: Any) -> str:  # noqa: ANN401 - typer's own classes
    """The values of an option that takes one of a few."""
    found: list[str] = re.findall(r"'([^']+)'", str(option.type_descriptor.annotation))
    return "|".join(found)


def _cell(parameter: Any) -> str:  # noqa: ANN401 - typer's own classes
    said = [getattr(parameter, "help", "") or ""]
    default = parameter.default
    if default not in (None, False, ()) and not callable(default):
        said.append(f"Default `{default}`.")
    if parameter.required and parameter.param_type_name == "option":
        said.append("Required.")
    if parameter.envvar:
        said.append(f"`{parameter.envvar}`")
    return " ".join(part for part in said if part)


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
