"""Results files with MADE-UP numbers: input of the tables and figures, not measurements."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

NAMES = {"hardnet": 0.52, "rootsift": 0.36, "tfeat-liberty.params": 0.29}
NOISE = {"easy": 0.18, "hard": 0.0, "tough": -0.11}


def made_up_hpatches():
    verification, matching, retrieval, means = [], [], [], []
    for name, level in NAMES.items():
        for noise, shift in NOISE.items():
            where = {"descriptor": name, "noise": noise}
            for negatives, plus in (("intra", 0.2), ("inter", 0.28)):
                ap = level + plus + shift * 0.6
                row = where | {"negatives": negatives, "auc": 0.9}
                verification.append(row | {"ap_trapezoid": ap + 0.01, "ap_hits": ap})
            for i, sequence in enumerate(("v_wall", "v_graf", "i_ajuntament")):
                group = "viewpoint" if sequence[0] == "v" else "illumination"
                ap = level + shift + 0.03 * i
                row = where | {"sequence": sequence, "group": group}
                matching.append(row | {"ap_trapezoid": ap, "ap_hits": ap, "success": ap + 0.1})
            for k in (100, 500, 20000):
                ap = level + shift * 0.8 + 0.25 - 0.05 * np.log10(k)
                retrieval.append(where | {"distractors": k, "ap_trapezoid": ap, "ap_hits": ap})
        for task in ("verification", "matching", "retrieval"):
            convention = "trapezoid" if task == "retrieval" else "hits"
            row = {"descriptor": name, "task": task, "noise": "all", "group": "all"}
            ends = {"value": level, "low": level - 0.03, "high": level + 0.03}
            means.append(row | {"convention": convention} | ends)
    return {
        "kind": "hpatches",
        "set": {"name": "made-up", "split": "full", "sequences": 3, "patches": 400},
        "verification": verification,
        "matching": matching,
        "retrieval": retrieval,
        "means": means,
    }


def made_up_brown():
    rows = []
    for name, level in NAMES.items():
        trained = {"tfeat-liberty.params": "liberty", "hardnet": "photos"}.get(name)
        for k, test in enumerate(("liberty", "notredame")):
            rate = 0.002 / level**3 * (1 + 0.2 * k)
            row = {"descriptor": name, "trained": trained, "set": test, "pairs": 100_000}
            row |= {"fpr95": rate, "fpr95_before": rate, "fdr95": rate / (rate + 0.95)}
            rows.append(row | {"auc": 1 - rate / 5, "low": rate * 0.95, "high": rate * 1.05})
    return {"kind": "brown", "rows": rows}


def made_up_w1bs():
    rows, means, curves = [], [], []
    for name, level in NAMES.items():
        for k, subset in enumerate(("A", "map2photo", "Total")):
            value = level * (0.12 - 0.015 * k)
            for score in ("ratio", "distance", "difference", "ap_trapezoid", "ap_hits"):
                mean = {"descriptor": name, "subset": subset, "score": score, "value": value}
                means.append(mean | {"low": value - 0.005, "high": value + 0.005})
            if subset != "Total":
                row = {"descriptor": name, "subset": subset, "pair": "one", "patches": 200}
                scores = ("ratio", "distance", "difference", "ap_trapezoid", "ap_hits")
                rows.append(row | dict.fromkeys(scores, value))
            t = np.linspace(0, 1, 20)
            curve = {"descriptor": name, "subset": subset, "score": "ratio"}
            recall, precision = level * t**2, 1 - t * (1 - level * 0.5)
            curves.append(curve | {"recall": recall.tolist(), "precision": precision.tolist()})
    body = {"rows": rows, "means": means, "curves": curves}
    return {"kind": "w1bs", "set": {"name": "made-up", "pairs": 2, "patches": 1000}} | body


def made_up_pairs():
    correct = {("net", "a"): 80, ("net", "b"): 5, ("rootsift", "a"): 60, ("rootsift", "b"): 8}
    rows = [
        {"descriptor": d, "sequence": s, "tentative": 100, "correct": n}
        | {"inliers": n + 1, "correct_inliers": n - 1, "verified": n > 15}
        for (d, s), n in correct.items()
    ]
    return {"kind": "pairs", "rows": rows}


@pytest.fixture
def hpatches_results():
    return made_up_hpatches()


@pytest.fixture
def brown_results():
    return made_up_brown()


@pytest.fixture
def w1bs_results():
    return made_up_w1bs()


@pytest.fixture
def pairs_results():
    return made_up_pairs()


@pytest.fixture
def values():
    """Name of the line -> number, of the column with this heading (and group)."""

    def find(table, heading, group=None):
        [column] = [c for c in table.columns if c.heading == heading and group in (None, c.group)]
        return dict(zip(table.columns[0].values, column.values, strict=True))

    return find


@pytest.fixture
def drawn(tmp_path):
    """The pieces of text in a figure of results."""
    pytest.importorskip("matplotlib")
    from hardnet.bench.report import figure

    def words(results, which=None):
        path: Path = tmp_path / "drawn.svg"
        figure(results, path, which)
        return set(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()))

    return words
