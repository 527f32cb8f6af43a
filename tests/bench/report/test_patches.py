"""Tables of the Brown benchmark, from made-up rates."""

from __future__ import annotations

import pytest

from hardnet.bench.report import tables
from hardnet.bench.report.patches import family, seen_in_training
from hardnet.bench.report.table import SAME

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
    """The table as it is printed: one golden table of this benchmark."""
    summary = tables(paper())[0]
    assert summary.headings == ["descriptor", "trained on", *SETS, "mean FDR95", "mean FPR95"]
    assert summary.rows == [
        ["sift", "-", "30.00", "20.00", "10.00", "10.00", "20.00"],
        ["net-liberty.pth", "liberty", "-", "**4.00**", "**6.00**", "2.50", "5.00"],
        ["net-yosemite.pth", "yosemite", "**3.00**", "5.00", "-", "**2.00**", "**4.00**"],
    ]
    assert "not tested on the set it was trained on" in summary.note


def test_the_layout_of_the_paper():
    results = paper()
    results["rows"] += [row("other", "liberty", "notredame", 0.5)]
    table = tables(results)[1]
    under = [(column.group, column.heading) for column in table.columns[1:]]
    assert under == [
        *(("liberty", "yosemite"), ("notredame", "liberty"), ("notredame", "yosemite")),
        *(("yosemite", "liberty"), ("mean", "FDR95"), ("mean", "FPR95")),
    ]
    sift, net, other = zip(*(column.values for column in table.columns), strict=True)
    assert sift == ("sift", 30, 20, SAME, 10, pytest.approx(10), pytest.approx(20))
    assert net == ("net", 3, 4, 5, 6, pytest.approx(2.25), pytest.approx(4.5))
    assert other == ("other", None, 50, None, None, 25, 50)
    assert r"sift & 30.00 & \multicolumn{2}{c}{20.00} & 10.00" in table.latex()


def test_descriptors_that_share_a_name_are_kept_apart():
    results = paper()
    for each in results["rows"]:
        each["descriptor"] = "net"  # also the one that was not trained
    summary, layout, details = tables(results)
    assert list(summary.columns[1].values) == [None, "liberty", "yosemite"]
    assert list(summary.columns[2].values) == [30, None, 3]
    assert list(layout.columns[3].values) == [SAME, 5]
    assert set(details.columns[0].values) == {"net", "net[liberty]", "net[yosemite]"}


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
