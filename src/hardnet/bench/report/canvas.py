"""What all figures share: matplotlib only when it is needed, colours, files that repeat exactly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.errors import HardnetError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOISE_COLOURS = {"easy": "#009E73", "hard": "#0072B2", "tough": "#D55E00"}
"""Green, blue and red as in the paper, in the shades that colour-blind readers tell apart."""
BAR = "#D9D9D9"
FORMATS = (".png", ".svg")
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osD^vP*X"
_SETTINGS: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "hardnet",  # the same numbers give the same bytes
}


@contextmanager
def canvas(path: Path, width: float, height: float) -> Iterator[Figure]:
    """An empty figure of so many inches; written to ``path`` when the block ends."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "bench") from error
    if path.suffix.lower() not in FORMATS:
        raise HardnetError(f"{path}: a figure is one of {', '.join(FORMATS)}")
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, dpi=150, metadata=metadata)


def line_style(index: int) -> dict[str, Any]:
    """How line number ``index`` is drawn: a colour, and dashes and marker that differ too."""
    return {
        "color": _LINES[index % len(_LINES)],
        "linestyle": _DASHES[index % len(_DASHES)],
        "marker": _MARKERS[index % len(_MARKERS)],
    }


def name_rows(axes: Axes, names: list[str]) -> None:
    """One row per name from the top down."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
