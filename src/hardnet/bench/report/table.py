"""One table: columns of numbers and texts, shown as Markdown, as LaTeX or in the terminal.

Written here, because no table library marks the best numbers, merges cells and writes all three.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table as RichTable

Results = Mapping[str, Any]
"""A results file."""
Row = Mapping[str, Any]
"""One of its rows."""
Value = float | str | None
Best = Literal["largest", "smallest"]
Ends = tuple[float | None, float | None]

BASELINE = "rootsift"
"""The descriptor that the ratios refer to, if it took part."""
MISSING = "-"
SAME = "←"
"""A cell with the same number as the one to its left. LaTeX merges the two."""
PAGE_ROWS = 40
"""A LaTeX table with more rows than this may run over several pages."""


@dataclass(frozen=True)
class Column:
    """One column: a text is shown as it is, None as a dash.

    ``best``: which number is bold (all that look the same); ``group``: a heading over neighbours of
    the same group; ``intervals``: (low, high) after each number.
    """

    heading: str
    values: Sequence[Value]
    style: str = "{:.3f}"
    best: Best | None = None
    group: str = ""
    intervals: Sequence[Ends] = ()

    @property
    def texts(self) -> list[str]:
        return [
            MISSING if v is None else v if isinstance(v, str) else self.style.format(v)
            for v in self.values
        ]


@dataclass(frozen=True)
class Table:
    """A title, columns of one length, the first of them names; and a note.

    ``best_of``: what a number in bold is the best of; ``blocks``: a label per line, only lines of
    the same label compete within a column.
    """

    title: str
    columns: Sequence[Column]
    note: str = ""
    best_of: Literal["column", "line", "table"] = "column"
    blocks: Sequence[str] = ()

    @classmethod
    def of_texts(
        cls, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
    ) -> Table:
        cells = [[row[i] for row in rows] for i in range(len(columns))]
        return cls(title, [Column(*each) for each in zip(columns, cells, strict=True)], note)

    @property
    def headings(self) -> list[str]:
        return [column.heading for column in self.columns]

    def full_headings(self, separator: str) -> list[str]:
        """The headings with their group in front, for formats without cells over columns."""
        return [f"{c.group}{separator}{c.heading}" if c.group else c.heading for c in self.columns]

    @property
    def rows(self) -> list[list[str]]:
        """The cells as text, line by line; ``**x**`` is bold."""
        best = self._best()
        shown = []
        for j, column in enumerate(self.columns):
            cells = column.texts
            for i, value in enumerate(column.values):
                if isinstance(value, (int, float)) and column.best:
                    bold = cells[i] == best.get(self._contest(i, j))
                    cells[i] = f"**{cells[i]}**" if bold else cells[i]
                if column.intervals and None not in column.intervals[i]:
                    cells[i] += f" {interval(*column.intervals[i], style=column.style)}"
            shown.append(cells)
        return [list(row) for row in zip(*shown, strict=True)]

    def markdown(self) -> str:
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        head, *rows = [
            [cell.replace("|", "\\|") for cell in row]
            for row in (self.full_headings(": "), *self.rows)
        ]
        lines = ["| " + " | ".join(row) + " |" for row in (head, rule, *rows)]
        return "\n".join([f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])])

    def latex(self, label: str | None = None) -> str:
        """The table as a LaTeX environment with caption and label (booktabs, longtable)."""
        label = label or "tab:" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        caption = f"{self.title}." + (f" {self.note}" if self.note else "")
        title = rf"\caption{{{latex_text(caption)}}}\label{{{label}}}"
        layout = "@{}l" + "r" * (len(self.columns) - 1) + "@{}"
        head = [r"\toprule", *self._latex_groups(), _latex_line(self.headings), r"\midrule"]
        body = [*map(_latex_line, self.rows), r"\bottomrule"]
        if len(self.rows) > PAGE_ROWS:
            opening = [rf"\begin{{longtable}}{{{layout}}}", title + r"\\", *head, r"\endhead"]
            return "\n".join([*opening, *body, r"\end{longtable}"])
        opening = [r"\begin{table}[htb]", r"\centering", title, rf"\begin{{tabular}}{{{layout}}}"]
        return "\n".join([*opening, *head, *body, r"\end{tabular}", r"\end{table}"])

    def rich(self) -> RichTable:
        from rich.table import Table as RichTable
        from rich.text import Text

        shown = RichTable(title=Text(self.title), title_justify="left", caption=self.note or None)
        for i, heading in enumerate(self.full_headings("\n")):
            shown.add_column(
                Text(heading), justify="right" if i else "left", no_wrap=i == 0, overflow="fold"
            )
        for row in self.rows:
            # Text, not a string: the brackets of an interval are not markup.
            shown.add_row(
                *(Text(c.replace("**", ""), style="bold" if "**" in c else "") for c in row)
            )
        return shown

    def _contest(self, line: int, column: int) -> Hashable:
        if self.best_of == "column":
            return column, self.blocks[line] if self.blocks else ""
        return line if self.best_of == "line" else None

    def _best(self) -> dict[Hashable, str]:
        """The best number of each contest of two or more, as text."""
        entered: dict[Hashable, list[tuple[float, str]]] = {}
        for j, column in enumerate(self.columns):
            for i, value in enumerate(column.values if column.best else ()):
                if isinstance(value, (int, float)):
                    signed = value if column.best == "largest" else -value
                    text = column.style.format(value)
                    entered.setdefault(self._contest(i, j), []).append((signed, text))
        return {key: max(each)[1] for key, each in entered.items() if len(each) > 1}

    def _latex_groups(self) -> list[str]:
        cells: list[str] = []
        rules, place = [], 1
        for group, columns in groupby(self.columns, key=lambda column: column.group):
            width = len(list(columns))
            if group:
                rules.append(rf"\cmidrule(lr){{{place}-{place + width - 1}}}")
            cells += [_span(latex_text(group), width)] if group else [""] * width
            place += width
        return [" & ".join(cells) + r" \\", " ".join(rules)] if rules else []


def column(
    heading: str,
    rows: Iterable[Row | None],
    value: str | Callable[[Any], Value],
    style: str = "{:.3f}",
    best: Best | None = None,
    factor: float | None = None,
    group: str = "",
) -> Column:
    """A field of every row, or what a function makes of it; None where there is no row."""
    get = value if callable(value) else lambda row: row.get(value)
    values = [None if row is None else get(row) for row in rows]
    if factor is not None:
        values = [None if each is None else factor * float(each) for each in values]
    return Column(heading, values, style, best, group)


def distinct(rows: Iterable[Row], field: str) -> list[str]:
    return list(dict.fromkeys(row[field] for row in rows))


def grouped(rows: Iterable[Row], *fields: str) -> dict[Any, list[Row]]:
    """The rows by the value of a field, or by the values of several, in their order."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        key = tuple(row[field] for field in fields)
        found.setdefault(key if len(fields) > 1 else key[0], []).append(row)
    return found


def interval(
    low: float | None, high: float | None, *, style: str = "{:.3f}", factor: float = 1
) -> str:
    if low is None or high is None:
        return MISSING
    return f"[{style.format(factor * low)}, {style.format(factor * high)}]"


def against_baseline(
    what: str,
    names: Sequence[str],
    values: Sequence[float | None],
    blocks: Sequence[str] | None = None,
) -> list[Column]:
    """The column of ratios to the baseline of the same block; none if it did not take part."""
    blocks = blocks or [""] * len(names)
    lines = list(zip(blocks, names, values, strict=True))
    base = {block: value for block, name, value in lines if name == BASELINE and value}
    ratios = [value / base[b] if value is not None and b in base else None for b, _, value in lines]
    return [Column(f"{what} / {BASELINE}".strip(), ratios, "{:.2f}x")] if base else []


def by_name(
    title: str, corner: str, values: Mapping[str, Mapping[str, float]], style: str = "{:.3f}"
) -> Table:
    """Descriptors across, names (of sequences, of pairs) down, the best of each line in bold.

    ``values``: descriptor -> name -> number; a descriptor may lack some names.
    """
    names = list(dict.fromkeys(name for each in values.values() for name in each))
    columns = [
        Column(descriptor, [each.get(name) for name in names], style, "largest")
        for descriptor, each in values.items()
    ]
    return Table(title, [Column(corner, names), *columns], best_of="line")


_SPECIAL = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "←": r"$\leftarrow$",
}


def latex_text(text: str) -> str:
    """``text`` as LaTeX shows it literally, except that ``**x**`` becomes bold."""
    parts = re.split(r"\*\*(.+?)\*\*", text)  # plain, bold, plain, bold, ..., plain
    escaped = ["".join(_SPECIAL.get(c, c) for c in part) for part in parts]
    return "".join(rf"\textbf{{{p}}}" if i % 2 else p for i, p in enumerate(escaped))


def _latex_line(cells: Sequence[str]) -> str:
    """One row; runs of ``SAME`` become part of the cell before them."""
    merged: list[tuple[str, int]] = []
    for cell in cells:
        if cell == SAME and merged:
            merged[-1] = (merged[-1][0], merged[-1][1] + 1)
        else:
            merged.append((latex_text(cell), 1))
    line = " & ".join(_span(text, n) for text, n in merged) + r" \\"
    # The line before ends with \\, which would take these for its own argument.
    return "{}" + line if line.startswith(("[", "*")) else line


def _span(text: str, width: int) -> str:
    return text if width == 1 else rf"\multicolumn{{{width}}}{{c}}{{{text}}}"
