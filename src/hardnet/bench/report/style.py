"""The style of all figures: colours, ticks, and byte-reproducible files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.storage import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Figures = dict[str, Callable[[Mapping[str, Any], Path], None]]
"""Name -> how to draw it, from the results into a file."""

NOISE_COLOURS = {"easy": "#009E73", "hard": "#0072B2", "tough": "#D55E00"}
"""Green, blue and red as in the paper, in shades that colour-blind readers can tell apart."""
BAR = "#D9D9D9"
FORMATS = (".png", ".svg")
_LINES = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31",
    "#999999", "#882255", "#332288", "#B5CF3B",
)  # fmt: skip
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osD^vP*X"
_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#EEEEEE",
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "hardnet",  # the same numbers give the same bytes
}


@contextmanager
def canvas(
    path: Path, width: float, height: float, down: int = 1, across: int = 1, **how: Any
) -> Iterator[tuple[Figure, Any]]:
    """A figure of ``width`` by ``height`` inches and its (down, across) empty panels.

    It is written to ``path`` when the block ends; ``how`` goes to matplotlib's ``subplots``.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    check_figure_name(path)
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.subplots(down, across, squeeze=False, **how)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        with replacing(path.resolve()) as part:
            figure.savefig(part, format=path.suffix[1:].lower(), dpi=150, metadata=metadata)


def check_figure_name(path: Path) -> None:
    if path.suffix.lower() not in FORMATS:
        raise HardnetError(f"{path}: a figure file must end in {' or '.join(FORMATS)}")


def line_style(index: int) -> dict[str, Any]:
    """The colour, dashes and marker of line number ``index``."""
    other = index + index // len(_LINES)  # shift dashes and markers once colours repeat
    return {
        "color": _LINES[index % len(_LINES)],
        "linestyle": _DASHES[other % len(_DASHES)],
        "marker": _MARKERS[other % len(_MARKERS)],
    }


def grouped_bars(axes: Axes, values: Mapping[str, Sequence[float | None]]) -> list[Any]:
    """A group of bars around each whole number with a bar per name; returns the bars by name.

    Where a name has no value, the others close up.
    """
    width = 0.84 / len(values)
    columns = list(zip(*values.values(), strict=True))
    drawn = []
    for i, (name, heights) in enumerate(values.items()):
        places = []
        for k, column in enumerate(columns):
            here = [height is not None for height in column]
            places.append(k + (sum(here[:i]) - (max(sum(here), 1) - 1) / 2) * width)
        style = {"label": name, "color": line_style(i)["color"]}
        drawn.append(axes.bar(places, [height or 0 for height in heights], width, **style))
    return drawn


def legend_beside(figure: Figure) -> None:
    """Each name once, to the right of all panels, where it covers no bar or curve."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, names = axes.get_legend_handles_labels()
        found |= dict(zip(names, handles, strict=True))
    figure.legend(found.values(), list(found), loc="outside right upper", frameon=False, fontsize=7)


def legend_above(figure: Figure, axes: Axes, loc: Any = "outside upper left") -> None:
    """The names of one panel, shared by all panels, side by side above them."""
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, ncols=len(names), loc=loc)


def name_rows(axes: Axes, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def log_ticks(low: float, high: float) -> list[float]:
    """The numbers 1, 3, 10, 30, ... (and below 1) that enclose ``low`` and ``high``.

    Over more than two and a half decades only 1, 10, 100, ...: the labels need the space.
    """
    digits = (1, 3) if high <= low * 300 else (1,)
    grid = [float(f"{digit}e{power}") for power in range(-6, 7) for digit in digits]
    first = max((i for i, tick in enumerate(grid) if tick <= low), default=0)
    last = min((i for i, tick in enumerate(grid) if tick >= high), default=len(grid) - 1)
    return grid[first : max(last, first + 1) + 1]


def round_ticks(furthest: float) -> list[float]:
    """0, step, 2 step, ... up to the first that is not below ``furthest``; at most 7 of them."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1e9) if furthest <= 6 * s)
    return [step * i for i in range(math.ceil(furthest / step) + 1)]
