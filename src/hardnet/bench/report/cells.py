"""Numbers as the text of cells: missing values, intervals, the best of a column in bold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hardnet.bench.report.table import Table

BASELINE = "rootsift"
"""The descriptor that the ratios refer to, where it took part."""
MISSING = "-"


def number(value: float | None, style: str = "{:.3f}") -> str:
    """The number, or a dash where there is none."""
    return MISSING if value is None else style.format(value)


def interval(low: float | None, high: float | None, style: str = "{:.3f}") -> str:
    """``[low, high]``, or a dash."""
    if low is None or high is None:
        return MISSING
    return f"[{style.format(low)}, {style.format(high)}]"


def with_interval(cell: str, low: float | None, high: float | None) -> str:
    """The text of a number followed by its interval, where it has one."""
    return cell if low is None or high is None else f"{cell} {interval(low, high)}"


def ratio(value: float | None, baseline: float | None) -> str:
    """``value / baseline`` as text."""
    return MISSING if value is None or not baseline else f"{value / baseline:.2f}x"


def bold_best(
    values: Sequence[float | None], style: str = "{:.3f}", smaller: bool = False
) -> list[str]:
    """The numbers as text, with the best in bold; those that read the same are equally good."""
    texts = [number(value, style) for value in values]
    present = [value for value in values if value is not None]
    if len(present) < 2:
        return texts
    best = style.format(min(present) if smaller else max(present))
    return [f"**{text}**" if text == best else text for text in texts]


def by_name(
    title: str, corner: str, values: Mapping[str, Mapping[str, float]], style: str = "{:.3f}"
) -> Table:
    """Descriptors across, names (of sequences, of pairs) down, the best of each row in bold.

    Args:
        title: of the table.
        corner: what the names are.
        values: descriptor -> name -> number; a descriptor may lack some names.
        style: of a number.
    """
    names = dict.fromkeys(name for each in values.values() for name in each)
    rows = [
        [name, *bold_best([each.get(name) for each in values.values()], style)] for name in names
    ]
    return Table(title, [corner, *values], rows)


def by_descriptor(
    columns: Sequence[Mapping[str, float]],
    descriptors: Sequence[str],
    style: str = "{:.3f}",
    smaller: bool = False,
) -> list[list[str]]:
    """Rows of a table with descriptors down: each name, then its cells; best per column bold.

    Args:
        columns: for each column, descriptor -> number.
        descriptors: the order of the rows.
        style: of a number.
        smaller: whether smaller is better.
    """
    texts = [bold_best([c.get(d) for d in descriptors], style, smaller) for c in columns]
    return [[name, *(column[i] for column in texts)] for i, name in enumerate(descriptors)]
