"""The kinds of results files, and which tables and figures each has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardnet.bench.report import (
    assign_words,
    brown,
    describe,
    detect,
    development,
    experiment,
    extract_folder,
    figure_bars,
    figure_brown,
    figure_distractors,
    figure_experiment,
    figure_hpatches,
    figure_retrieval,
    figure_retrieval_growth,
    figure_sfm,
    figure_stereo,
    figure_w1bs,
    hpatches,
    hpatches_scale,
    match_descriptors,
    match_pair,
    pairs,
    retrieval,
    retrieval_growth,
    retrieval_speed,
    sfm,
    stereo,
    train_step,
    w1bs,
)
from hardnet.bench.report.table import Table
from hardnet.errors import HardnetError

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """How results of one kind are shown.

    Attributes:
        tables: the summary first.
        figures: name -> how to draw it into a file; the main one first.
        ready: whether the results have what a figure needs.
    """

    tables: Callable[[Results], list[Table]]
    figures: Mapping[str, Callable[[Results, Path], None]] = field(default_factory=dict)
    ready: Callable[[Results, str], bool] = lambda results, name: True


def _pair_bars(results: Results, path: Path) -> None:
    figure_bars.draw(pairs.values(results), "correct matches", path)


def _has_distractors(results: Results, name: str) -> bool:
    """A curve needs two points."""
    counts = {row["distractors"] for row in results.get("retrieval", ())}
    return name != "distractors" or len(counts) > 1


KINDS: Mapping[str, Kind] = {
    "sfm": Kind(sfm.tables, {"bars": figure_sfm.draw}),
    "pairs": Kind(pairs.tables, {"bars": _pair_bars}),
    "describe": Kind(describe.tables),
    "match_descriptors": Kind(match_descriptors.tables),
    "detect": Kind(detect.tables),
    "match_pair": Kind(match_pair.tables),
    "extract_folder": Kind(extract_folder.tables),
    "train_step": Kind(train_step.tables),
    "experiment": Kind(experiment.tables, {"cells": figure_experiment.draw}),
    "brown": Kind(brown.tables, {"rates": figure_brown.draw}),
    "hpatches": Kind(
        hpatches.tables,
        {"tasks": figure_hpatches.draw, "distractors": figure_distractors.draw},
        _has_distractors,
    ),
    "stereo": Kind(
        stereo.tables,
        {"pairs": figure_stereo.draw, "accuracy": figure_stereo.draw_accuracy},
        figure_stereo.has_accuracy,
    ),
    "retrieval": Kind(
        retrieval.tables, {"distractors": figure_retrieval.draw}, figure_retrieval.has_curve
    ),
    "retrieval_speed": Kind(retrieval_speed.tables),
    "retrieval_growth": Kind(
        retrieval_growth.tables,
        {"growth": figure_retrieval_growth.draw},
        figure_retrieval_growth.has_curve,
    ),
    "assign_words": Kind(assign_words.tables),
    "hpatches_scale": Kind(hpatches_scale.tables),
    "pose": Kind(
        development.pose_tables, {"curves": development.draw_pose}, development.has_report
    ),
    "light": Kind(
        development.light_tables, {"bars": development.draw_light}, development.has_report
    ),
    "ratio": Kind(
        development.ratio_tables, {"bars": development.draw_ratio}, development.has_report
    ),
    "w1bs": Kind(w1bs.tables, {"curves": figure_w1bs.draw}),
}


def tables(results: Results) -> list[Table]:
    """The tables of a results file: the summary, then the details."""
    return KINDS[results["kind"]].tables(results)


def figures(results: Results) -> list[str]:
    """The names of the figures that these results have."""
    kind = KINDS[results["kind"]]
    return [name for name in kind.figures if kind.ready(results, name)]


def figure(results: Results, path: Path, which: str | None = None) -> None:
    """Draw a figure into ``path``, a .png or .svg file.

    Args:
        results: as ``read_results`` gives them.
        path: its folder is made if it is missing.
        which: one of ``figures(results)``; default: the first.
    """
    known = figures(results)
    if not known:
        raise HardnetError(f"there is no figure of the {results['kind']} benchmark, only its table")
    if which is not None and which not in known:
        raise HardnetError(f"these results have the figures {', '.join(known)}, not {which!r}")
    KINDS[results["kind"]].figures[which or known[0]](results, path)
