"""Results files with MADE-UP numbers: input of the tables and figures, not measurements."""

from __future__ import annotations

import numpy as np
import pytest

NAMES = {
    "hardnet": 0.52,
    "hardnet-int8": 0.51,
    "HardTFeat.pth": 0.41,
    "rootsift": 0.36,
    "sift": 0.31,
    "tfeat-liberty.params": 0.29,
    "vgg": 0.44,
    "beblid": 0.22,
    "pixels": 0.13,
}
NOISE = {"easy": 0.18, "hard": 0.0, "tough": -0.11}


def made_up_hpatches(names=NAMES):
    rng = np.random.default_rng(0)
    verification, matching, retrieval, means = [], [], [], []
    for name, level in names.items():
        for noise, shift in NOISE.items():
            for negatives, plus in (("intra", 0.2), ("inter", 0.28)):
                ap = level + plus + shift * 0.6
                row = {"descriptor": name, "noise": noise, "negatives": negatives, "auc": 0.9}
                ends = {"low": ap - 0.02, "high": ap + 0.02}
                verification.append(row | {"ap_trapezoid": ap + 0.01, "ap_hits": ap} | ends)
            for sequence in ("v_wall", "v_graf", "i_ajuntament", "i_fruits"):
                ap = max(level + shift + rng.normal() * 0.03, 0.01)
                group = "viewpoint" if sequence[0] == "v" else "illumination"
                row = {"descriptor": name, "sequence": sequence, "group": group, "noise": noise}
                row |= {"ap_trapezoid": ap + 0.01, "ap_hits": ap, "success": ap + 0.1}
                matching.append(row)
            for k in (100, 500, 1000, 5000, 10000, 15000, 20000):
                ap = level + shift * 0.8 + 0.25 - 0.05 * np.log10(k)
                row = {"descriptor": name, "noise": noise, "distractors": k}
                ends = {"low": ap - 0.03, "high": ap + 0.03}
                retrieval.append(row | {"ap_trapezoid": ap + 0.01, "ap_hits": ap} | ends)
        for task, rows in (("verification", verification), ("matching", matching)):
            value = float(np.mean([r["ap_hits"] for r in rows if r["descriptor"] == name]))
            means.append(_mean(name, task, value))
        final = [r for r in retrieval if r["descriptor"] == name and r["distractors"] == 20000]
        means.append(_mean(name, "retrieval", float(np.mean([r["ap_trapezoid"] for r in final]))))
    return {
        "kind": "hpatches",
        "set": {"name": "made-up", "split": "full", "sequences": 4, "patches": 400},
        "verification": verification,
        "matching": matching,
        "retrieval": retrieval,
        "means": means,
    }


def _mean(name, task, value):
    where = {"descriptor": name, "task": task, "noise": "all", "group": "all"}
    convention = "trapezoid" if task == "retrieval" else "hits"
    return where | {
        "convention": convention,
        "value": value,
        "low": value - 0.03,
        "high": value + 0.03,
    }


def made_up_brown(names=NAMES):
    rows = []
    for name, level in names.items():
        trained = {"tfeat-liberty.params": "liberty", "hardnet": "photos"}.get(name)
        for k, test in enumerate(("liberty", "notredame", "yosemite")):
            rate = min(0.002 / level**3 * (1 + 0.2 * k), 0.9)
            row = {"descriptor": name, "trained": trained, "set": test, "pairs": 100_000}
            row |= {"fpr95": rate, "fpr95_before": rate, "fdr95": rate / (rate + 0.95)}
            rows.append(row | {"auc": 1 - rate / 5, "low": rate * 0.95, "high": rate * 1.05})
    return {"kind": "brown", "rows": rows}


def made_up_w1bs(names=NAMES):
    rows, means, curves = [], [], []
    subsets = ("A", "G", "L", "S", "map2photo", "Total")
    for name, level in names.items():
        for k, subset in enumerate(subsets):
            value = level * (0.12 - 0.015 * k)
            for score in ("ratio", "distance", "difference", "ap_trapezoid", "ap_hits"):
                mean = {"descriptor": name, "subset": subset, "score": score, "value": value}
                means.append(mean | {"low": value - 0.005, "high": value + 0.005})
            if subset != "Total":
                areas = {"ratio": value, "distance": value - 0.001, "difference": value - 0.002}
                row = {"descriptor": name, "subset": subset, "pair": "one", "patches": 200}
                rows.append(row | areas | {"ap_trapezoid": value, "ap_hits": value})
            t = np.linspace(0, 1, 100)
            recall, precision = level * (1 - 0.1 * k) * t**2, 1 - t * (1 - level * 0.5)
            curve = {"descriptor": name, "subset": subset, "score": "ratio"}
            curves.append(curve | {"recall": recall.tolist(), "precision": precision.tolist()})
    body = {"rows": rows, "means": means, "curves": curves}
    return {"kind": "w1bs", "set": {"name": "made-up", "pairs": 5, "patches": 1000}} | body


@pytest.fixture
def hpatches_results():
    return made_up_hpatches()


@pytest.fixture
def brown_results():
    return made_up_brown()


@pytest.fixture
def w1bs_results():
    return made_up_w1bs()
