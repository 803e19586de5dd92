"""The page of a package index, when the package is built: the README with links that lead there, and the project's addresses.

An index shows the README without the repository, so a relative link leads nowhere. pyproject.toml names the repository's address as
`home` of this hook. Without one, links to files become plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE: Final = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
_LINK: Final = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:)([^)\s]+)\)")
_PAGES: Final = {
    "Documentation": "docs/index.md",
    "Changelog": "CHANGELOG.md",
    "Security": "SECURITY.md",
    "Supported versions": "docs/stability.md",
}


class IndexPage(MetadataHookInterface):
    """Fills in `readme` and `urls`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add both to the metadata of the package."""
        home = str(self.config["home"])
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        version = str(metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, home, version)}
        metadata["urls"] = addresses(home, version)


def absolute(text: str, home: str, version: str) -> str:
    """The text with links to the files of this version.

    Args:
        text: Markdown with links that are relative to the repository.
        home: address of the repository; empty: links become plain text, and images are removed.
        version: of the package; its tag is `v` and the version.
    """
    if not home:
        return _LINK.sub(r"\1", _IMAGE.sub("", text))
    shown = _IMAGE.sub(rf"![\1]({home}/raw/v{version}/\2)", text)
    return _LINK.sub(rf"[\1]({home}/blob/v{version}/\2)", shown)


def addresses(home: str, version: str) -> dict[str, str]:
    """Label -> address, for `[project.urls]`; none without `home`."""
    if not home:
        return {}
    pages = {label: f"{home}/blob/v{version}/{path}" for label, path in _PAGES.items()}
    return {"Repository": home, "Issues": f"{home}/issues", **pages}
