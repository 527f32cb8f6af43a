"""Tables of the Brown benchmark, from made-up rates."""

from __future__ import annotations

import pytest

from hardnet.bench.report import tables
from hardnet.bench.report.brown import family, seen_in_training
from hardnet.bench.report.latex import SAME

SETS = ("liberty", "notredame", "yosemite")


def row(descriptor, trained, test, rate, **more):
    rates = {"fpr95": rate, "fpr95_before": rate, "fdr95": rate / 2, "auc": 0.9}
    names = {"descriptor": descriptor, "trained": trained, "set": test, "pairs": 1000}
    return names | rates | {"low": rate - 0.01, "high": rate + 0.01} | more


def paper():
    """SIFT untrained; a family of two nets, each tested on all sets, its own included."""
    rates = {
        ("sift", None): (0.30, 0.20, 0.10),
        ("net-liberty.pth", "liberty"): (0.01, 0.04, 0.06),
        ("net-yosemite.pth", "yosemite"): (0.03, 0.05, 0.01),
    }
    rows = [row(*who, SETS[k], each[k]) for who, each in rates.items() for k in range(3)]
    return {"kind": "brown", "rows": rows}


def test_by_descriptor():
    summary = tables(paper())[0]
    assert summary.columns == [
        "descriptor",
        "trained on",
        *SETS,
        "mean FDR95",
        "mean FPR95",
    ]
    assert summary.rows == [
        ["sift", "-", "30.00", "20.00", "10.00", "10.00", "20.00"],
        ["net-liberty.pth", "liberty", "-", "**4.00**", "**6.00**", "2.50", "5.00"],
        ["net-yosemite.pth", "yosemite", "**3.00**", "5.00", "-", "**2.00**", "**4.00**"],
    ]
    assert "not tested on the set it was trained on" in summary.note


def test_the_layout_of_the_paper():
    table = tables(paper())[1]
    assert table.groups == [("", 1), ("liberty", 1), ("notredame", 2), ("yosemite", 1), ("mean", 2)]
    assert table.columns[1:] == ["yosemite", "liberty", "yosemite", "liberty", "FDR95", "FPR95"]
    assert table.rows == [
        ["sift", "30.00", "20.00", SAME, "10.00", "10.00", "20.00"],
        ["net", "**3.00**", "**4.00**", "**5.00**", "**6.00**", "**2.25**", "**4.50**"],
    ]
    assert r"sift & 30.00 & \multicolumn{2}{c}{20.00} & 10.00" in table.latex()
    assert "**notredame: yosemite**" not in table.markdown()
    assert "notredame: yosemite" in table.markdown()


def test_descriptors_that_share_a_name_are_kept_apart():
    results = paper()
    for each in results["rows"]:
        each["descriptor"] = "net"  # also the one that was not trained
    summary, layout, details = tables(results)
    assert [line[:3] for line in summary.rows] == [
        ["net", "-", "30.00"],
        ["net", "liberty", "-"],
        ["net", "yosemite", "**3.00**"],
    ]
    assert [line[3] for line in layout.rows] == [SAME, "**5.00**"]
    assert {line[0] for line in details.rows} == {"net", "net[liberty]", "net[yosemite]"}


def test_a_family_without_one_of_the_training_sets_has_a_dash():
    results = paper()
    results["rows"] += [row("other", "liberty", "notredame", 0.5)]
    assert tables(results)[1].rows[-1] == [
        *("other", "-", "50.00", "-", "-"),
        *("25.00", "50.00"),
    ]


def test_without_two_of_a_family_there_is_no_layout_of_the_paper():
    results = paper()
    results["rows"] = [r for r in results["rows"] if r["trained"] != "yosemite"]
    assert [t.title for t in tables(results)] == [
        "FPR95 on Brown sets, %",
        "Brown sets: all measures",
    ]


def test_the_details_have_every_row_its_interval_and_both_ties():
    results = {"kind": "brown", "rows": [row("a", None, "liberty", 0.2, fpr95_before=0.15)]}
    details = tables(results)[-1]
    assert details.rows == [
        ["a", "liberty", "1000", "20.00", "[19.00, 21.00]", "15.00", "10.00", "0.9000"]
    ]


@pytest.mark.parametrize(
    ("descriptor", "trained", "name"),
    [
        ("tfeat-liberty.params", "liberty", "tfeat"),
        ("net_Liberty.onnx", "liberty", "net"),
        ("HardTFeat.pth", None, "HardTFeat"),
        ("hardnet", "photos", "hardnet"),
        ("liberty", "liberty", "liberty"),
    ],
)
def test_family(descriptor, trained, name):
    assert family({"descriptor": descriptor, "trained": trained}) == name


def test_trained_on_several_sets():
    assert seen_in_training({"trained": "liberty+Yosemite", "set": "yosemite"})
    assert not seen_in_training({"trained": "liberty+yosemite", "set": "notredame"})
    assert not seen_in_training({"trained": None, "set": "liberty"})
