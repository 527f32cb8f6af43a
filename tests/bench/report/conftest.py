"""Results files with MADE-UP numbers: input of the tables and figures, not measurements."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hardnet.bench.hpatches.protocol import PAPER_CONVENTION

NAMES = {"hardnet": 0.52, "rootsift": 0.36, "tfeat-liberty.params": 0.29}


def made_up_hpatches():
    """Two descriptors, hits = trapezoid - 0.1; the first wins everywhere except on i_one."""
    verification, matching, retrieval = [], [], []
    for name, base in (("net", 0.6), ("rootsift", 0.4)):
        for noise, shift in (("easy", 0.1), ("hard", 0.0), ("tough", -0.1)):
            for negatives, plus in (("intra", 0.0), ("inter", 0.2)):
                ap = base + shift + plus
                row = {"descriptor": name, "noise": noise, "negatives": negatives}
                row |= {"auc": ap + 0.05, "ap_trapezoid": ap, "ap_hits": ap - 0.1}
                verification.append(row | {"low": ap - 0.15, "high": ap - 0.05})
            for sequence, plus in (("v_one", 0.1), ("v_two", 0.0), ("i_one", -0.1)):
                ap = base + shift + plus if sequence != "i_one" else 0.5
                group = "viewpoint" if sequence[0] == "v" else "illumination"
                row = {"descriptor": name, "sequence": sequence, "group": group, "noise": noise}
                row |= {"ap_trapezoid": ap, "ap_hits": ap - 0.1, "success": 0.7}
                matching.append(row)
            for k in (100, 1000):
                ap = base + shift - k / 10_000
                row = {"descriptor": name, "noise": noise, "distractors": k}
                row |= {"ap_trapezoid": ap, "ap_hits": ap - 0.1}
                retrieval.append(row | {"low": 0.0, "high": 1.0})
    where = {"noise": "all", "group": "all", "low": 0.4, "high": 0.7}
    means = [
        {"descriptor": name, "task": task, "convention": convention, "value": value, **where}
        for name, value in (("net", 0.6), ("rootsift", 0.4))
        for task, convention in PAPER_CONVENTION.items()
    ]
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
