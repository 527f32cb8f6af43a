"""A hook of mkdocs: the front page is the README, and links to the code become plain text.

Pages are written for readers of the repository, where ``../src/x.py`` is a file; on the site it is
not. Links of the README into ``docs/`` become links of the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)[^)]*\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The text of a page as the site has it."""
    docs = Path(config["docs_dir"])
    folder = (docs / page.file.src_path).parent
    repository = folder
    if page.file.src_path == "index.md":
        repository = docs.parent
        markdown = (repository / "README.md").read_text(encoding="utf-8").replace("](docs/", "](")

    def link(found: re.Match[str]) -> str:
        picture, text, target = found.groups()
        if (folder / target).resolve().is_relative_to(docs) and (folder / target).exists():
            return found[0]
        if (repository / target).exists():  # a file of the repository, but not of the site
            return "" if picture else text
        return found[0]  # broken: mkdocs reports it

    return _LINK.sub(link, markdown)
