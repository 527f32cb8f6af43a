"""Tables and figures of pose, light and ratio, from MADE-UP numbers."""

import pytest

from hardnet.bench.report import figures, tables

FIELDS = {"pose": ("maa", "scenes", "ratio"), "light": ("ap", "cameras", "correct")}
SCORES = {"dog": {"net": 0.6, "rootsift": 0.4}, "hessian": {"net": 0.3, "rootsift": 0.5}}


def made_up(kind, ends=(0.1, 0.9)):
    score, scenes, more = FIELDS[kind]
    entries = []
    for setup, names in SCORES.items():
        for name, level in names.items():
            one = {score: level, more: 0.8, "curve": [level, 1.0]}
            entries.append(
                {
                    "setup": setup,
                    "descriptor": name,
                    "report": {score: level, "interval": list(ends)},
                    "choose": {score: None, "interval": [None, None]},
                    scenes: {
                        "temple": one | {"role": "report"},
                        "graf": one | {"role": "choose", score: level / 2},
                    },
                }
            )
    return {"kind": kind, "entries": entries}


def test_the_best_of_each_setup_and_the_ratio_to_the_baseline():
    summary, scenes, chosen = tables(made_up("pose"))
    assert summary.rows[0] == ["dog", "net", "**0.600** [0.100, 0.900]", "1.50x", "-"]
    assert summary.rows[2][2:4] == ["0.300 [0.100, 0.900]", "0.60x"]
    assert summary.rows[3][2] == "**0.500** [0.100, 0.900]"
    assert summary.note == "Report: temple; choose: graf. 95% intervals over photos."
    assert scenes.headings == ["keypoints", "descriptor", "temple", "graf"]
    assert list(scenes.columns[3].values) == pytest.approx([0.3, 0.2, 0.15, 0.25])
    assert [row[2] for row in chosen.rows] == ["0.8"] * 4
    without = made_up("pose")
    without["entries"] = without["entries"][::2]
    assert [row[3] for row in tables(without)[0].rows] == ["-", "-"]


def test_figures_are_of_the_scenes_that_report(drawn):
    assert {"pose error below (degrees)", "share of the pairs", "dog"} <= drawn(made_up("pose"))
    assert {"mean AP", "hessian", "rootsift"} <= drawn(made_up("light"))
    assert figures(made_up("light", (None, None))) == []
