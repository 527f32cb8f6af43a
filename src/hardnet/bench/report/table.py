"""One table, shown as Markdown, as LaTeX or in the terminal."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hardnet.bench.report import latex

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """A title, one heading per column, and rows of text; the first column is a name.

    Attributes:
        title: shown above.
        columns: one heading each.
        rows: cells. ``**x**`` is bold; ``latex.SAME`` repeats the cell to its left.
        groups: (heading, number of columns) over the headings, covering all columns; or none.
        note: a sentence under the table.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    groups: list[tuple[str, int]] = field(default_factory=list)
    note: str = ""

    def headings(self, separator: str) -> list[str]:
        """The headings with their group in front, for formats without cells over columns."""
        above = [heading for heading, width in self.groups for _ in range(width)]
        if not above:
            return self.columns
        both = zip(above, self.columns, strict=True)
        return [f"{group}{separator}{column}" if group else column for group, column in both]

    def markdown(self) -> str:
        """The table in GitHub's Markdown, numbers to the right."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        cells = [[_markdown(cell) for cell in row] for row in (self.headings(": "), *self.rows)]
        lines = ["| " + " | ".join(row) + " |" for row in (cells[0], rule, *cells[1:])]
        return "\n".join([f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])])

    def latex(self, label: str | None = None) -> str:
        """The table as a LaTeX environment with caption and label."""
        label = label or "tab:" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        caption = f"{self.title}." + (f" {self.note}" if self.note else "")
        return latex.tabular(self.columns, self.groups, self.rows, caption, label)

    def rich(self) -> RichTable:
        """The table for a terminal."""
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(title=Text(self.title), title_justify="left", caption=self.note or None)
        for i, heading in enumerate(self.headings("\n")):
            shown.add_column(
                Text(heading), justify="right" if i else "left", no_wrap=i == 0, overflow="fold"
            )
        for row in self.rows:
            # Text and not a string: brackets of an interval are not markup.
            shown.add_row(
                *(Text(c.replace("**", ""), style="bold" if "**" in c else "") for c in row)
            )
        return shown


def _markdown(cell: str) -> str:
    """A bar would end the cell."""
    return cell.replace("|", "\\|")
