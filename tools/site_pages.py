# SPDX-License-Identifier: Apache-2.0
"""mkdocs hook: adds README.md and CHANGELOG.md, which lie outside docs/, to the site."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown"]

OUTSIDE = {"../README.md": "tutorial.md", "../CHANGELOG.md": "changelog.md"}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the two pages, with their links relative to docs/."""
    for path, name in OUTSIDE.items():
        text = (Path(config.config_file_path).parent / path.removeprefix("../")).read_text()
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Have links to the two files lead to their pages."""
    for path, name in OUTSIDE.items():
        markdown = markdown.replace(f"]({path})", f"]({name})")
    return markdown
