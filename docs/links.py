"""A hook of mkdocs: the front page is the README, and links to the code become plain text.

Pages are written for readers of the repository, where ``../src/x.py`` is a file; on the site it is
not. Links of the README into ``docs/`` become links of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_FOLDERS = r"\.\./|src/|results/|examples/|recipes/|CHANGELOG|CONTRIBUTING"
_OUTSIDE = re.compile(rf"\[([^\]]+)\]\((?:{_FOLDERS})[^)]*\)")
_IMAGE_OUTSIDE = re.compile(r"!\[[^\]]*\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The text of a page as the site has it."""
    if page.file.src_path == "index.md":
        readme = Path(page.file.abs_src_path).parents[1] / "README.md"
        markdown = readme.read_text(encoding="utf-8").replace("](docs/", "](")
    return _OUTSIDE.sub(r"\1", _IMAGE_OUTSIDE.sub("", markdown))
