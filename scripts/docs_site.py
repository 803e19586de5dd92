"""Hooks of mkdocs.yml: files of the repository that a page links to become part of the site."""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PLACE = "repository"
"""The directory of the site for files that do not live in docs/."""
_PIPED = re.compile(r"`([^`\n]*\\\|[^`\n]*)`")
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file outside docs/ that a page links to, and each one that such a page links to."""
    waiting = [file.src_uri for file in files.documentation_pages()]
    while waiting:
        uri = waiting.pop()
        source = _source(uri)
        for link in _LINK.findall(source.read_text(encoding="utf-8")):
            target = _uri(source, link)
            new = target.startswith(f"{PLACE}/") and files.get_file_from_path(target) is None
            if new and _source(target).is_file():
                files.append(File.generated(config, target, content=_source(target).read_bytes()))
                if target.endswith(".md"):
                    waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001 - the hook's signature
    """Let links lead to where the site has a file, and a search find pages before names."""
    uri = page.file.src_uri
    if uri.startswith(("reference/", PLACE)):
        page.meta["search"] = {"boost": 0.3}
    source = _source(uri)
    linked = _LINK.sub(
        lambda link: posixpath.relpath(_uri(source, link[1]), posixpath.dirname(uri)), markdown
    )
    return _PIPED.sub(_code_in_table, linked)


def _code_in_table(code: re.Match[str]) -> str:
    """In a table GitHub wants `|` in code escaped, and Markdown shows the escape."""
    return f"<code>{html.escape(code[1]).replace(chr(92) + '|', '&#124;')}</code>"


def _source(uri: str) -> Path:
    """The file from which the site makes a page."""
    return ROOT / uri.removeprefix(f"{PLACE}/") if uri.startswith(f"{PLACE}/") else ROOT / "docs" / uri


def _uri(source: Path, link: str) -> str:
    """Where the site has the file to which a link of a page leads."""
    path = posixpath.normpath(posixpath.join(source.relative_to(ROOT).parent.as_posix(), link))
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{PLACE}/{path}"
