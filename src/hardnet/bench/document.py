"""Tables inside Markdown files, taken from results files, so that no number is typed by hand.

A document says where a table goes:

    <!-- summary results/match_real_pairs.json -->
    <!-- end -->

``summary`` asks for the first table of the results file, ``tables`` for all of them, ``table 3``
for the third. What stands between the two lines is replaced; the path is relative to the root of
the repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from hardnet.bench.report import Table, read_results, tables
from hardnet.errors import HardnetError

_SLOT = re.compile(r"(<!-- (summary|tables|table (\d+)) (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def refresh(text: str, root: Path) -> str:
    """``text`` with every table as its results file has it now."""

    def fill(slot: re.Match[str]) -> str:
        opening, what, number, path, _, closing = slot.groups()
        found = tables(read_results(root / path))
        shown = (
            found
            if what == "tables"
            else [_pick(found, 1 if what == "summary" else int(number), path)]
        )
        return opening + "".join(table.markdown() + "\n\n" for table in shown) + closing

    return _SLOT.sub(fill, text)


def _pick(found: list[Table], number: int, path: str) -> Table:
    if not 1 <= number <= len(found):
        raise HardnetError(f"{path} has tables 1 to {len(found)}, not {number}")
    return found[number - 1]
