"""Tables and figures of an experiment, from MADE-UP numbers."""

from __future__ import annotations

import pytest

from hardnet.bench.report import experiment


def cell(name, row, column, paper, matching=None, fpr95=None, failed=False):
    run = {
        "seed": 0, "batch": 64, "steps": 10, "pairs": 640, "seconds": 3.5,
        "pairs_per_second": 182.9, "loss": 0.5,
    }  # fmt: skip
    found = {"cell": name, "row": row, "column": column, "paper": paper, "runs": [run]}
    if matching is not None:
        ends = {"value": matching, "low": matching - 0.05, "high": matching + 0.05}
        run["matching"] = ends
        found["matching"] = ends | {"seeds": [matching]}
    if fpr95 is not None:
        ends = {"low": fpr95 - 0.01, "high": fpr95 + 0.01}
        run["brown"] = [{"set": "test", "fpr95": fpr95} | ends]
        found["fpr95"] = ends | {"value": fpr95, "seeds": [fpr95]}
    if failed:
        run["failed"] = found["failed"] = 1
    return found


def claim(answer, **changes):
    base = {
        "claim": "hardest beats random", "measure": "matching", "answer": answer, "pairs": 2,
        "hold": 1, "clear": 1, "holds": ["a > b: +0.1"], "against": [], "not_run": [],
    }  # fmt: skip
    return base | changes


def results(cells, measure="matching", **changes):
    base = {
        "kind": "experiment", "experiment": "made-up", "title": "Sampling", "corner": "sampling",
        "measure": measure, "source": "Table 2", "says": "hardest is best", "notes": ["A note."],
        "cells": cells, "claims": [], "missing": [], "training": "tfeat on x",
    }  # fmt: skip
    return base | changes


@pytest.fixture
def ablation():
    cells = [
        cell("random-a", "random", "softmin", "overfit", 0.2, 0.12),
        cell("random-b", "random", "triplet", 0.286, 0.31, 0.1),
        cell("hardest-a", "hardest", "softmin", 0.474, 0.4, 0.05),
        cell("hardest-b", "hardest", "triplet", 0.482, failed=True),
        cell("l2net", "L2-Net", "its own", None, 0.35, 0.07),
    ]
    against = ["hardest-a > random-b: -0.010, not clear"]
    claims = [claim("yes"), claim("no", measure="fpr95", against=against)]
    return results(cells, claims=claims, missing=["random-c"])


@pytest.fixture
def curve():
    sizes = {16: 0.2, 128: 0.1, 512: 0.05}
    cells = [cell(f"batch-{n}", str(n), "", None, 0.5 - f, f) for n, f in sizes.items()]
    return results(cells, "fpr95", corner="batch")


def test_our_numbers_stand_beside_the_papers(ablation):
    ours, other, _ = experiment.tables(ablation)
    assert ours.headings == ["sampling", "softmin", "triplet", "its own", "softmin", "triplet"]
    groups = [column.group for column in ours.columns]
    assert groups == ["", *["here, matching mAP"] * 3, *["paper, matching mAP"] * 2]
    assert ours.rows == [
        ["random", "0.200", "0.310", "-", "overfit", "0.286"],
        ["hardest", "**0.400**", "diverged", "-", "0.474", "0.482"],
        ["L2-Net", "-", "-", "0.350", "-", "-"],
    ]
    assert other.rows[0] == ["random", "12.00", "10.00", "-"]
    assert other.rows[1][1] == "**5.00**"  # smaller is better
    for part in ("hardest is best (Table 2)", "tfeat on x", "A note.", "Not run: random-c."):
        assert part in ours.note


def test_claims_say_what_contradicts(ablation):
    _, _, claims = experiment.tables(ablation)
    assert claims.rows[0] == [
        "hardest beats random", "matching mAP", "yes", "1 of 2", "1", "-",
    ]  # fmt: skip
    assert claims.rows[1][2:] == ["no", "1 of 2", "1", "hardest-a > random-b: -0.010, not clear"]
    assert "trained once" in claims.note
    ablation["cells"][0]["runs"] *= 2
    assert "trained once" not in experiment.tables(ablation)[2].note
    assert experiment.claim_lines(ablation) == [
        "yes  hardest beats random (matching mAP: 1 of 2 pairs, 1 clearly)",
        "no   hardest beats random (FPR95 [%]: 1 of 2 pairs, 1 clearly)",
        "     against: hardest-a > random-b: -0.010, not clear",
    ]


def test_a_single_column_is_a_list(curve):
    first, *_ = experiment.tables(curve)
    assert first.headings == [
        "batch", "steps", "FPR95 [%]", "95 % interval", "matching mAP", "95 % interval",
    ]  # fmt: skip
    assert first.rows[0] == ["16", "10", "20.00", "[19.00, 21.00]", "0.300", "[0.250, 0.350]"]
    assert first.rows[2][2] == "**5.00**"


def test_one_measure_and_cells_not_run(curve):
    for each in curve["cells"]:
        del each["matching"]
    curve["cells"][0] = {"cell": "batch-16", "row": "16", "column": "", "paper": None, "runs": []}
    first, *_ = experiment.tables(curve)
    assert first.rows[0] == ["16", "-", "-", "-"]
    assert all(table.markdown() and table.latex() for table in experiment.tables(curve))


def test_figures(ablation, curve, drawn):
    words = drawn(ablation)
    for text in ("overfit", "hardest", "its own", "paper", "here", "matching mAP", "FPR95 [%]"):
        assert text in words
    assert {"Paper: hardest is best", "512"} <= drawn(curve)


def test_a_figure_without_any_run(ablation, curve, drawn):
    for found in (ablation, curve):
        for each in found["cells"]:
            each.pop("matching", None), each.pop("fpr95", None)
            each["runs"] = []
        assert drawn(found)
        assert experiment.tables(found)
