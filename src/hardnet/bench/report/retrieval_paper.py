"""The paper's two tables of image retrieval, with our numbers where its collections are at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.cells import MISSING, number
from hardnet.bench.report.table import Table

COLLECTIONS = ("Oxford5k", "Paris6k")

BOW: Mapping[str, tuple[float, ...]] = {
    "TFeat-M*": (46.7, 55.6, 72.2, 43.8, 51.8, 65.3),
    "RootSIFT": (55.1, 63.0, 78.4, 59.3, 63.7, 76.4),
    "L2Net+": (59.8, 67.7, 80.4, 63.0, 66.6, 77.2),
    "HardNet": (59.0, 67.6, 83.2, 61.4, 67.4, 77.5),
    "HardNet+": (59.8, 68.8, 83.0, 61.0, 67.0, 77.5),
    "HardNet++": (60.8, 69.6, 84.5, 65.0, 70.3, 79.1),
}
"""mAP by bag of words, with verification, with query expansion: Oxford5k, then Paris6k."""

HQE: Mapping[str, tuple[str, float, float, float | None, float | None]] = {
    "SIFT-BoW": ("1M", 78.4, 82.2, None, None),
    "SIFT-BoW-fVocab": ("16M", 74.0, 84.9, 73.6, 82.4),
    "RootSIFT-HQE": ("65k", 85.3, 88.0, 81.3, 82.8),
    "HardNet++-HQE": ("65k", 86.8, 88.3, 82.8, 84.9),
}
"""Words; mAP with single and multiple assignment: Oxford5k, then Paris6k."""

_BOW_MODES = ("bow", "bow+sv", "bow+qe")
_HQE_MODES = ("hqe+sv:sa", "hqe+sv")


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Both tables; ours is empty where these results are not of the table's collection."""
    return [_bow(results), _hqe(results)]


def _bow(results: Mapping[str, Any]) -> Table:
    rows = [[f"{name} (paper)", *(number(v, "{:.1f}") for v in BOW[name])] for name in BOW]
    for label in _labels(results):
        cells = [_ours(results, label, mode, c) for c in COLLECTIONS for mode in _BOW_MODES]
        rows.append([f"{label} (ours)", *cells])
    return Table(
        "Bag of words on the paper's collections: mAP (%)",
        ["descriptor", *["BoW", "BoW+SV", "BoW+QE"] * 2],
        rows,
        [("", 1), *((name, 3) for name in COLLECTIONS)],
        _note(results, "The paper has 1M words."),
    )


def _hqe(results: Mapping[str, Any]) -> Table:
    rows = []
    for name, (words, *values) in HQE.items():
        rows.append([f"{name} (paper)", words, *(number(v, "{:.1f}") for v in values)])
    words = str(results["provenance"]["settings"]["words"])
    for label in _labels(results):
        cells = [_ours(results, label, mode, c) for c in COLLECTIONS for mode in _HQE_MODES]
        rows.append([f"{label}-HQE (ours)", words, *cells])
    return Table(
        "Local features, verification and query expansion on the paper's collections: mAP (%)",
        ["method", "words", *["SA", "MA"] * 2],
        rows,
        [("", 2), *((name, 2) for name in COLLECTIONS)],
        _note(results, "SA, MA: single, multiple assignment of the query's features."),
    )


def _labels(results: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(row["descriptor"] for row in results["rows"]))


def _ours(results: Mapping[str, Any], label: str, mode: str, collection: str) -> str:
    if results["collection"]["name"] != collection:
        return MISSING
    for row in results["rows"]:
        if (row["descriptor"], row["mode"], row["distractors"]) == (label, mode, 0):
            return number(100 * row["map"]["classic"], "{:.1f}")
    return MISSING


def _note(results: Mapping[str, Any], more: str) -> str:
    name = results["collection"]["name"]
    absent = [other for other in COLLECTIONS if other != name]
    where = " and ".join(absent)
    return (
        f"{more} These results are of {name}: our columns of {where} are empty, and are filled by "
        "hardnet bench retrieval --layout oxford where its photos are at hand."
    )
