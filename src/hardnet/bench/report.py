"""Results files as tables (Markdown, terminal) and figures, so that no number is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardnet.bench import real_pairs, sequence_patches
from hardnet.errors import HardnetError, MissingExtraError

BASELINE = "rootsift"
"""The descriptor that the ratios refer to, where it took part."""


@dataclass(frozen=True)
class Table:
    """A title, one heading per column, and rows of text; the first column is a name."""

    title: str
    columns: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table in GitHub's Markdown, numbers to the right."""
        rule = ["---", *["---:"] * (len(self.columns) - 1)]
        lines = ["| " + " | ".join(row) + " |" for row in (self.columns, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines])


def read_results(path: Path) -> dict[str, Any]:
    """A results file that ``hardnet bench`` wrote."""
    try:
        results = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise HardnetError(f"{path}: cannot read results: {error}") from error
    if not isinstance(results, dict) or results.get("kind") not in _TABLES:
        raise HardnetError(f"{path}: not a results file of {', '.join(_TABLES)}")
    return results


def tables(results: Mapping[str, Any]) -> list[Table]:
    """The tables of a results file: the summary, then the details."""
    return _TABLES[results["kind"]](results)


def figure(results: Mapping[str, Any], path: Path) -> None:
    """Draw one group of bars per sequence and one bar per descriptor into ``path``."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "bench") from error
    if results["kind"] == "describe":
        raise HardnetError("there is no figure of the describe benchmark, only its table")
    label, values = _headline(results)
    names = [name for name in next(iter(values.values())) if name != "all"]
    width = 0.8 / len(values)
    canvas = Figure(figsize=(1.5 + 0.9 * len(names), 3.6), layout="constrained")
    axes = canvas.subplots()
    for i, (descriptor, by_sequence) in enumerate(values.items()):
        places = [k + (i - (len(values) - 1) / 2) * width for k in range(len(names))]
        axes.bar(places, [by_sequence[n] for n in names], width, label=descriptor)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=len(values), loc="lower left", bbox_to_anchor=(0, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas.savefig(path, dpi=150)


def _headline(results: Mapping[str, Any]) -> tuple[str, dict[str, dict[str, float]]]:
    """What the figure shows: its axis label, and descriptor -> sequence -> value."""
    if results["kind"] == "patches":
        return "matching mAP", sequence_patches.summarise(results["rows"], "sequence")
    totals = real_pairs.summarise(results["rows"], "sequence")
    return "correct matches", {
        label: {name: counts["correct"] for name, counts in groups.items()}
        for label, groups in totals.items()
    }


def _patch_tables(results: Mapping[str, Any]) -> list[Table]:
    by_noise = sequence_patches.summarise(results["rows"], "noise")
    levels = list(sequence_patches.NOISE_LEVELS)
    baseline = by_noise.get(BASELINE, {}).get("all")
    rows = []
    for label, means in by_noise.items():
        numbers = [f"{means[level]:.3f}" for level in (*levels, "all")]
        rows.append([label, *numbers, _ratio(means["all"], baseline)])
    summary = Table(
        "Matching mAP on sequence patches", ["descriptor", *levels, "mean", f"/ {BASELINE}"], rows
    )
    by_sequence = sequence_patches.summarise(results["rows"], "sequence")
    return [summary, _by_sequence("Matching mAP per sequence", by_sequence, "{:.3f}")]


def _pair_tables(results: Mapping[str, Any]) -> list[Table]:
    totals = real_pairs.summarise(results["rows"], "sequence")
    baseline = totals.get(BASELINE, {}).get("all", {}).get("correct")
    rows = []
    for label, groups in totals.items():
        counts = groups["all"]
        fields = ("tentative", "correct", "inliers", "correct_inliers")
        numbers = [f"{counts[field]}" for field in fields]
        ratio = _ratio(counts["correct"], baseline)
        rows.append([label, f"{counts['verified']} / {counts['pairs']}", *numbers, ratio])
    columns = ["descriptor", "verified pairs", "matches", "correct", "inliers", "correct inliers"]
    summary = Table("Matches on real pairs", [*columns, f"correct / {BASELINE}"], rows)
    _, values = _headline(results)
    verified = {
        label: {name: float(counts["verified"]) for name, counts in groups.items()}
        for label, groups in totals.items()
    }
    return [
        summary,
        _by_sequence("Correct matches per sequence", values, "{:.0f}"),
        _by_sequence("Verified pairs per sequence", verified, "{:.0f}"),
    ]


def _describe_tables(results: Mapping[str, Any]) -> list[Table]:
    rates, ratios = results["patches_per_second"], results["ratio_to_kornia"]
    rows = [
        [name, *(f"{rates[batch][name]:.0f} ({ratios[batch][name]:.2f}x)" for batch in rates)]
        for name in next(iter(rates.values()))
    ]
    columns = ["descriptor", *(f"patches/s, batch {batch} (ratio)" for batch in rates)]
    return [Table("Describing real patches, 2 threads", columns, rows)]


def _by_sequence(title: str, values: Mapping[str, Mapping[str, float]], style: str) -> Table:
    """Sequences down, descriptors across, the best of each row in bold."""
    names = [name for name in next(iter(values.values())) if name != "all"]
    rows = []
    for name in names:
        row = [style.format(values[label][name]) for label in values]
        best = style.format(max(values[label][name] for label in values))
        rows.append([name, *(f"**{text}**" if text == best else text for text in row)])
    return Table(title, ["sequence", *values], rows)


def _ratio(value: float, baseline: float | None) -> str:
    return f"{value / baseline:.2f}x" if baseline else "-"


_TABLES: dict[str, Callable[[Mapping[str, Any]], list[Table]]] = {
    "patches": _patch_tables,
    "pairs": _pair_tables,
    "describe": _describe_tables,
}
