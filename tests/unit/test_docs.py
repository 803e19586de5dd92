"""Goal: every page is true. Method: its code is run, its commands are parsed, its lists are compared.

What needs servers is run by tests/integration/test_docs_commands.py. Conventions: tests/support/docs_examples.py.
"""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from types import FrameType

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue
from prometheus_client import CollectorRegistry

from scripts.reference import names
from sqe_chain import Flow, errors, run, wrap
from sqe_chain.adapters.kafka import KafkaLog, load_config
from sqe_chain.adapters.memory import MemoryLog
from sqe_chain.runtime import connecting
from sqe_chain.runtime.metrics import Metrics
from tests.support import docs_examples
from tests.support.docs_examples import ROOT, Block, Command
from tests.support.parsed_commands import parse_command, root_command

PAGES = docs_examples.pages()
WITH_PYTHON = [
    p for p in PAGES if any(b.language == "python" and not b.file for b in docs_examples.blocks(p))
]
LANGUAGES = {"python", "console", "text", "proto", "properties", "sql", "toml", "yaml", "ini", "dockerfile"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=docs_examples.name_of)
def test_python_runs(page: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", docs_examples.__file__, str(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_blocks_are_of_a_kind_that_is_checked(tmp_path: Path) -> None:
    for page in PAGES:
        indented = re.search(r"^[ \t]+```", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert indented is None, f"{page}: blocks begin at the margin, else nobody finds them"
        for block in docs_examples.blocks(page):
            assert block.language in LANGUAGES, f"{page}:{block.line}: ```{block.language}"
            if block.language == "console":
                assert block.text.startswith("$ "), f"{page}:{block.line}: a command begins with '$ '"
            if block.language == "properties":
                _check_properties(block, tmp_path)
            if block.language == "toml":
                tomllib.loads(block.text)


def test_files_shown_are_used() -> None:
    for page in PAGES:
        found = docs_examples.blocks(page)
        for block in found:
            if block.file and not block.file.endswith((".proto", ".properties")):
                stem = block.file.rpartition(".")[0]
                others = "\n".join(other.text for other in found if other is not block)
                assert re.search(rf"\b{stem}\b", others), f"{page}:{block.line}: nothing uses {block.file}"


def test_commands_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SQE_CHAIN_KAFKA", "localhost:9092"), ("SQE_CHAIN_STORE", "redis://localhost")):
        monkeypatch.setenv(name, value)
    for page in PAGES:
        for command in docs_examples.commands(page):
            try:
                _check(command, page)
            except Exception as error:
                raise AssertionError(f"{page}:{command.line}: {command.text}: {error!r}") from error


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith(("http://", "https://")):
                continue
            path, _, anchor = target.partition("#")
            found = (page.parent / path).resolve() if path else page
            assert found.exists(), f"{page}: {target}"
            if anchor:
                assert anchor in _anchors(found), f"{page}: {target}; there are {sorted(_anchors(found))}"


def test_every_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index, page.name
    assert "](reference/index.md)" in index


def test_the_reference_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "generate_reference.py"))
    standing = {page.name: page.read_text(encoding="utf-8") for page in script["DIRECTORY"].glob("*.md")}
    assert script["pages"]() == standing, "run scripts/generate_reference.py"


def test_every_error_is_explained() -> None:
    """All are in the reference. The protocol has those that stop a service, with their status; the runbook what to do."""
    names = ("reference/sqe_chain.errors.md", "runbook.md", "protocol.md")
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in names]
    every = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ChainError) and value is not errors.ChainError
    }
    assert {name for name in every if f"`{name}`" not in pages[0]} == set()
    headings = "".join(re.findall(r"^### .*$", pages[1], re.MULTILINE))
    stops = statuses_in(pages[2])
    below = {name for name in every if issubclass(getattr(errors, name), errors.ServiceStopped)}
    assert below - {"ServiceStopped"} <= stops.keys()
    assert {name for name in stops if f"`{name}`" not in headings} == set()


def statuses_in(text: str) -> dict[str, int]:
    """Error -> exit status, as the page on the protocol lists them."""
    groups = re.split(
        r"^\*\*[^*\n]+\*\*[^.:\n]*\((?:`ServiceStopped`, )?status (\d)\)", text, flags=re.MULTILINE
    )
    return {
        name: int(status)
        for status, group in zip(groups[1::2], groups[2::2], strict=True)
        for name in re.findall(r"`([A-Z]\w+)`", group.partition("\n\n")[0])
    }


def test_every_error_ends_a_command_with_its_documented_status() -> None:
    documented = statuses_in((ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"))
    assert {"FlowError", "Superseded", "Unavailable", "EngineLost", "GapError"} <= documented.keys()
    assert {name: getattr(errors, name).exit_status for name in documented} == documented


def test_every_option_of_run_is_explained() -> None:
    text = (ROOT / "docs" / "reference" / "command.md").read_text(encoding="utf-8")
    options = {
        name for parameter in root_command().commands["run"].params for name in parameter.opts if "--" in name
    }
    assert {name for name in options if f"`{name}" not in text and name != "--help"} == set()


def test_every_metric_is_explained() -> None:
    text = (ROOT / "docs" / "production.md").read_text(encoding="utf-8")
    registry = CollectorRegistry()
    Metrics("a-flow", registry)
    families = {(family.name, family.type) for family in registry.collect()}
    wanted = {f"`{name}_total`" if kind == "counter" else f"`{name}`" for name, kind in families}
    assert {name for name in wanted if name not in text} == set()


def test_every_dependency_has_its_reason() -> None:
    pages = (ROOT / "docs" / "dependencies.md", ROOT / "CONTRIBUTING.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    wanted = [*PROJECT["dependencies"]]
    for packages in PROJECT["optional-dependencies"].values():
        wanted += packages
    names = {re.split(r"[<>=\[]", package)[0] for package in wanted} - {"sqe-chain"}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_every_extra_is_in_the_readme() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    extras = set(PROJECT["optional-dependencies"]) - {"dev"}
    assert {extra for extra in extras if f"`{extra}`" not in text} == set()


def _documented() -> dict[str, set[str]]:
    """Module -> its names in the reference."""
    documented = defaultdict[str, set[str]](set)
    for modules in (*names.PAGES.values(), names.BRIEF):
        for module, entries in modules.items():
            documented[module].update(entries)
    documented["sqe_chain.errors"].update(
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ChainError)
    )
    return documented


EXPORTING = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "sqe_chain").rglob("*.py")
    if "\n__all__ = " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", EXPORTING)
def test_what_is_exported_has_an_entry_in_the_reference(name: str) -> None:
    """On the page of what users type, or on the page for extensions; else the module is named as internal."""
    documented = _documented()
    assert (name in documented) != (name in names.INTERNAL)
    if name in names.INTERNAL:
        return
    exported = set(importlib.import_module(name).__all__)
    assert documented[name] <= exported
    assert exported <= documented[name] | documented["sqe_chain"] | documented["sqe_chain.flow"]


def test_every_entry_exists() -> None:
    """To make more names public, see the rule in docs/scope.md."""
    assert sum(map(len, _documented().values())) <= 320
    for module, entries in _documented().items():
        loaded = importlib.import_module(module)
        assert [name for name in entries if not hasattr(loaded, name)] == [], module


def test_users_are_shown_public_names_alone() -> None:
    """In examples of pages, and in the packages that plug in."""
    documented = _documented()
    documented["sqe_chain"] |= documented["sqe_chain.flow"]  # it has the most frequent of them too
    plugins = (ROOT / "tests" / "plugins").rglob("*.py")
    texts = [(str(path), path.read_text(encoding="utf-8")) for path in plugins]
    texts += [
        (f"{page.name}:{block.line}", block.text)
        for page in PAGES
        for block in docs_examples.blocks(page)
        if block.language == "python"
    ]
    shown = [
        (place, found.module, alias.name)
        for place, text in texts
        for found in ast.walk(ast.parse(text))
        if isinstance(found, ast.ImportFrom) and (found.module or "").partition(".")[0] == "sqe_chain"
        for alias in found.names
    ]
    assert len(shown) > 100
    assert [
        one
        for one in shown
        if one[2] not in documented[one[1] or ""] and f"{one[1]}.{one[2]}" not in documented
    ] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_and_names_of_the_code_exist(page: str) -> None:
    """A file in backticks exists, and has the names in backticks after it."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("NAME", "*")
    found = 0
    for named, *more in re.findall(
        r"`([\w/<>*.-]+\.(?:py|json|md|toml|lock|txt))`((?:, `\w[\w.]*\w`)*)", text
    ):
        name = named.replace("<name>", "*")
        files = [file for top in (ROOT / "sqe_chain", ROOT) for file in top.glob(name)]
        assert files, name
        for symbol in re.findall(r"`(\w[\w.]*)`", more[0]):
            if not symbol.endswith((".md", ".json", ".py", ".toml")):
                own = symbol.rpartition(".")[2]
                assert re.search(rf"(?:def|class) {own}\b", files[0].read_text(encoding="utf-8")), (
                    name,
                    symbol,
                )
                found += 1
    assert found > 5 or page == "docs/architecture.md"


def test_the_words_of_the_code_are_in_the_code() -> None:
    text = (
        (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Words of the code")[2]
    )
    words = [
        word.rpartition(".")[2]
        for line in text.splitlines()
        for word in re.findall(r"`([\w.]+)`", line.partition(":")[0])
    ]
    code = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "sqe_chain").rglob("*.py"))
    assert len(words) > 5
    assert [word for word in words if not re.search(rf"\b{word}\b", code)] == []


CALL = re.compile(r"^( *)((?:\w+\.)?\w+) +([\w/]+\.py)\b")
"""A line of the tree of calls: indentation, function, file."""


def test_the_tree_of_calls_is_what_a_batch_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each function of the page is called while the one above it runs."""
    block = docs_examples.block_with(ROOT / "docs" / "architecture.md", "Service._batches")
    above, wanted = list[tuple[int, Place]](), dict[Place, Place | None]()
    for line in block.text.splitlines():
        match = CALL.match(line)
        assert match, line
        indent, place = len(match[1]), (match[3], match[2])
        while above and above[-1][0] >= indent:
            above.pop()
        wanted[place] = above[-1][1] if above else None
        above.append((indent, place))
    calls = calls_of_a_batch(monkeypatch)
    missing = {place: caller for place, caller in wanted.items() if (place, caller) not in calls}
    assert len(wanted) > 20
    assert missing == {}


Place = tuple[str, str]
"""File below the package, and function."""


def calls_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Place, Place | None]]:
    """(function, each function that is running when it is called; None) as a service processes one record."""
    package, calls = f"{ROOT / 'sqe_chain'}/", set[tuple[Place, Place | None]]()

    def place_of(frame: FrameType) -> Place:
        return frame.f_code.co_filename.removeprefix(package), frame.f_code.co_qualname

    def note(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(package):
            return
        place, caller = place_of(frame), frame.f_back
        calls.add((place, None))
        while caller is not None:
            calls.add((place, place_of(caller)))
            caller = caller.f_back

    log = MemoryLog("tree-of-calls")
    log.create_topic("words", 1)
    log.create_topic("totals", 1)
    log.append("words", 0, wrap(StringValue(value="a"), key="a", timestamp_ms=1))
    flow = Flow("tree", state_partitions=1)
    flow.source("words", StringValue).aggregate(
        "count", key=lambda word: word.value, state=Int64Value, fold=lambda total, word: None
    ).changes().to("totals", partitions=1)
    monkeypatch.setattr(connecting, "open_log", lambda *_: log)
    sys.setprofile(note)
    try:
        run(
            flow,
            kafka="none",
            store="memory://tree-of-calls",
            engine="inprocess",
            once=True,
            allow_weak_durability=True,
        )
    finally:
        sys.setprofile(None)
        log.clear()
    return calls


def test_every_producer_of_ours_has_one_request_in_flight() -> None:
    """With several, a broker before 4.5 loses a batch of a topic that was just created, in silence (KAFKA-15591)."""
    files = [
        *PAGES,
        *(file for top in ("services", "benchmarks", "tests") for file in (ROOT / top).rglob("*.py")),
    ]
    measured = {
        ROOT / "benchmarks/plain.py",
        ROOT / "benchmarks/peers/plain_loop/loop.py",
        ROOT / "benchmarks/flushing.py",
    }
    found = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        for config in re.findall(r"\{[^{}]*\"enable\.idempotence\"[^{}]*\}", text):
            number = re.search(r'"max\.in\.flight(?:\.requests\.per\.connection)?": (\d)', config)
            assert number is not None, f"{file}: {config}"
            assert number[1] == "1" or file in measured, f"{file}: {config}"
            found += 1
    assert found > 10


def test_pages_that_are_typed_one_after_another_share_no_topic_and_no_flow() -> None:
    """Servers keep what the page before has left: topics with partitions, groups, states."""
    named = re.compile(r'\b(?:Flow|source|to|create_topic|produce)\(\s*"([\w.-]+)"')
    names = {
        page.name: {
            name for block in docs_examples.blocks(page) if block.file for name in named.findall(block.text)
        }
        for page in PAGES
        if docs_examples.RUN_MARK in page.read_text(encoding="utf-8")
    }
    assert min(map(len, names.values())) > 1
    every = [name for found in names.values() for name in found]
    assert sorted(every) == sorted(set(every)), names


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900
    (example,) = [block for block in docs_examples.blocks(ROOT / "README.md") if block.language == "python"]
    assert len([line for line in example.text.splitlines() if line]) <= 25


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("sqe-chain run a:b --no-such-option", "NoSuchOption"),
        ("make no-such-target", "no target"),
        ("pip install '.[no-such-extra]'", "no extra"),
        ("format-the-disk", "no known kind"),
        ("python -c 'print('", "SyntaxError"),
    ],
)
def test_a_wrong_command_is_found(command: str, reason: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever says what is wrong
        _check(Command(command, "", 1), ROOT / "docs" / "index.md")
    assert reason in repr(caught.value)


def _check(command: Command, page: Path) -> None:
    """Check a command without running it."""
    for words in _simple_commands(command.text):
        program, *arguments = words
        if program == "sqe-chain":
            parse_command(arguments)
        elif program == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            for target in arguments:
                assert "=" in target or re.search(rf"^{target}:", makefile, re.MULTILINE), (
                    f"no target {target}"
                )
        elif program == "pip":
            for extra in re.findall(r"\[([\w,-]+)\]", " ".join(arguments)):
                assert set(extra.split(",")) <= set(PROJECT["optional-dependencies"]), f"no extra {extra}"
        elif program == "python":
            shown = {block.file for block in docs_examples.blocks(page)}
            if arguments[0] == "-c":
                compile(arguments[1], str(page), "exec")
                continue
            known = docs_examples.exists(arguments[1]) if arguments[0] == "-m" else arguments[0] in shown
            assert known, "no such module, and no file of this page"
        elif program == "spark-submit":
            raise AssertionError("flows are not submitted: sqe-chain run is the driver")
        else:
            runs = docs_examples.RUN_MARK in page.read_text(encoding="utf-8")
            assert (
                program
                in {
                    "cd",
                    "docker",
                    "export",
                    "git",
                    "helm",
                    "kafka-configs.sh",
                    "kafka-console-producer.sh",
                    "kubectl",
                    "redis-cli",
                }
                or runs
            ), "a command of no known kind"


def _simple_commands(text: str) -> list[list[str]]:
    """The words of each simple command, without assignments before it and redirections behind it."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    redirected = False
    for word in lexer:
        if set(word) <= set("|&;()"):
            found.append([])
        elif set(word) <= set("<>"):
            if found[-1] and found[-1][-1].isdigit():
                found[-1].pop()
            redirected = True
        elif redirected:
            redirected = False
        elif found[-1] or not re.fullmatch(r"\w+=.*", word):
            found[-1].append(word)
    return [words for words in found if words]


def _check_properties(block: Block, directory: Path) -> None:
    """Check that a file of Kafka's properties is accepted, with anything for what comes from the environment."""
    file = directory / "kafka.properties"
    file.write_text(re.sub(r"\$\{\w+\}", "secret", block.text), encoding="utf-8")
    KafkaLog("localhost:9092", load_config(file))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
