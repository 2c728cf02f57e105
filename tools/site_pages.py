# SPDX-License-Identifier: Apache-2.0
"""mkdocs hook: adds the pages that lie outside docs/ to the site."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown"]

OUTSIDE = {
    "../README.md": "about.md",
    "../CHANGELOG.md": "changelog.md",
    "../SECURITY.md": "security.md",
    "../CONTRIBUTING.md": "contributing.md",
}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages, with their links relative to docs/."""
    for path, name in OUTSIDE.items():
        text = (Path(config.config_file_path).parent / path.removeprefix("../")).read_text()
        text = text.replace("](docs/", "](")
        for other, page in OUTSIDE.items():
            text = text.replace(f"]({other.removeprefix('../')})", f"]({page})")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Have links to these files lead to their pages."""
    for path, name in OUTSIDE.items():
        markdown = markdown.replace(f"]({path})", f"]({name})")
        # a page in a folder of docs/
        markdown = markdown.replace(f"](../{path})", f"](../{name})")
    return markdown
