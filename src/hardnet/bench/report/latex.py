"""Text and tables as LaTeX (packages booktabs, and longtable for tables longer than a page)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PAGE_ROWS = 40
"""A table with more rows than this may run over several pages."""
SAME = "←"
"""A cell that says: the number to the left holds here too. LaTeX merges the two cells."""

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
_BOLD = re.compile(r"\*\*(.+?)\*\*")


def escape(text: str) -> str:
    """``text`` as LaTeX shows it literally."""
    return "".join(_SPECIAL.get(c, c) for c in text)


def inline(text: str) -> str:
    """Escaped text in which ``**x**`` has become bold."""
    parts = _BOLD.split(text)  # plain, bold, plain, bold, ..., plain
    return "".join(rf"\textbf{{{escape(p)}}}" if i % 2 else escape(p) for i, p in enumerate(parts))


def tabular(
    columns: Sequence[str],
    groups: Sequence[tuple[str, int]],
    rows: Iterable[Sequence[str]],
    caption: str,
    label: str,
) -> str:
    r"""A complete table environment.

    Args:
        columns: one heading per column, the first of them of the names.
        groups: (heading, number of columns) above the headings; empty for none.
        rows: cells; ``**x**`` is bold, ``SAME`` merges a cell with the one to its left.
        caption: shown with the table, plain text.
        label: for ``\ref``.
    """
    body = [_line(row) for row in rows]
    head = [r"\toprule", *_group_lines(groups), _line(columns), r"\midrule"]
    layout = "@{}l" + "r" * (len(columns) - 1) + "@{}"
    title = rf"\caption{{{inline(caption)}}}\label{{{label}}}"
    if len(body) > PAGE_ROWS:
        opening = [rf"\begin{{longtable}}{{{layout}}}", title + r"\\", *head, r"\endhead"]
        return "\n".join([*opening, *body, r"\bottomrule", r"\end{longtable}"])
    opening = [r"\begin{table}[htb]", r"\centering", title, rf"\begin{{tabular}}{{{layout}}}"]
    return "\n".join([*opening, *head, *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _line(cells: Sequence[str]) -> str:
    """One row; runs of ``SAME`` become part of the cell before them."""
    merged: list[tuple[str, int]] = []
    for cell in cells:
        if cell == SAME and merged:
            merged[-1] = (merged[-1][0], merged[-1][1] + 1)
        else:
            merged.append((inline(cell), 1))
    line = " & ".join(_span(text, n) for text, n in merged) + r" \\"
    # The line before ends with \\, which would take these for its own argument.
    return "{}" + line if line.startswith(("[", "*")) else line


def _group_lines(groups: Sequence[tuple[str, int]]) -> list[str]:
    """The headings over several columns and the short rules under them."""
    if not groups:
        return []
    rules, place = [], 1
    for heading, width in groups:
        if heading:
            rules.append(rf"\cmidrule(lr){{{place}-{place + width - 1}}}")
        place += width
    headings = " & ".join(_span(inline(heading), width) for heading, width in groups)
    return [headings + r" \\", " ".join(rules)]


def _span(text: str, width: int) -> str:
    return text if width == 1 else rf"\multicolumn{{{width}}}{{c}}{{{text}}}"
